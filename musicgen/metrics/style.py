"""Style similarity of two pieces: cosine between histograms of note statistics, per track.

Cífka et al. 2019 ("Supervised symbolic music style translation") and 2020 ("Groove2Groove");
used for continuations by Liutkus et al. 2021 ("Relative positional encoding for Transformers
with linear complexity", section 3.3 and appendix C.2).

All times are binned in integer ticks: divided as floats, a sixth of what lies exactly on a bin's
edge would land in the bin below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import NoteArray, Score, sort_notes

Profile = Literal["onset_duration", "time_pitch", "onset_velocity", "onset_drum"]

BINS_PER_BEAT = 6
BAR_BEATS = 4  # onsets in the bar, and time lags, reach from 0 to below 4 beats
MAX_DURATION_BEATS = 2
MAX_INTERVAL = 20  # semitones, up or down
VELOCITY_BINS = 8

_NUM_TIMES = BAR_BEATS * BINS_PER_BEAT

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def style_similarity(score_a: Score, score_b: Score, profile: Profile = "onset_duration") -> float:
    """Cosine similarity of two pieces' styles in [0, 1]: the mean over the tracks both have.

    NaN if no track that both have has anything to count.
    """
    return _mean(track_similarities(score_a, score_b, profile))


def track_similarities(
    score_a: Score, score_b: Score, profile: Profile = "onset_duration"
) -> dict[str, float]:
    """Cosine similarity of each track, by name.

    NaN where either piece lacks the track or has nothing in it to count: an empty track and
    an absent one are the same thing once written as MIDI.
    """
    return _compare(style_profiles(score_a, profile), style_profiles(score_b, profile))


def chunked_style_similarity(
    continuation: Score, reference: Score, profile: Profile = "onset_duration", num_chunks: int = 4
) -> list[float]:
    """Similarity of each of `num_chunks` spans of equal length to the whole of `reference`.

    Args:
        continuation: the generated part alone, from a bar line at tick 0. Its length is that
            up to the end of the last note. A note belongs to the chunk in which it begins
            (half-open), and keeps its position in the bar.
        reference: the prompt, or the piece it was taken from.
    """
    target = style_profiles(reference, profile)
    edges = [-(-k * continuation.end // num_chunks) for k in range(num_chunks + 1)]  # rounded up
    return [
        _mean(_compare(style_profiles(continuation, profile, span), target))
        for span in pairwise(edges)
    ]


def style_profiles(
    score: Score, profile: Profile = "onset_duration", span: tuple[int, int] | None = None
) -> dict[str, FloatArray]:
    """One histogram for each track name, of the notes that begin in the ticks [start, end).

    - `onset_duration` [24, 12]: onset in the bar × duration, in sixths of a beat. Durations above
      2 beats are dropped, exactly 2 count in the last bin. Not of drums.
    - `time_pitch` [24, 41]: for every ordered pair of notes less than 4 beats apart, time lag in
      sixths of a beat × interval from -20 to 20 semitones; simultaneous pairs count both ways.
      Not of drums.
    - `onset_velocity` [24, 8]: onset in the bar × velocity in steps of 16.
    - `onset_drum` [24, 128]: onset in the bar × drum. Only of drums.

    Bars follow the score's time signatures, 4/4 without any; what lies beyond the fourth beat of
    a longer bar is counted from that beat on. Tracks of one name are summed. A histogram sums
    to 1, or to 0 if there is nothing to count.
    """
    statistic = _STATISTICS[profile]
    bar_starts = score.bar_starts()
    counts: dict[str, IntArray] = {}
    for track in score.tracks:
        if not (statistic.drums if track.is_drum else statistic.pitched):
            continue
        notes = track.notes
        if span is not None:
            notes = notes[(notes["onset"] >= span[0]) & (notes["onset"] < span[1])]
        count = statistic.count(notes, score.ticks_per_beat, bar_starts)
        counts[track.name] = counts.get(track.name, 0) + count
    return {name: count / max(1, count.sum()) for name, count in counts.items()}


def _onset_duration(notes: NoteArray, ticks_per_beat: int, bar_starts: IntArray) -> IntArray:
    num_bins = MAX_DURATION_BEATS * BINS_PER_BEAT
    notes = notes[notes["duration"] <= MAX_DURATION_BEATS * ticks_per_beat]
    duration = notes["duration"] * BINS_PER_BEAT // ticks_per_beat
    position = _position(notes, ticks_per_beat, bar_starts)
    return _histogram(position, np.minimum(duration, num_bins - 1), num_bins)


def _onset_velocity(notes: NoteArray, ticks_per_beat: int, bar_starts: IntArray) -> IntArray:
    velocity = notes["velocity"] * VELOCITY_BINS // 128
    return _histogram(_position(notes, ticks_per_beat, bar_starts), velocity, VELOCITY_BINS)


def _onset_drum(notes: NoteArray, ticks_per_beat: int, bar_starts: IntArray) -> IntArray:
    return _histogram(_position(notes, ticks_per_beat, bar_starts), notes["pitch"], 128)


def _time_pitch(notes: NoteArray, ticks_per_beat: int, bar_starts: IntArray) -> IntArray:
    notes = sort_notes(notes)
    onset, pitch = notes["onset"], notes["pitch"]
    counts = np.zeros((_NUM_TIMES, 2 * MAX_INTERVAL + 1), np.int64)
    # Each note with the next one, the one after that, …: memory stays that of the notes.
    for step in range(1, len(notes)):
        lag = onset[step:] - onset[:-step]
        near = lag < BAR_BEATS * ticks_per_beat
        if not near.any():
            break
        interval = pitch[step:] - pitch[:-step]
        near &= abs(interval) <= MAX_INTERVAL
        lag, interval = lag[near], interval[near]
        together = lag == 0
        lag = np.concatenate([lag, lag[together]]) * BINS_PER_BEAT // ticks_per_beat
        interval = np.concatenate([interval, -interval[together]]) + MAX_INTERVAL
        counts += _histogram(lag, interval, 2 * MAX_INTERVAL + 1)
    return counts


def _position(notes: NoteArray, ticks_per_beat: int, bar_starts: IntArray) -> IntArray:
    """Onsets in the bar [num_notes], in sixths of a beat."""
    onset = notes["onset"]
    in_bar = onset - bar_starts[np.searchsorted(bar_starts, onset, side="right") - 1]
    return in_bar % (BAR_BEATS * ticks_per_beat) * BINS_PER_BEAT // ticks_per_beat


def _histogram(rows: IntArray, columns: IntArray, num_columns: int) -> IntArray:
    cells = np.bincount(rows * num_columns + columns, minlength=_NUM_TIMES * num_columns)
    return cells.reshape(_NUM_TIMES, num_columns)


def _compare(a: dict[str, FloatArray], b: dict[str, FloatArray]) -> dict[str, float]:
    return {
        name: _cosine(a[name], b[name]) if name in a and name in b else np.nan
        for name in sorted(a.keys() | b.keys())
    }


def _cosine(a: FloatArray, b: FloatArray) -> float:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return min(1.0, float(np.vdot(a, b)) / norm) if norm else np.nan


def _mean(similarities: dict[str, float]) -> float:
    known = [value for value in similarities.values() if not np.isnan(value)]
    return float(np.mean(known)) if known else np.nan


@dataclass(frozen=True)
class _Statistic:
    count: Callable[[NoteArray, int, IntArray], IntArray]
    pitched: bool = True
    drums: bool = False


_STATISTICS: dict[Profile, _Statistic] = {
    "onset_duration": _Statistic(_onset_duration),
    "time_pitch": _Statistic(_time_pitch),
    "onset_velocity": _Statistic(_onset_velocity, drums=True),
    "onset_drum": _Statistic(_onset_drum, pitched=False, drums=True),
}
