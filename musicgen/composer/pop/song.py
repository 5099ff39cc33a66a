"""Composition of piano pop and of songs for voice and piano, with chord markers and tempi."""

from dataclasses import dataclass, replace

import numpy as np

from musicgen.composer.draw import chance, generator, pick
from musicgen.composer.harmony import ladder, nearest, scale_over
from musicgen.composer.pop.form import CADENCE, ENERGY, Section, draw_form
from musicgen.composer.pop.melody import (
    FOUR_FOUR,
    SIX_EIGHT,
    THREE_FOUR,
    Harmony,
    Metre,
    Motif,
    MotifWriter,
    Note,
    breathe,
    realise_melody,
    shorten_before_next,
)
from musicgen.composer.pop.progressions import Bar, close, draw_section, draw_sevenths, realise
from musicgen.composer.pop.texture import Texture, Textures, draw_texture, play, vary
from musicgen.composer.render import StepNotes, changes, notes_of_part
from musicgen.midi import (
    CHOIR_AAHS,
    TEMPO,
    TICKS_PER_BEAT,
    KeySignature,
    Marker,
    Score,
    TimeSignature,
    Track,
)
from musicgen.midi.key import Key

_STEP = TICKS_PER_BEAT // 4
_SOFTEST, _LOUDEST = 40, 86
_RITARDANDO = (0.96, 0.91, 0.85, 0.76)  # factor on the tempo in each half of the last two bars

_FEELS = {
    "4/4": {"straight": 5, "sixteenth": 4, "swing": 2},
    "3/4": {"straight": 5, "sixteenth": 1},
    "6/8": {"compound": 1},
}
# Typical tempi of each feel, in quarter notes per minute. A song varies one of them.
_TEMPI = {
    "straight": (66, 78, 92, 104, 120, 134),
    "sixteenth": (62, 70, 78, 88),
    "swing": (92, 108, 126, 150),
    "compound": (69, 81, 93, 108, 126),
}


@dataclass(frozen=True)
class _Material:
    """What sections of one kind have in common."""

    bars: list[Bar]
    motifs: list[Motif]
    height: int  # semitones added to the middle pitch of the melody
    textures: Textures
    doubling: str


class _Song:
    """The random choices for a whole piece.

    Args:
        sung: a song for voice and piano; else piano pop.
    """

    def __init__(self, rng: np.random.Generator, metre: Metre, *, sung: bool) -> None:
        self.rng, self.metre, self.sung = rng, metre, sung
        tonic, self.mode = int(rng.integers(12)), pick(rng, {"major": 3, "minor": 2})
        self.key = Key(tonic, self.mode == "major")
        self.feel = pick(rng, _FEELS[metre.name])
        self.bpm = pick(rng, _TEMPI[self.feel]) + int(rng.integers(-6, 7))
        self.writer = MotifWriter(rng, self.feel, metre, leaning=0.12 if sung else 0.3)
        self.sevenths = draw_sevenths(rng)
        weight, weak = pick(rng, (2, 4, 6)), pick(rng, (0, 2, 4))
        # Velocity that is added at each step of a bar.
        self.accents = [-weak - 2 * (s % 2) if s % metre.beat else 0 for s in range(metre.bar)]
        self.accents[0], self.accents[metre.split] = weight, weight // 2
        self.arch = pick(rng, (0, 4, 6, 8))  # velocity added in the middle of a phrase
        self.lead = pick(rng, (6, 8, 10, 12))  # velocity added to the melody
        self.slope = pick(rng, (0.0, 0.25))  # velocity per semitone above the middle pitch
        self.release = pick(rng, (0, 1, 1, 2))  # steps of silence after a long melody note
        self.low = (60 if sung else 62) + int(rng.integers(0, 5))
        self.high = self.low + (17 if sung else 21)
        self.intro_has_melody = chance(rng, 0.7 if sung else 0.3)
        self.walking = pick(rng, (0.2, 0.5, 0.8))
        # Sections whose melody is played by the piano instead of the voice.
        solos = (("intro",), ("intro", "outro"), ("intro", "bridge"))
        self.solos = pick(rng, solos) if sung else ()
        self.pianist = rng.spawn(1)[0]  # its draws change no others
        # Probability that the pianist varies the texture of a bar.
        self.freedom = pick(self.pianist, {0.2: 1, 0.6: 2, 0.9: 3})

    def material(self, section: Section) -> _Material:
        """Return random material for sections of this kind."""
        rng, energy = self.rng, ENERGY[section.kind]
        walking = self.walking / 2 if section.kind == "chorus" else self.walking
        cadence, num_bars = CADENCE[section.kind], section.num_bars
        bars = draw_section(rng, self.mode, num_bars, cadence, walking=walking)
        motifs = self.writer.phrase(section.num_bars)
        height = round(6 * energy) - 3 + pick(rng, (-1, 0, 1))
        none = 1.1 - energy + 2 * self.sung
        doubling = pick(rng, {"none": none, "octaves": 0.2 + energy / 2, "thirds": energy / 2})
        textures = draw_texture(rng, min(energy + 0.1, 1), self.feel, self.metre)
        return _Material(bars, motifs, height, textures, doubling)

    def varied(self, material: _Material, section: Section) -> _Material:
        """Return the material of a repeated section, with random changes of motifs and texture."""
        rng = self.rng
        motifs = [self.writer.vary(m) if chance(rng, 0.4) else m for m in material.motifs]
        textures = material.textures
        if chance(rng, 0.2):
            energy = min(ENERGY[section.kind] + 0.15, 1)
            textures = draw_texture(rng, energy, self.feel, self.metre)
        return replace(material, motifs=motifs, textures=textures)

    def textures(self, material: _Material) -> list[Texture]:
        """Return the texture of each bar of a section, in some bars with a random change."""
        textures = [material.textures[bar % 2] for bar in range(len(material.bars))]
        return [
            vary(self.pianist, texture, self.metre.beat)
            if chance(self.pianist, self.freedom)
            else texture
            for texture in textures
        ]

    def velocity(self, section: Section, onset: int, extra: float) -> int:
        """Return an even velocity in 40–86 for a note.

        Args:
            onset: steps from the beginning of the section.
            extra: velocity to add.
        """
        position = onset % (4 * self.metre.bar) / (4 * self.metre.bar)  # in a phrase, 0–1
        base = 48 + 22 * ENERGY[section.kind] + min(section.turn, 2)
        swell = self.arch * 4 * position * (1 - position)
        velocity = base + swell + self.accents[onset % self.metre.bar] + extra
        return int(np.clip(2 * round(velocity / 2), _SOFTEST, _LOUDEST))


def compose_pop(seed: int, index: int) -> Score:
    """Return piece number `index` of a piano-pop corpus.

    It has one track "Piano" in 4/4, 24–64 bars on a grid of sixteenths, even velocities of 40–86,
    tempi of 32–224 bpm, and chord markers such as `A_M7_E` where the chord changes.

    Args:
        seed, index: at least 0. The same numbers give the same music.
    """
    return _compose(_Song(generator("pop", seed, index), FOUR_FOUR, sung=False))


def compose_song(seed: int, index: int) -> Score:
    """Return song number `index` of a corpus for voice and piano.

    It is like `compose_pop`, but with the tracks "Voice" and "Piano", with key signatures, and with
    tempi that change at bar lines. Every second song is in 4/4, the others in 3/4 and 6/8 by turns.

    Args:
        seed, index: at least 0. The same numbers give the same music.
    """
    metre = (FOUR_FOUR, THREE_FOUR, FOUR_FOUR, SIX_EIGHT)[index % 4]
    return _compose(_Song(generator("songs", seed, index), metre, sung=True))


def _compose(song: _Song) -> Score:
    metre, form = song.metre, draw_form(song.rng)
    materials: dict[str, _Material] = {}
    melody: StepNotes = []
    piano: StepNotes = []
    markers: list[tuple[int, str]] = []
    tempos: list[tuple[int, float]] = []
    keys: list[tuple[int, int]] = []
    start = 0
    for number, section in enumerate(form):
        earlier = materials.get(section.kind)
        material = song.varied(earlier, section) if earlier else song.material(section)
        materials[section.kind] = material
        last = number == len(form) - 1
        if last and CADENCE[section.kind] != "full":
            bars = close(song.rng, song.mode, "full", material.bars)
            material = replace(material, bars=bars)
        section_melody, section_piano, chords = _section(song, section, material, last)
        melody += _delayed(section_melody, start)
        piano += _delayed(section_piano, start)
        markers += [((start + step) * _STEP, text) for step, text in chords]
        tempos += [((start + step) * _STEP, bpm) for step, bpm in _tempi(song, section, last)]
        major_tonic = song.key.tonic + section.shift + (3 if song.mode == "minor" else 0)
        keys.append((start * _STEP, (7 * major_tonic + 5) % 12 - 5))  # on the circle of fifths
        start += section.num_bars * metre.bar
    tracks = []
    if song.sung:
        tracks.append(Track("Voice", CHOIR_AAHS, False, notes_of_part(melody, _STEP)))
    else:
        piano += melody
    return Score(
        TICKS_PER_BEAT,
        [*tracks, Track("Piano", 0, False, notes_of_part(piano, _STEP))],
        np.array(changes(tempos), TEMPO),
        [TimeSignature(0, *map(int, metre.name.split("/")))],
        [Marker(*change) for change in changes(markers)],
        key_signatures=[KeySignature(*change) for change in changes(keys) if song.sung],
    )


def _delayed(notes: StepNotes, steps: int) -> StepNotes:
    """Return the notes, a number of steps later."""
    return [(onset + steps, length, pitch, velocity) for onset, length, pitch, velocity in notes]


def _section(
    song: _Song, section: Section, material: _Material, last: bool
) -> tuple[StepNotes, StepNotes, list[tuple[int, str]]]:
    """Return the melody, the accompaniment, and chords as (onset, marker); times are in steps.

    Args:
        last: whether it is the last section.
    """
    metre, solo, ends = song.metre, section.kind in song.solos, last and song.sung
    key = song.key._replace(tonic=(song.key.tonic + section.shift) % 12)
    harmony = Harmony(realise(material.bars, key.tonic, song.sevenths), metre)
    melody: StepNotes = []
    piano = [
        (onset, length, pitch, song.velocity(section, onset, accent - 4))
        for onset, length, pitch, accent in play(song.textures(material), harmony, ends=ends)
    ]
    if section.kind != "intro" or song.intro_has_melody:
        octave = 12 if solo else 0
        low, high = song.low + octave, song.high + octave
        middle = low + 9 + material.height + section.shift
        motifs = material.motifs
        if song.sung:  # one long note in the last bar
            early = [tone for tone in motifs[-1] if tone.onset < metre.bar]
            motifs = [*motifs[:-1], motifs[-1][: len(early) + 1]]
        notes = realise_melody(motifs, harmony, key, middle=middle, low=low, high=high)
        notes = breathe(notes, 4 * metre.bar) if song.sung and not last else notes
        for note in shorten_before_next(notes, song.release):
            extra = song.lead + song.slope * (note.pitch - middle)
            velocity = song.velocity(section, note.onset, extra)
            (piano if solo else melody).append((*note, velocity))
            if (below := _double(note, material.doubling, harmony, key)) is not None:
                piano.append((note.onset, note.length, below, max(velocity - 6, _SOFTEST)))
    chords = [
        (bar * metre.bar + i * metre.split, chord.marker)
        for bar, bar_chords in enumerate(harmony.bars)
        for i, chord in enumerate(bar_chords)
    ]
    return melody, piano, chords


def _double(note: Note, doubling: str, harmony: Harmony, key: Key) -> int | None:
    """Return the pitch that doubles a melody note, or None off the beat or without doubling."""
    if doubling == "none" or note.onset % harmony.metre.beat:
        return None
    if doubling == "octaves":
        return note.pitch - 12
    chord = harmony.at(note.onset)
    below = ladder(scale_over(chord, key), note.pitch - 9, note.pitch - 3)
    tones = tuple(pitch for pitch in below if pitch % 12 in chord.pitch_classes)
    return nearest(tones or below, note.pitch - 3)


def _tempi(song: _Song, section: Section, last: bool) -> list[tuple[int, float]]:
    """Return the tempi of a section as (step, bpm), with a ritardando in the last section."""
    bpm = song.bpm * (1 + 0.06 * (ENERGY[section.kind] - 0.5))
    tempi = {0: _on_grid(bpm)}
    if last:
        half, end = song.metre.bar // 2, section.num_bars * song.metre.bar
        slower = [*enumerate(_RITARDANDO)][:: 2 if song.sung else 1]
        tempi |= {end - half * (4 - i): _on_grid(bpm * factor) for i, factor in slower}
    return sorted(tempi.items())


def _on_grid(bpm: float) -> float:
    """Return the nearest tempo in the REMI vocabulary, which has 32, 35, 38 … bpm."""
    return 32.0 + 3 * round((bpm - 32) / 3)
