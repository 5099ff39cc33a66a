"""Bands: songs in invented styles, with random articulation, timing and registers.

An invented style mixes patterns of all families with random ones, so that a model learns to
continue rhythms that it was not trained on.
"""

from dataclasses import replace

import numpy as np

from musicgen.composer.draw import chance, generator, pick
from musicgen.composer.groove.families import FAMILIES
from musicgen.composer.groove.patterns import Family
from musicgen.composer.groove.song import STEP, compose_from_family
from musicgen.composer.render import notes_of_part
from musicgen.midi import Score
from musicgen.tokenization.vocabulary import IntArray

_INVENTED = 0.7  # share of bands in an invented style; the others play one of the families
_STROKES = {"bass": "1113578a", "piano": "cccc0123", "guitar": "cccc0123", "strings": "ccc0123"}
_PLAYS = {"bass": 1.0, "piano": 0.8, "guitar": 0.6, "strings": 0.6}  # share of bands with the part
_BEAT = 12  # steps in a beat


def compose_band(seed: int, band: int, song: int, family: Family | None = None) -> Score:
    """Return a song of 24–32 bars for Bass, Drums, Piano, Guitar and Strings.

    Songs of a band share style, articulation and timing.

    Args:
        seed, band, song: at least 0. The same numbers give the same music.
        family: of the style; None: a random one, or an invented style.
    """
    rng = generator("band", seed, band)
    if family is None:
        family = _invent(rng) if chance(rng, _INVENTED) else pick(rng, tuple(FAMILIES.values()))
    score = compose_from_family(family, seed, "band", band, song)
    timing = pick(rng, ("exact", "exact", "strummed", "loose", "late"))
    late = np.append(False, rng.random(_BEAT - 1) < 0.3)
    song_rng = generator("performance", seed, band, song)
    tracks = []
    for part, track in enumerate(score.tracks):
        # Columns: onset and length in steps, pitch, velocity.
        notes = np.stack([track.notes[name] for name in track.notes.dtype.names or ()], 1)
        notes[:, :2] //= STEP
        # A generator for each part, so that its draws do not depend on the other parts.
        part_rng = generator("touch", seed, band, part)
        if track.is_drum:
            notes[:, 1] = pick(part_rng, (1, 1, 1, 2, 3, 4, 6))
        else:
            notes = _articulate(part_rng, notes, part)
        if timing == "strummed" and not track.is_drum:
            _strum(notes, int(part_rng.integers(1, 3)))
        elif timing == "loose":
            moved = (song_rng.random(len(notes)) < 0.25) * song_rng.choice([-1, 1], len(notes))
            notes[:, 0] = np.maximum(0, notes[:, 0] + moved)
        elif timing == "late":
            notes[:, 0] += late[notes[:, 0] % _BEAT]
        loudness = part_rng.normal(0, 8) + song_rng.normal(0, part_rng.uniform(0, 8), len(notes))
        notes[:, 3] = np.clip(notes[:, 3] + loudness.round(), 20, 127)
        tracks.append(replace(track, notes=notes_of_part([*map(tuple, notes.tolist())], STEP)))
    return replace(score, tracks=tracks)


def _invent(rng: np.random.Generator) -> Family:
    """Return a family of random patterns, some of which are from the other families."""
    cells = 12 if chance(rng, 0.3) else 16
    known = [family for family in FAMILIES.values() if len(family.bass[0]) == cells]
    parts = {}
    for name, strokes in _STROKES.items():
        pool = [pattern for family in known for pattern in getattr(family, name) if pattern]
        hold = rng.uniform(0, 0.95)
        drawn = tuple(_pattern(rng, pool, cells, strokes, hold) for _ in range(4))
        parts[name] = drawn if chance(rng, _PLAYS[name]) else ("",)
    drums: dict[str, tuple[str, ...]] = {}
    for _ in range(int(rng.integers(2, 7))):
        name, patterns = pick(rng, [*pick(rng, known).drums.items()])
        drums[name] = (_pattern(rng, [*filter(None, patterns)], cells, "xxXo", 0),)
    progressions = [chords for family in FAMILIES.values() for chords in family.progressions]
    return Family(
        (70, 150), drums, **parts, progressions=tuple(progressions), programs=(33, 0, 27, 48)
    )


def _pattern(
    rng: np.random.Generator, known: list[str], cells: int, strokes: str, hold: float
) -> str:
    """Return one of the known patterns, or a random one whose strokes are held (`-`) at random.

    Args:
        cells: length of the pattern.
        strokes: symbols to draw from.
        hold: probability that a cell after a stroke holds it.
    """
    if known and chance(rng, 0.5):
        return pick(rng, known)
    density, pattern = rng.uniform(0.1, 0.7), ""
    for cell in range(cells):
        on_beat = cell % (cells // 4) == 0
        if chance(rng, density * (1.6 if on_beat else 0.7)):
            pattern += pick(rng, strokes)
        else:
            pattern += "-" if pattern and pattern[-1] != "." and chance(rng, hold) else "."
    return pattern


def _articulate(rng: np.random.Generator, notes: IntArray, part: int) -> IntArray:
    """Return the notes with random lengths and a random register; some parts double in octaves.

    Args:
        notes: onset and length in steps, pitch, velocity: [num_notes, 4].
        part: index of the part; 0 is the bass, which is never doubled.
    """
    onset, length = notes[:, 0], notes[:, 1]
    scale, shorter, longest = rng.uniform(0.3, 1), rng.integers(1, 3), rng.integers(1, 7)
    onsets = np.unique(onset)
    gap = np.append(np.diff(onsets), 4 * _BEAT)[np.searchsorted(onsets, onset)]
    touches = {
        "as written": length,
        "scaled": (length * scale).round().astype(np.int64),
        "detached": length - shorter,
        "short": np.minimum(length, longest),
        "legato": np.minimum(gap, 4 * _BEAT) - shorter // 2,
    }
    notes[:, 1] = np.maximum(1, touches[pick(rng, [*touches])])
    pitch = notes[:, 2] + pick(rng, (0, 0, 0, -12, 12))
    if np.array_equal(pitch, pitch.clip(24, 100)):
        notes[:, 2] = pitch
    if part > 0 and chance(rng, 0.25):
        notes = np.concatenate([notes, notes + np.array([0, 0, 12, 0])])
    return notes


def _strum(notes: IntArray, notes_at_a_time: int) -> None:
    """Delay the higher notes of each chord, one step for every `notes_at_a_time`, in place."""
    order = np.lexsort((notes[:, 2], notes[:, 0]))
    onset = notes[order, 0]
    rank = np.arange(len(notes)) - np.searchsorted(onset, onset)
    delay = rank // notes_at_a_time
    notes[order, 0] += delay
    notes[order, 1] = np.maximum(1, notes[order, 1] - delay)
