"""Bands: songs in invented styles, with random articulation, timing and registers.

An invented style takes patterns from all known families and draws others at random, so that a model
learns to continue rhythms that it was not trained on.
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

_INVENTED = 0.7  # of the bands; the others play a known family
_STROKES = {"bass": "1113578a", "piano": "cccc0123", "guitar": "cccc0123", "strings": "ccc0123"}
_PLAYS = {"bass": 1.0, "piano": 0.8, "guitar": 0.6, "strings": 0.6}  # share of the bands
_BEAT = 12  # steps


def compose_band(seed: int, band: int, song: int) -> Score:
    """Compose a song of 24–32 bars for Bass, Drums, Piano, Guitar and Strings.

    Songs of a band share style, articulation and timing. All numbers are >= 0.
    """
    rng = generator("band", seed, band)
    family = _invent(rng) if chance(rng, _INVENTED) else pick(rng, tuple(FAMILIES.values()))
    score = compose_from_family(family, seed, "band", band, song)
    timing = pick(rng, ("exact", "exact", "strummed", "loose", "late"))
    late = np.append(False, rng.random(_BEAT - 1) < 0.3)
    song_rng = generator("performance", seed, band, song)
    tracks = []
    for part, track in enumerate(score.tracks):
        rows = np.stack([track.notes[name] for name in track.notes.dtype.names or ()], 1)
        rows[:, :2] //= STEP
        # A generator for each part, so that its draws do not depend on the other parts.
        part_rng = generator("touch", seed, band, part)
        if track.is_drum:
            rows[:, 1] = pick(part_rng, (1, 1, 1, 2, 3, 4, 6))
        else:
            rows = _articulate(part_rng, rows, part)
        if timing == "strummed" and not track.is_drum:
            _strum(rows, int(part_rng.integers(1, 3)))
        elif timing == "loose":
            moved = (song_rng.random(len(rows)) < 0.25) * song_rng.choice([-1, 1], len(rows))
            rows[:, 0] = np.maximum(0, rows[:, 0] + moved)
        elif timing == "late":
            rows[:, 0] += late[rows[:, 0] % _BEAT]
        loudness = part_rng.normal(0, 8) + song_rng.normal(0, part_rng.uniform(0, 8), len(rows))
        rows[:, 3] = np.clip(rows[:, 3] + loudness.round(), 20, 127)
        tracks.append(replace(track, notes=notes_of_part([*map(tuple, rows.tolist())], STEP)))
    return replace(score, tracks=tracks)


def _invent(rng: np.random.Generator) -> Family:
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
    """Draw a known pattern, or a random one with strokes that are held with probability `hold`."""
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


def _articulate(rng: np.random.Generator, rows: IntArray, part: int) -> IntArray:
    """Change how long a part's notes sound and its register, and double some parts in octaves.

    The rows are onset and length in steps, pitch, velocity: [num_notes, 4].
    """
    onset, length = rows[:, 0], rows[:, 1]
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
    rows[:, 1] = np.maximum(1, touches[pick(rng, [*touches])])
    pitch = rows[:, 2] + pick(rng, (0, 0, 0, -12, 12))
    if np.array_equal(pitch, pitch.clip(24, 100)):
        rows[:, 2] = pitch
    if part > 0 and chance(rng, 0.25):
        rows = np.concatenate([rows, rows + np.array([0, 0, 12, 0])])
    return rows


def _strum(rows: IntArray, notes_at_a_time: int) -> None:
    """Delay the notes of each chord from the lowest to the highest."""
    order = np.lexsort((rows[:, 2], rows[:, 0]))
    onset = rows[order, 0]
    rank = np.arange(len(rows)) - np.searchsorted(onset, onset)
    rows[order, 0] += rank // notes_at_a_time
    rows[order, 1] = np.maximum(1, rows[order, 1] - rank // notes_at_a_time)
