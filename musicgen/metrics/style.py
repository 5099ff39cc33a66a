"""Style similarity of two pieces: cosine similarity of note histograms, track by track.

Cífka et al. 2019 ("Supervised symbolic music style translation") and 2020 ("Groove2Groove");
used for continuations by Liutkus et al. 2021 ("Relative positional encoding for Transformers
with linear complexity", section 3.3 and appendix C.2).

Times are binned in integer ticks: with floats, a sixth of the times on a bin's edge would fall into
the bin below.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import NoteArray, Score, sort_notes
from musicgen.validation import check_choice

Profile = Literal["onset_duration", "time_pitch", "onset_velocity", "onset_drum"]

BINS_PER_BEAT = 6
BAR_BEATS = 4  # range of onsets in the bar and of time lags: [0, 4) beats
MAX_DURATION_BEATS = 2
MAX_INTERVAL = 20  # semitones, up or down
VELOCITY_BINS = 8

_NUM_TIMES = BAR_BEATS * BINS_PER_BEAT

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def style_similarity(score_a: Score, score_b: Score, profile: Profile = "onset_duration") -> float:
    """Compute the mean similarity of two pieces' common tracks, in [0, 1]; NaN without any."""
    return _mean(track_similarities(score_a, score_b, profile))


def track_similarities(
    score_a: Score, score_b: Score, profile: Profile = "onset_duration"
) -> dict[str, float]:
    """Compute the cosine similarity of each track, by name.

    It is NaN if either piece lacks the track or its histogram is empty: MIDI files do not
    distinguish empty tracks from missing ones.
    """
    return _compare(style_profiles(score_a, profile), style_profiles(score_b, profile))


def chunked_style_similarity(
    continuation: Score, reference: Score, profile: Profile = "onset_duration", num_chunks: int = 4
) -> list[float]:
    """Compute the similarity of each of `num_chunks` equally long chunks to all of `reference`.

    A note belongs to the chunk [start, end) of its onset, and keeps its position in the bar.

    Args:
        continuation: the generated part alone, with a bar line at tick 0.
        reference: the prompt, or the piece it was taken from.
    """
    target = style_profiles(reference, profile)
    edges = [-(-k * continuation.end // num_chunks) for k in range(num_chunks + 1)]  # rounded up
    return [
        _mean(_compare(style_profiles(continuation, profile, chunk), target))
        for chunk in pairwise(edges)
    ]


def style_profiles(
    score: Score, profile: Profile = "onset_duration", ticks: tuple[int, int] | None = None
) -> dict[str, FloatArray]:
    """Compute a normalised histogram of notes for each track name.

    - `onset_duration` [24, 12]: onset in the bar × duration, in sixths of a beat. Durations above
      2 beats are dropped; 2 beats count in the last bin. Without drums.
    - `time_pitch` [24, 41]: for every ordered pair of notes less than 4 beats apart, time lag in
      sixths of a beat × interval from -20 to 20 semitones; simultaneous pairs count both ways.
      Without drums.
    - `onset_velocity` [24, 8]: onset in the bar × velocity in steps of 16.
    - `onset_drum` [24, 128]: onset in the bar × drum. Drums only.

    Bars follow the score's time signatures (4/4 by default); the fifth beat of a bar counts as the
    first, and so on. Tracks of the same name are summed. A histogram sums to 1, or to 0 if empty.

    Args:
        ticks: include only notes with onsets in [start, end).
    """
    check_choice("profile", profile, get_args(Profile))
    bar_starts = score.bar_starts()
    counts: dict[str, IntArray] = {}
    for track in score.tracks:
        if profile != "onset_velocity" and track.is_drum != (profile == "onset_drum"):
            continue
        notes = track.notes
        if ticks is not None:
            notes = notes[(notes["onset"] >= ticks[0]) & (notes["onset"] < ticks[1])]
        if profile == "time_pitch":
            count = _time_pitch(notes, score.ticks_per_beat)
        else:
            count = _onset_histogram(profile, notes, score.ticks_per_beat, bar_starts)
        counts[track.name] = counts.get(track.name, 0) + count
    return {name: count / max(1, count.sum()) for name, count in counts.items()}


def _onset_histogram(
    profile: Profile, notes: NoteArray, ticks_per_beat: int, bar_starts: IntArray
) -> IntArray:
    if profile == "onset_duration":
        notes = notes[notes["duration"] <= MAX_DURATION_BEATS * ticks_per_beat]
        num_columns = MAX_DURATION_BEATS * BINS_PER_BEAT
        duration = notes["duration"] * BINS_PER_BEAT // ticks_per_beat
        columns = np.minimum(duration, num_columns - 1)
    elif profile == "onset_velocity":
        columns, num_columns = notes["velocity"] * VELOCITY_BINS // 128, VELOCITY_BINS
    else:
        columns, num_columns = notes["pitch"], 128
    onset = notes["onset"]
    in_bar = onset - bar_starts[np.searchsorted(bar_starts, onset, side="right") - 1]
    rows = in_bar % (BAR_BEATS * ticks_per_beat) * BINS_PER_BEAT // ticks_per_beat
    return _histogram(rows, columns, num_columns)


def _time_pitch(notes: NoteArray, ticks_per_beat: int) -> IntArray:
    notes = sort_notes(notes)
    onset, pitch = notes["onset"], notes["pitch"]
    counts = np.zeros((_NUM_TIMES, 2 * MAX_INTERVAL + 1), np.int64)
    # Pair each note with the next one, the one after that, …: memory stays linear.
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
    return mean_of_valid(np.array(list(similarities.values())))
