"""Composition of piano pop and of songs for voice and piano, with chord markers and tempi."""

from copy import copy
from itertools import pairwise

import numpy as np
from numpy.random import Generator

from musicgen.composer.draw import StepNotes, chance, changes, generator, notes_of_part, pick
from musicgen.composer.harmony import Chord, ladder, nearest, scale_over
from musicgen.composer.melody import (
    FOUR_FOUR,
    SIX_EIGHT,
    THREE_FOUR,
    Chords,
    Metre,
    MotifWriter,
    close,
    draw_section,
    draw_sevenths,
    realise,
    realise_melody,
)
from musicgen.composer.texture import draw_texture, play, vary
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

_ENERGY = {"intro": 0.15, "verse": 0.35, "pre": 0.55, "chorus": 0.9, "bridge": 0.5, "outro": 0.1}
"""Energy of each kind of section, 0–1; it controls loudness, density and register."""

_CADENCE = {
    "intro": "open", "verse": "half", "pre": "half", "chorus": "full", "bridge": "half",
    "outro": "full",
}  # fmt: skip

Section = tuple[str, int, int, int]
"""Kind of a section, its length in bars, the number of earlier sections of this kind, and its
transposition above the key of the song in semitones."""


class _Song:
    """The random choices for a whole piece, and its events so far, in steps.

    Args:
        sung: a song for voice and piano; else piano pop.
    """

    def __init__(self, rng: Generator, metre: Metre, *, sung: bool) -> None:
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
        self.melody: StepNotes = []
        self.piano: StepNotes = []
        self.chords: list[tuple[int, str]] = []
        self.tempos: list[tuple[int, float]] = []
        self.keys: list[tuple[int, int]] = []

    def velocity(self, section: Section, onset: int, extra: float) -> int:
        """Return an even velocity in 40–86 for a note.

        Args:
            onset: steps from the beginning of the section.
            extra: velocity to add.
        """
        kind, _, turn, _ = section
        position = onset % (4 * self.metre.bar) / (4 * self.metre.bar)  # in a phrase, 0–1
        base = 48 + 22 * _ENERGY[kind] + min(turn, 2)
        swell = self.arch * 4 * position * (1 - position)
        velocity = base + swell + self.accents[onset % self.metre.bar] + extra
        return int(np.clip(2 * round(velocity / 2), _SOFTEST, _LOUDEST))

    def add(self, section: Section, material: "_Material", start: int, last: bool) -> None:
        """Add the events of a section that begins at a step."""
        metre, (kind, num_bars, _, shift) = self.metre, section
        tonic = self.key.tonic + shift
        key = self.key._replace(tonic=tonic % 12)
        bars = realise(material.bars, key.tonic, self.sevenths)
        textures = [material.textures[bar % 2] for bar in range(num_bars)]
        textures = [  # some with a random change
            vary(self.pianist, each, metre.beat) if chance(self.pianist, self.freedom) else each
            for each in textures
        ]
        for onset, length, pitch, accent in play(textures, bars, metre, ends=last and self.sung):
            velocity = self.velocity(section, onset, accent - 4)
            self.piano.append((start + onset, length, pitch, velocity))
        if kind != "intro" or self.intro_has_melody:
            self._add_melody(section, material, bars, key, start, last)
        for bar, chords in enumerate(bars):
            for i, chord in enumerate(chords):
                self.chords.append((start + bar * metre.bar + i * metre.split, chord.marker))
        bpm = self.bpm * (1 + 0.06 * (_ENERGY[kind] - 0.5))
        tempos = {start: _on_grid(bpm)}
        if last:
            half, end = metre.bar // 2, start + num_bars * metre.bar
            slower = [*enumerate(_RITARDANDO)][:: 2 if self.sung else 1]
            tempos |= {end - half * (4 - i): _on_grid(bpm * factor) for i, factor in slower}
        self.tempos += tempos.items()
        major_tonic = tonic + (3 if self.mode == "minor" else 0)
        self.keys.append((start, (7 * major_tonic + 5) % 12 - 5))  # on the circle of fifths

    def _add_melody(
        self,
        section: Section,
        material: "_Material",
        bars: Chords,
        key: Key,
        start: int,
        last: bool,
    ) -> None:
        metre, (kind, _, _, shift), motifs = self.metre, section, material.motifs
        octave = 12 if kind in self.solos else 0
        low, high = self.low + octave, self.high + octave
        middle = low + 9 + material.height + shift
        if self.sung:  # one long note in the last bar
            early = [tone for tone in motifs[-1] if tone.onset < metre.bar]
            motifs = [*motifs[:-1], motifs[-1][: len(early) + 1]]
        notes = realise_melody(motifs, bars, metre, key, middle=middle, low=low, high=high)
        part = self.piano if kind in self.solos else self.melody
        phrase = 4 * metre.bar
        for (onset, length, pitch), (following, *_) in pairwise([*notes, (-1, 0, 0)]):
            if self.sung and not last:  # breathe at the end of a phrase
                length = min(length, max(1, phrase - onset % phrase - 2))
            if length > 4 and onset + length == following:
                length -= self.release
            extra = self.lead + self.slope * (pitch - middle)
            velocity = self.velocity(section, onset, extra)
            part.append((start + onset, length, pitch, velocity))
            if onset % metre.beat == 0 and material.doubling != "none":
                below = pitch - 12
                if material.doubling == "thirds":
                    below = _third_below(pitch, metre.chord_at(bars, onset), key)
                softer = max(velocity - 6, _SOFTEST)
                self.piano.append((start + onset, length, below, softer))

    def score(self) -> Score:
        """Return the piece."""
        tracks, keys = [], []
        if self.sung:
            tracks.append(Track("Voice", CHOIR_AAHS, False, notes_of_part(self.melody, _STEP)))
            keys = [KeySignature(_STEP * at, fifths) for at, fifths in changes(self.keys)]
        else:
            self.piano += self.melody
        return Score(
            TICKS_PER_BEAT,
            [*tracks, Track("Piano", 0, False, notes_of_part(self.piano, _STEP))],
            np.array([(_STEP * at, bpm) for at, bpm in changes(self.tempos)], TEMPO),
            [TimeSignature(0, *map(int, self.metre.name.split("/")))],
            [Marker(_STEP * at, text) for at, text in changes(self.chords)],
            key_signatures=keys,
        )


class _Material:
    """What sections of one kind have in common, drawn at random.

    Attributes:
        bars: the numerals of each bar.
        motifs: one per two bars.
        height: semitones added to the middle pitch of the melody.
        doubling: `none`, `octaves` or `thirds`.
        textures: of the odd and of the even bars.
    """

    def __init__(self, song: _Song, kind: str, num_bars: int) -> None:
        rng, energy = song.rng, _ENERGY[kind]
        walking = song.walking / 2 if kind == "chorus" else song.walking
        self.bars = draw_section(rng, song.mode, num_bars, _CADENCE[kind], walking=walking)
        self.motifs = song.writer.phrase(num_bars)
        self.height = round(6 * energy) - 3 + pick(rng, (-1, 0, 1))
        none = 1.1 - energy + 2 * song.sung
        self.doubling = pick(rng, {"none": none, "octaves": 0.2 + energy / 2, "thirds": energy / 2})
        self.textures = draw_texture(rng, min(energy + 0.1, 1), song.feel, song.metre)

    def varied(self, song: _Song, kind: str) -> "_Material":
        """Return the material of a repeated section, with random changes of motifs and texture."""
        new, rng = copy(self), song.rng
        new.motifs = [song.writer.vary(m) if chance(rng, 0.4) else m for m in self.motifs]
        if chance(rng, 0.2):
            energy = min(_ENERGY[kind] + 0.15, 1)
            new.textures = draw_texture(rng, energy, song.feel, song.metre)
        return new


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
    form = _draw_form(song.rng)
    materials: dict[str, _Material] = {}
    start = 0
    for number, section in enumerate(form):
        kind, num_bars, _, _ = section
        if kind in materials:
            material = materials[kind].varied(song, kind)
        else:
            material = _Material(song, kind, num_bars)
        materials[kind] = material
        last = number == len(form) - 1
        if last and _CADENCE[kind] != "full":
            material.bars = close(song.rng, song.mode, "full", material.bars)
        song.add(section, material, start, last)
        start += num_bars * song.metre.bar
    return song.score()


def _draw_form(rng: Generator) -> list[Section]:
    """Return the random sections of a song of 24 to 64 bars."""
    while True:
        lengths = {
            "intro": pick(rng, {2: 1, 4: 3, 8: 1}),
            "verse": pick(rng, {8: 3, 16: 1}),
            "pre": pick(rng, {2: 1, 4: 3}),
            "chorus": 8,
            "bridge": pick(rng, {4: 1, 8: 2}),
            "outro": pick(rng, {2: 1, 4: 3}),
        }
        kinds = _draw_kinds(rng)
        if 24 <= sum(lengths[kind] for kind in kinds) <= 64:
            break
    modulates = chance(rng, 0.12) and kinds.count("chorus") > 1
    shift = pick(rng, (1, 2, 2, 3)) if modulates else 0
    last_chorus = max((i for i, kind in enumerate(kinds) if kind == "chorus"), default=0)
    return [
        (kind, lengths[kind], kinds[:i].count(kind), shift if i >= last_chorus else 0)
        for i, kind in enumerate(kinds)
    ]


def _draw_kinds(rng: Generator) -> list[str]:
    """Return a random order of sections, by kind."""
    middle = pick(
        rng,
        {
            "verse chorus verse chorus": 3, "verse verse chorus verse chorus": 2,
            "verse pre chorus verse pre chorus": 2, "chorus verse chorus verse chorus": 1,
            "verse verse bridge verse": 2, "verse chorus": 1, "verse bridge verse chorus": 1,
        },
    ).split()  # fmt: skip
    coda = pick(rng, {"": 2, "bridge chorus": 2, "chorus": 2, "bridge pre chorus": 0.5}).split()
    if coda[:1] == ["bridge"] and "bridge" in middle:
        coda = coda[1:]
    intro = ["intro"] if chance(rng, 0.75) else []
    outro = ["outro"] if chance(rng, 0.75) else []
    return intro + middle + coda + outro


def _third_below(pitch: int, chord: Chord, key: Key) -> int:
    """Return a pitch about a third below a melody note, in the chord if it has one there."""
    below = ladder(scale_over(chord, key), pitch - 9, pitch - 3)
    tones = tuple(each for each in below if each % 12 in chord.pitch_classes)
    return nearest(tones or below, pitch - 3)


def _on_grid(bpm: float) -> float:
    """Return the nearest tempo in the REMI vocabulary, which has 32, 35, 38 … bpm."""
    return 32.0 + 3 * round((bpm - 32) / 3)
