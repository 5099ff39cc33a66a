"""Style similarity of two pieces: the cosine similarity of note histograms, role by role.

1 means that both pieces distribute their notes in the same way, and 0 that their histograms have
nothing in common. An onset-duration similarity of 0.7 results, for example, if a piece uses half of
the other piece's combinations of onset and duration and no others, all equally often.

The measure is by Cífka et al. 2019 ("Supervised symbolic music style translation") and 2020
("Groove2Groove"). Liutkus et al. 2021 use it for continuations (section 3.3 and appendix C.2).
Times are binned in integer ticks: with floats, a sixth of the times on the edge of a bin would be
in the bin below.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Literal, get_args

import numpy as np

from musicgen.metrics.intervals import mean_of_valid
from musicgen.midi import DRUMS, NoteArray, Score, notes_by_role, sort_notes
from musicgen.midi.score import FloatArray, IntArray

Profile = Literal["onset_duration", "time_pitch", "onset_velocity", "onset_drum"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
SIMILARITIES: dict[Profile, str] = {
    profile: f"{profile.replace('_', '-')} similarity" for profile in PROFILES
}
"""Names of the similarities in tables and reports, such as "onset-duration similarity"."""

BINS_PER_BEAT = 6
BAR_BEATS = 4  # onsets in the bar and time lags are in [0, 4) beats
MAX_DURATION_BEATS = 2
MAX_INTERVAL = 20  # semitones, up or down
VELOCITY_BINS = 8
UNRELATED, SAME_PIECE = ANCHORS = ("unrelated pieces", "same piece")
NUM_UNRELATED = 4

_NUM_TIMES = BAR_BEATS * BINS_PER_BEAT
_IN_NAME = re.compile(r"[^./]+\.(.+_[^_]+)\.midi?", re.IGNORECASE)

Profiles = Mapping[str, FloatArray]
"""Histograms by role."""


def style_similarity(music: Score, reference: Score, profile: Profile = "onset_duration") -> float:
    """Return the mean similarity of the roles that both pieces have, 0–1; NaN if there are none."""
    return mean_similarity(style_profiles(music, profile), style_profiles(reference, profile))


def style_profiles(
    music: Score, profile: Profile = "onset_duration", chunk: tuple[int, int] = (0, 1)
) -> Profiles:
    """Return a normalised histogram of the notes of each role (`musicgen.midi.role`).

    - `onset_duration` [24, 12]: onset in the bar × duration, in sixths of a beat. Notes longer than
      2 beats are left out; 2 beats are in the last bin. No drums.
    - `time_pitch` [24, 41]: time lag in sixths of a beat × interval from −20 to 20 semitones, over
      all ordered pairs of notes less than 4 beats apart. Simultaneous notes are two pairs. No
      drums.
    - `onset_velocity` [24, 8]: onset in the bar × velocity in steps of 16. It is empty if all
      velocities are equal.
    - `onset_drum` [24, 128]: onset in the bar × drum. Drums only.

    Bars follow the time signatures of the score (4/4 by default). The fifth beat of a bar counts as
    the first, and so on. A histogram sums to 1, or to 0 if it is empty.

    The notes of all tracks of a role are pooled before pairs are formed, as style does not depend
    on whether a file has one track for a piano or two for its hands.

    Args:
        music: the piece.
        profile: the kind of histogram.
        chunk: `(k, n)` for the k-th (from 0) of n equally long chunks of the piece. A note belongs
            to the chunk [start, end) of its onset, and keeps its position in the bar.
    """
    profiles: dict[str, FloatArray] = {}
    edges = [-(-k * music.end // chunk[1]) for k in (chunk[0], chunk[0] + 1)]  # rounded up
    for name, notes in notes_by_role(music).items():
        if profile != "onset_velocity" and (name == DRUMS) != (profile == "onset_drum"):
            continue
        if chunk != (0, 1):
            notes = notes[(notes["onset"] >= edges[0]) & (notes["onset"] < edges[1])]
        if profile == "time_pitch":
            count = _time_pitch(notes, music.ticks_per_beat)
        else:
            count = _onset_histogram(profile, notes, music.ticks_per_beat, music.bar_starts())
        profiles[name] = count / max(1, count.sum())
    return profiles


def role_similarities(profiles: Profiles, reference: Profiles) -> dict[str, float]:
    """Return the cosine similarity of the histograms of each role.

    It is NaN if one of them is missing or empty, as MIDI files do not distinguish an empty track
    from a missing one.
    """
    similarities = {}
    for name in sorted(profiles.keys() | reference.keys()):
        a, b = (each.get(name, np.zeros(1)) for each in (profiles, reference))
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        similarities[name] = min(1.0, float(np.vdot(a, b)) / norm) if norm else np.nan
    return similarities


def mean_similarity(profiles: Profiles, reference: Profiles) -> float:
    """Return the mean similarity of the roles that both pieces have; NaN if there are none."""
    return mean_of_valid([*role_similarities(profiles, reference).values()])


def style_labels(names: Iterable[str]) -> dict[str, str]:
    """Return the style of each file, by its name.

    The style is `STYLE_x` of a name such as `SONG.STYLE_x.mid`, otherwise the folder. It is "" if
    there is no folder.

    Args:
        names: relative paths with forward slashes.
    """
    labels = {}
    for name in names:
        path = PurePosixPath(name)
        match = _IN_NAME.fullmatch(path.name)
        folder = path.parent.as_posix()
        if match:
            labels[name] = match[1]
        else:
            labels[name] = "" if folder == "." else folder
    return labels


def anchor_similarities(
    parts: Iterable[tuple[str, Score]],
    labels: Mapping[str, str],
    read: Callable[[str], Score | None],
    *,
    seed: int = 0,
) -> dict[Profile, dict[str, list[float]]]:
    """Return style similarities of human music, to compare those of generated music with.

    A part of a piece is treated like a continuation. It is compared with the whole piece (`same
    piece`: the similarity of the composer's continuation) and with pieces of other styles
    (`unrelated pieces`).

    Args:
        parts: names of pieces, each with a part of the piece.
        labels: styles of all pieces that parts may be compared with, by name; "": unknown.
        read: returns the piece with a name, or None to leave it out.
        seed: seed of the random choice of `NUM_UNRELATED` unrelated pieces per part.

    Returns:
        A value per part, by profile and anchor; NaN without such a piece or a common role.
    """
    rng = np.random.default_rng(seed)

    @cache
    def profiles_of(name: str) -> list[Profiles] | None:
        score = read(name)
        return None if score is None else [style_profiles(score, profile) for profile in PROFILES]

    result: dict[Profile, dict[str, list[float]]] = {p: {a: [] for a in ANCHORS} for p in PROFILES}
    for name, part in parts:
        part_profiles = [style_profiles(part, profile) for profile in PROFILES]
        others = [
            other
            for other, label in labels.items()
            if other != name and (not label or label != labels[name])
        ]
        drawn = rng.permutation(others)[:NUM_UNRELATED].tolist()
        for anchor, compared in zip(ANCHORS, (drawn, [name]), strict=True):
            wholes = [whole for other in compared if (whole := profiles_of(other))]
            for index, profile in enumerate(PROFILES):
                values = [mean_similarity(part_profiles[index], whole[index]) for whole in wholes]
                result[profile][anchor].append(mean_of_valid(values))
    return result


def _onset_histogram(
    profile: Profile, notes: NoteArray, ticks_per_beat: int, bar_starts: IntArray
) -> IntArray:
    """Return the counts of a profile with onsets: [24, columns]."""
    if profile == "onset_duration":
        notes = notes[notes["duration"] <= MAX_DURATION_BEATS * ticks_per_beat]
        num_columns = MAX_DURATION_BEATS * BINS_PER_BEAT
        duration = notes["duration"] * BINS_PER_BEAT // ticks_per_beat
        columns = np.minimum(duration, num_columns - 1)
    elif profile == "onset_velocity":
        notes = notes if len(set(notes["velocity"].tolist())) > 1 else notes[:0]
        columns, num_columns = notes["velocity"] * VELOCITY_BINS // 128, VELOCITY_BINS
    else:
        columns, num_columns = notes["pitch"], 128
    onset = notes["onset"]
    in_bar = onset - bar_starts[np.searchsorted(bar_starts, onset, side="right") - 1]
    rows = in_bar % (BAR_BEATS * ticks_per_beat) * BINS_PER_BEAT // ticks_per_beat
    return _histogram(rows, columns, num_columns)


def _time_pitch(notes: NoteArray, ticks_per_beat: int) -> IntArray:
    """Return the counts of the profile `time_pitch`: [24, 41]."""
    notes = sort_notes(notes)
    # Contiguous copies are read faster than the fields of records.
    onset, pitch = notes["onset"].copy(), notes["pitch"].copy()
    num_columns = 2 * MAX_INTERVAL + 1
    counts = np.zeros((_NUM_TIMES, num_columns), np.int64)
    for step in range(1, len(notes)):  # pairs of a note and the one `step` notes later
        lag, interval = onset[step:] - onset[:-step], pitch[step:] - pitch[:-step]
        near = lag < BAR_BEATS * ticks_per_beat
        if not near.any():
            break
        near &= abs(interval) <= MAX_INTERVAL
        lag, interval = lag[near], interval[near]
        rows = lag * BINS_PER_BEAT // ticks_per_beat
        counts += _histogram(rows, MAX_INTERVAL + interval, num_columns)
        together = MAX_INTERVAL - interval[lag == 0]
        counts[0] += np.bincount(together, minlength=num_columns)
    return counts


def _histogram(rows: IntArray, columns: IntArray, num_columns: int) -> IntArray:
    """Return the counts of pairs of a row and a column: [24, num_columns]."""
    cells = np.bincount(rows * num_columns + columns, minlength=_NUM_TIMES * num_columns)
    return cells.reshape(_NUM_TIMES, num_columns)
