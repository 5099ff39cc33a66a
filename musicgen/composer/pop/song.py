"""Composition of songs for piano, or voice and piano, with chord markers and tempi."""

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
from musicgen.composer.pop.texture import Textures, draw_texture, play
from musicgen.composer.render import Rows, changes, notes_of_part
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
_RITARDANDO = (0.96, 0.91, 0.85, 0.76)  # factor of the tempo for each half of the last two bars

_FEELS = {
    "4/4": {"straight": 5, "sixteenth": 4, "swing": 2},
    "3/4": {"straight": 5, "sixteenth": 1},
    "6/8": {"compound": 1},
}
# Typical tempi of each feel, in quarters a minute; a song varies one of them.
_TEMPI = {
    "straight": (66, 78, 92, 104, 120, 134),
    "sixteenth": (62, 70, 78, 88),
    "swing": (92, 108, 126, 150),
    "compound": (69, 81, 93, 108, 126),
}


@dataclass(frozen=True)
class _Material:
    """The material shared by sections of one kind."""

    bars: list[Bar]
    motifs: list[Motif]
    height: int  # semitones added to the melody's middle
    textures: Textures
    doubling: str


class _Song:
    """The random choices for a whole piece."""

    def __init__(self, rng: np.random.Generator, metre: Metre, *, sung: bool) -> None:
        self.rng, self.metre, self.sung = rng, metre, sung
        tonic, self.mode = int(rng.integers(12)), pick(rng, {"major": 3, "minor": 2})
        self.key = Key(tonic, self.mode == "major")
        self.feel = pick(rng, _FEELS[metre.name])
        self.bpm = pick(rng, _TEMPI[self.feel]) + int(rng.integers(-6, 7))
        self.writer = MotifWriter(rng, self.feel, metre, leaning=0.12 if sung else 0.3)
        self.sevenths = draw_sevenths(rng)
        weight, weak = pick(rng, (2, 4, 6)), pick(rng, (0, 2, 4))
        # Velocity added on each step of a bar.
        self.accents = [-weak - 2 * (s % 2) if s % metre.beat else 0 for s in range(metre.bar)]
        self.accents[0], self.accents[metre.split] = weight, weight // 2
        self.arch = pick(rng, (0, 4, 6, 8))  # velocity added in the middle of a phrase
        self.lead = pick(rng, (6, 8, 10, 12))  # velocity of the melody above the accompaniment
        self.slope = pick(rng, (0.0, 0.25))  # velocity per semitone above the melody's middle
        self.release = pick(rng, (0, 1, 1, 2))  # steps of silence after a long melody note
        self.low = (60 if sung else 62) + int(rng.integers(0, 5))
        self.high = self.low + (17 if sung else 21)
        self.sings_intro = chance(rng, 0.7 if sung else 0.3)
        self.walking = pick(rng, (0.2, 0.5, 0.8))
        # Sections whose melody the piano plays alone.
        solos = (("intro",), ("intro", "outro"), ("intro", "bridge"))
        self.solos = pick(rng, solos) if sung else ()

    def material(self, section: Section) -> _Material:
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
        """Return the material of a repetition, in which motifs and the texture may change."""
        rng = self.rng
        motifs = [self.writer.vary(m) if chance(rng, 0.4) else m for m in material.motifs]
        textures = material.textures
        if chance(rng, 0.2):
            energy = min(ENERGY[section.kind] + 0.15, 1)
            textures = draw_texture(rng, energy, self.feel, self.metre)
        return replace(material, motifs=motifs, textures=textures)

    def velocity(self, section: Section, onset: int, extra: float) -> int:
        """Return an even velocity of 40–86 for an onset in a section."""
        position = onset % (4 * self.metre.bar) / (4 * self.metre.bar)
        base = 48 + 22 * ENERGY[section.kind] + min(section.turn, 2)
        swell = self.arch * 4 * position * (1 - position)
        loud = base + swell + self.accents[onset % self.metre.bar] + extra
        return int(np.clip(2 * round(loud / 2), _SOFTEST, _LOUDEST))


def compose_pop(seed: int, index: int) -> Score:
    """Compose piece number `index` of a pop-piano corpus.

    One track "Piano" in 4/4 on the sixteenth grid, 24–64 bars, velocities 40–86 (even), tempi
    32–224 bpm, chord markers such as `A_M7_E` where the chord changes. Both numbers are >= 0.
    """
    return _compose(_Song(generator("pop", seed, index), FOUR_FOUR, sung=False))


def compose_song(seed: int, index: int) -> Score:
    """Compose song number `index` for a voice and piano, both >= 0.

    Like `compose_pop`, but in tracks "Voice" and "Piano", with key signatures and tempi that
    change at bars. Every other song is in 4/4, the others take turns in 3/4 and 6/8.
    """
    metre = (FOUR_FOUR, THREE_FOUR, FOUR_FOUR, SIX_EIGHT)[index % 4]
    return _compose(_Song(generator("songs", seed, index), metre, sung=True))


def _compose(song: _Song) -> Score:
    metre, form = song.metre, draw_form(song.rng)
    materials: dict[str, _Material] = {}
    voice: Rows = []
    piano: Rows = []
    markers: list[tuple[int, str]] = []
    tempos: list[tuple[int, float]] = []
    keys: list[tuple[int, int]] = []
    start = 0
    for number, section in enumerate(form):
        known = materials.get(section.kind)
        material = song.varied(known, section) if known else song.material(section)
        materials[section.kind] = material
        last = number == len(form) - 1
        if last and CADENCE[section.kind] != "full":
            closed = close(song.rng, song.mode, "full", material.bars)
            material = replace(material, bars=closed)
        parts, chords = _section(song, section, material, last)
        for rows, notes in zip((voice, piano), parts, strict=True):
            rows += [(start + step, n, pitch, loud) for step, n, pitch, loud in notes]
        markers += [((start + step) * _STEP, text) for step, text in chords]
        tempos += [((start + step) * _STEP, bpm) for step, bpm in _tempi(song, section, last)]
        tonic = song.key.tonic + section.shift + 3 * (song.mode == "minor")
        keys.append((start * _STEP, (7 * tonic + 5) % 12 - 5))
        start += section.num_bars * metre.bar
    tracks = [Track("Voice", CHOIR_AAHS, False, notes_of_part(voice, _STEP))] if song.sung else []
    piano += [] if song.sung else voice
    return Score(
        TICKS_PER_BEAT,
        [*tracks, Track("Piano", 0, False, notes_of_part(piano, _STEP))],
        np.array(changes(tempos), TEMPO),
        [TimeSignature(0, *map(int, metre.name.split("/")))],
        [Marker(*change) for change in changes(markers)],
        key_signatures=[KeySignature(*change) for change in changes(keys) if song.sung],
    )


def _section(
    song: _Song, section: Section, material: _Material, last: bool
) -> tuple[tuple[Rows, Rows], list[tuple[int, str]]]:
    """Return rows of the melody and the accompaniment, and (onset, chord) rows, in steps."""
    metre, solo, ends = song.metre, section.kind in song.solos, last and song.sung
    key = song.key._replace(tonic=(song.key.tonic + section.shift) % 12)
    harmony = Harmony(realise(material.bars, key.tonic, song.sevenths), metre)
    melody: Rows = []
    piano = [
        (onset, length, pitch, song.velocity(section, onset, accent - 4))
        for onset, length, pitch, accent in play(material.textures, harmony, ends=ends)
    ]
    if section.kind != "intro" or song.sings_intro:
        low, high = song.low + 12 * solo, song.high + 12 * solo
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
                piano.append((*note[:2], below, max(velocity - 6, _SOFTEST)))
    chords = [
        (bar * metre.bar + i * metre.split, chord.marker)
        for bar, bar_chords in enumerate(harmony.bars)
        for i, chord in enumerate(bar_chords)
    ]
    return (melody, piano), chords


def _double(note: Note, doubling: str, harmony: Harmony, key: Key) -> int | None:
    """Return the pitch that doubles a melody note; None off the beats or without doubling."""
    if doubling == "none" or note.onset % harmony.metre.beat:
        return None
    if doubling == "octaves":
        return note.pitch - 12
    chord = harmony.at(note.onset)
    below = ladder(scale_over(chord, key), note.pitch - 9, note.pitch - 3)
    tones = tuple(pitch for pitch in below if pitch % 12 in chord.pitch_classes)
    return nearest(tones or below, note.pitch - 3)


def _tempi(song: _Song, section: Section, last: bool) -> list[tuple[int, float]]:
    """Return (step, bpm) of a section: its tempo, and a ritardando at the end of the piece."""
    bpm = song.bpm * (1 + 0.06 * (ENERGY[section.kind] - 0.5))
    tempi = {0: _on_grid(bpm)}
    if last:
        half, end = song.metre.bar // 2, section.num_bars * song.metre.bar
        slower = [*enumerate(_RITARDANDO)][:: 2 if song.sung else 1]
        tempi |= {end - half * (4 - i): _on_grid(bpm * factor) for i, factor in slower}
    return sorted(tempi.items())


def _on_grid(bpm: float) -> float:
    """Return the nearest tempo of the REMI vocabulary, which has every third from 32 on."""
    return 32.0 + 3 * round((bpm - 32) / 3)
