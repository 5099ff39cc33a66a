"""Composition of pop songs for piano, with chord markers and tempi."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from musicgen.composer.draw import chance, generator, pick
from musicgen.composer.harmony import Scale, ladder, nearest, scale_over
from musicgen.composer.pop.form import CADENCE, ENERGY, Section, draw_form
from musicgen.composer.pop.melody import (
    BAR,
    Harmony,
    Motif,
    MotifWriter,
    Note,
    chord_at,
    realise_melody,
    shorten_before_next,
)
from musicgen.composer.pop.progressions import Bar, close, draw_section, draw_sevenths, realise
from musicgen.composer.pop.texture import Texture, draw_texture, play
from musicgen.composer.render import TICKS_PER_BEAT, changes, remove_overlaps
from musicgen.midi import TEMPO, Marker, Score, TimeSignature, Track

_STEP = TICKS_PER_BEAT // 4
_SOFTEST, _LOUDEST = 40, 86
_RITARDANDO = (0.96, 0.91, 0.85, 0.76)  # factor of the tempo for each half of the last two bars

# Typical tempi of each feel; a song varies one of them.
_TEMPI = {
    "straight": (66, 78, 92, 104, 120, 134),
    "sixteenth": (62, 70, 78, 88),
    "swing": (92, 108, 126, 150),
}


@dataclass(frozen=True)
class _Material:
    """The material shared by sections of one kind."""

    bars: list[Bar]
    motifs: list[Motif]
    height: int  # semitones added to the melody's middle
    textures: tuple[Texture, Texture]
    doubling: str


class _Song:
    """The random choices for a whole piece."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.scale = Scale(int(rng.integers(12)), pick(rng, {"major": 3, "minor": 2}))
        self.feel = pick(rng, {"straight": 5, "sixteenth": 4, "swing": 2})
        self.bpm = pick(rng, _TEMPI[self.feel]) + int(rng.integers(-6, 7))
        self.writer = MotifWriter(rng, self.feel)
        self.sevenths = draw_sevenths(rng)
        weight, weak = pick(rng, (2, 4, 6)), pick(rng, (0, 2, 4))
        self.metre = tuple(  # velocity added on each step of a bar
            weight if step == 0
            else weight // 2 if step == 8
            else 0 if step % 4 == 0
            else -weak if step % 2 == 0
            else -weak - 2
            for step in range(BAR)
        )  # fmt: skip
        self.arch = pick(rng, (0, 4, 6, 8))  # velocity added in the middle of a phrase
        self.lead = pick(rng, (6, 8, 10, 12))  # velocity of the melody above the accompaniment
        self.slope = pick(rng, (0.0, 0.25))  # velocity per semitone above the melody's middle
        self.release = pick(rng, (0, 1, 1, 2))  # steps of silence after a long melody note
        self.low = 62 + int(rng.integers(0, 5))
        self.sings_intro = chance(rng, 0.3)
        self.walking = pick(rng, (0.2, 0.5, 0.8))

    def material(self, section: Section) -> _Material:
        rng, energy = self.rng, ENERGY[section.kind]
        bars = draw_section(
            rng,
            self.scale.mode,
            section.num_bars,
            CADENCE[section.kind],
            walking=self.walking if section.kind != "chorus" else self.walking / 2,
        )
        motifs = self.writer.phrase(section.num_bars)
        height = round(6 * energy) - 3 + pick(rng, (-1, 0, 1))
        doubling = pick(
            rng, {"none": 1.1 - energy, "octaves": 0.2 + energy / 2, "thirds": energy / 2}
        )
        textures = draw_texture(rng, min(energy + 0.1, 1), self.feel)
        return _Material(bars, motifs, height, textures, doubling)

    def varied(self, material: _Material, section: Section) -> _Material:
        """Return the material of a repetition, in which motifs and the texture may change."""
        rng = self.rng
        motifs = [self.writer.vary(m) if chance(rng, 0.4) else m for m in material.motifs]
        textures = material.textures
        if chance(rng, 0.2):
            textures = draw_texture(rng, min(ENERGY[section.kind] + 0.15, 1), self.feel)
        return replace(material, motifs=motifs, textures=textures)

    def velocity(self, section: Section, onset: int, extra: float) -> int:
        """Return an even velocity of 40–86 for an onset in a section."""
        position = (onset % (4 * BAR)) / (4 * BAR)
        base = 48 + 22 * ENERGY[section.kind] + min(section.turn, 2)
        swell = self.arch * 4 * position * (1 - position)
        loud = base + swell + self.metre[onset % BAR] + extra
        return int(np.clip(2 * round(loud / 2), _SOFTEST, _LOUDEST))


def compose_pop(seed: int, index: int) -> Score:
    """Compose piece number `index` of a pop-piano corpus.

    One track "Piano" in 4/4 on the sixteenth grid, 24–64 bars, velocities 40–86 (even), tempi
    32–224 bpm, chord markers such as `A_M7_E` where the chord changes. Both numbers are >= 0.
    """
    rng = generator("pop", seed, index)
    song = _Song(rng)
    form = draw_form(rng)
    materials: dict[str, _Material] = {}
    rows: list[tuple[int, int, int, int]] = []
    markers: list[tuple[int, str]] = []
    tempos: list[tuple[int, float]] = []
    start = 0
    for number, section in enumerate(form):
        known = materials.get(section.kind)
        material = song.varied(known, section) if known else song.material(section)
        materials[section.kind] = material
        last = number == len(form) - 1
        if last and CADENCE[section.kind] != "full":
            closed = close(rng, song.scale.mode, "full", material.bars)
            material = replace(material, bars=closed)
        notes, chords = _section(song, section, material)
        rows += [(start + step, length, pitch, velocity) for step, length, pitch, velocity in notes]
        markers += [((start + step) * _STEP, text) for step, text in chords]
        tempos += [((start + step) * _STEP, bpm) for step, bpm in _tempi(song, section, last)]
        start += section.num_bars * BAR
    return Score(
        TICKS_PER_BEAT,
        [Track("Piano", 0, False, remove_overlaps(rows, _STEP))],
        np.array(changes(tempos), TEMPO),
        [TimeSignature(0, 4, 4)],
        [Marker(*change) for change in changes(markers)],
    )


def _section(
    song: _Song, section: Section, material: _Material
) -> tuple[list[tuple[int, int, int, int]], list[tuple[int, str]]]:
    """Return (onset, length, pitch, velocity) rows and (onset, chord) rows, in steps."""
    scale = replace(song.scale, tonic=(song.scale.tonic + section.shift) % 12)
    harmony = realise(material.bars, scale.tonic, song.sevenths)
    rows = [
        (onset, length, pitch, song.velocity(section, onset, accent - 4))
        for onset, length, pitch, accent in play(material.textures, harmony)
    ]
    if section.kind != "intro" or song.sings_intro:
        low, high = song.low, song.low + 21
        middle = low + 9 + material.height + section.shift
        melody = realise_melody(material.motifs, harmony, scale, middle=middle, low=low, high=high)
        for note in shorten_before_next(melody, song.release):
            extra = song.lead + song.slope * (note.pitch - middle)
            velocity = song.velocity(section, note.onset, extra)
            rows.append((*note, velocity))
            if (below := _double(note, material.doubling, harmony, scale)) is not None:
                rows.append((*note[:2], below, max(velocity - 6, _SOFTEST)))
    chords = [
        (bar * BAR + i * BAR // len(bar_chords), chord.marker)
        for bar, bar_chords in enumerate(harmony)
        for i, chord in enumerate(bar_chords)
    ]
    return rows, chords


def _double(note: Note, doubling: str, harmony: Harmony, scale: Scale) -> int | None:
    """Return the pitch that doubles a melody note; None off the beats or without doubling."""
    if doubling == "none" or note.onset % 4:
        return None
    if doubling == "octaves":
        return note.pitch - 12
    chord = chord_at(harmony, note.onset)
    below = ladder(scale_over(chord, scale), note.pitch - 9, note.pitch - 3)
    tones = tuple(pitch for pitch in below if pitch % 12 in chord.pitch_classes)
    return nearest(tones or below, note.pitch - 3)


def _tempi(song: _Song, section: Section, last: bool) -> list[tuple[int, float]]:
    """Return (step, bpm) of a section: its tempo, and a ritardando at the end of the piece."""
    bpm = song.bpm * (1 + 0.06 * (ENERGY[section.kind] - 0.5))
    tempi = {0: _on_grid(bpm)}
    if last:
        end = section.num_bars * BAR
        tempi |= {end - 8 * (4 - i): _on_grid(bpm * slower) for i, slower in enumerate(_RITARDANDO)}
    return sorted(tempi.items())


def _on_grid(bpm: float) -> float:
    """Return the nearest tempo of the REMI vocabulary, which has every third from 32 on."""
    return 32.0 + 3 * round((bpm - 32) / 3)
