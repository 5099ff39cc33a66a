"""Donors: notes of a prompt whose performance new notes copy."""

import numpy as np
from numpy.typing import NDArray

from musicgen.midi.score import FloatArray, IntArray

WEIGHTS = {
    "part": 30.0,  # another one
    "bar": 1.0,  # from the bar that is taken as the model
    "position": 2.0,  # another one in the bar
    "subdivision": 4.0,  # quarters between the places in the beat
    "downbeat": 2.0,  # only one is on it
    "chord": 4.0,  # a chord after a single note
    "size": 0.5,  # the number of notes
    "length": 1.0,  # octaves between the lengths of the longest notes
    "top": 1 / 12,  # semitones between the highest notes
    "bottom": 1 / 24,  # semitones between the lowest notes
}
"""How unlike two groups are: the sum of their differences, each times its weight."""

LIMITS = {"bars": 4, "notes": 4, "octaves": 3}
"""The largest differences that count. The composing page has the same weights and limits."""

DONOR_BARS = 32
"""Donors are taken from so many last bars of a prompt."""

LONGEST_ARTICULATION = 1.5
"""What rounding to the grid can take from a note of one step."""

MOST_MOVED = 0.4
"""Notes move by less than this share of the way to the next ones, so that none begin together."""

SAME_POSITION = 1e-3
"""In quarters: positions that are nearer are equal."""

_RANDOM = 0.5  # added to each difference at most, so that the donor varies
_MOST_CELLS = 2**18  # of a matrix of distances, which bounds the memory for long pieces

PLAYED_NOTE = np.dtype(
    [
        ("part", "i8"),
        ("bar", "i8"),
        ("position", "f8"),
        ("pitch", "i8"),
        ("length", "f8"),
        ("velocity", "i8"),
        ("deviation", "f8"),
        ("articulation", "f8"),
        ("sustain", "f8"),
    ]
)
"""A note on the grid, and how it is played.

A part is a track, or one pitch of a track of drums. The position in the bar, the length, and the
deviation of the onset from the grid are in quarters. The articulation is the played length as a
multiple of the length on the grid. The sustain is the same as a multiple of the time to the next
onset of the part, if most notes of the piece outlast that, as with a pedal; else 0.
"""


class Groups:
    """The notes that begin together in each part, on the grid.

    Attributes:
        notes: `PLAYED_NOTE` array by part, bar and position, the highest of a group first. [N]
        order: the indices of these notes in the array that they were found in. [N]
        first: index of each group's first note. [G]
        size: number of each group's notes. [G]
    """

    def __init__(self, notes: NDArray[np.void]) -> None:
        """Find the groups of `PLAYED_NOTE`s; there must be at least one note. [N]"""
        self.order = np.lexsort((-notes["pitch"], notes["position"], notes["bar"], notes["part"]))
        self.notes = notes[self.order]
        changes = [np.diff(self.notes[name]) != 0 for name in ("part", "bar")]
        changes.append(np.diff(self.notes["position"]) > SAME_POSITION)
        self.first = np.append(0, 1 + np.flatnonzero(np.any(changes, axis=0)))
        self.size = np.diff(np.append(self.first, len(notes)))

    @property
    def group(self) -> IntArray:
        """The group of each note. [N]"""
        return np.repeat(np.arange(len(self.first)), self.size)

    def features(self) -> NDArray[np.void]:
        """Return what groups are compared by: each one's highest note, with the longest length."""
        features = self.notes[self.first].copy()
        features["length"] = np.maximum.reduceat(self.notes["length"], self.first)
        return features

    def lowest(self) -> IntArray:
        """Return the lowest pitch of each group. [G]"""
        return self.notes["pitch"][self.first + self.size - 1]


def find_donors(
    new: Groups, old: Groups, models: IntArray, rng: np.random.Generator
) -> NDArray[np.void]:
    """Return the donors of new notes. [N]

    All notes of a group have their donors in one group: the highest, the lowest, and inner ones.
    The highest note of several is a melody; only the highest note takes after it.

    Args:
        new: with part, bar, position, pitch and length.
        old: those of the prompt.
        models: the bar of the prompt that each new bar is played like, if it has similar notes.
    """
    num_rows = max(1, _MOST_CELLS // len(old.first))
    rows = np.split(np.arange(len(new.first)), np.arange(num_rows, len(new.first), num_rows))
    chosen = np.concatenate([_nearest(new, old, models, each, rng) for each in rows])
    group = new.group
    rank = np.arange(len(group)) - new.first[group]
    from_top = rank / np.maximum(new.size[group] - 1, 1)
    size = old.size[chosen][group]
    place = np.rint(from_top * (size - 1)).astype(np.int64)
    is_inner = (from_top > 0) & (from_top < 1)
    place = np.where(is_inner, np.clip(place, 1, np.maximum(size - 2, 1)), place)
    donor = old.first[chosen][group] + np.minimum(place, size - 1)
    donors = np.empty(len(group), PLAYED_NOTE)
    donors[new.order] = old.notes[donor]
    return donors


def _nearest(
    new: Groups, old: Groups, models: IntArray, rows: IntArray, rng: np.random.Generator
) -> IntArray:
    """Return the most similar old group of some of the new ones. [R]"""
    a, b = new.features()[rows], old.features()

    def difference(x: NDArray[np.number], y: NDArray[np.number]) -> FloatArray:
        return np.abs(np.subtract.outer(x.astype(np.float64), y.astype(np.float64)))

    between = difference(a["position"], b["position"])
    in_beat = difference(a["position"] % 1, b["position"] % 1)
    in_beat = np.minimum(in_beat, 1 - in_beat)  # in quarters, at most a half
    from_model = difference(models[a["bar"]], b["bar"])
    size = difference(new.size[rows], old.size)
    length = difference(np.log2(a["length"]), np.log2(b["length"]))
    only_one_downbeat = (a["position"] < SAME_POSITION)[:, None] != (b["position"] < SAME_POSITION)
    distance = WEIGHTS["part"] * (difference(a["part"], b["part"]) > 0)
    distance += WEIGHTS["bar"] * np.minimum(from_model, LIMITS["bars"])
    distance += WEIGHTS["position"] * (between > SAME_POSITION) + WEIGHTS["subdivision"] * in_beat
    distance += WEIGHTS["downbeat"] * only_one_downbeat
    is_chord_after_note = np.logical_and.outer(new.size[rows] > 1, old.size == 1)
    distance += WEIGHTS["chord"] * is_chord_after_note
    distance += WEIGHTS["size"] * np.minimum(size, LIMITS["notes"])
    distance += WEIGHTS["length"] * np.minimum(length, LIMITS["octaves"])
    distance += WEIGHTS["top"] * difference(a["pitch"], b["pitch"])
    distance += WEIGHTS["bottom"] * difference(new.lowest()[rows], old.lowest())
    distance += _RANDOM * rng.random(distance.shape)
    return distance.argmin(axis=1)
