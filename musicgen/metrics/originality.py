"""Originality: the longest match of a piece with a collection of pieces, in any transposition.

The notes of all pitched tracks, sorted by onset and then by pitch, give a sequence of steps. A step
is the interval in semitones and the time on a grid from one note to the next. A match is a sequence
of equal steps. Key, place in the bar, durations, velocities and instruments may differ. Drums are
left out. An additional note in between ends a match: a copied melody with another accompaniment is
not found.

Matches are searched in a suffix array (Manber & Myers 1993), built by prefix doubling. Copies of
whole pieces in a corpus are found by `musicgen.data.preparation.splits`, without such an index.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import Score, pitched_notes
from musicgen.midi.score import IntArray
from musicgen.text import pluralize

GRID = 24  # grid steps in a quarter note

_PITCHES = 128
_SYMBOL = np.dtype(">u4")  # big-endian: bytes compare like numbers

Notes = IntArray
"""Onset in grid steps and pitch of each note, sorted by onset and then by pitch: [N, 2]."""


class Match(NamedTuple):
    """The longest sequence of notes that a piece shares with a collection."""

    num_notes: int  # two or more; 0 if there is no match
    num_piece_notes: int  # number of all notes of the piece
    first_beat: float = 0  # beat of the piece at which the first note of the match begins
    last_beat: float = 0  # beat of the piece at which its last note begins
    source: str = ""  # name of the first piece of the collection with the match
    source_bar: int = 0  # bar, from 1, at which the match begins in this piece
    transposition: int = 0  # semitones from the source to the piece
    num_sources: int = 0  # number of pieces of the collection with the match

    @property
    def description(self) -> str:
        """Where in the collection the match is, in words."""
        if not self.num_notes:
            return "none"
        key = "in the same key"
        if self.transposition:
            direction = "higher" if self.transposition > 0 else "lower"
            key = f"{pluralize(abs(self.transposition), 'semitones')} {direction}"
        others = f", and in {self.num_sources - 1:,} more" if self.num_sources > 1 else ""
        return f"{self.source} from bar {self.source_bar}, {key}{others}"


def match_notes(score: Score) -> Notes:
    """Return the notes of all pitched tracks; notes with the same onset and pitch count once."""
    notes = pitched_notes(score)
    onset = (2 * GRID * notes["onset"] + score.ticks_per_beat) // (2 * score.ticks_per_beat)
    return np.stack(np.divmod(np.unique(onset * _PITCHES + notes["pitch"]), _PITCHES), axis=1)


class MatchIndex:
    """An index of a collection of pieces, in which matches are searched.

    Args:
        pieces: notes of each piece, by its name.
        bar_at: returns the bar, from 1, for the name of a piece and an onset in grid steps.
    """

    def __init__(self, pieces: Mapping[str, Notes], bar_at: Callable[[str, int], int]) -> None:
        self.names, self.bar_at = list(pieces), bar_at
        self._notes = np.concatenate([np.empty((0, 2), np.int64), *pieces.values()])
        lengths = [len(notes) for notes in pieces.values()]
        self._starts = np.append(0, np.cumsum(lengths)).astype(np.int64)
        # One step per note. The last note of a piece has the step −1, which matches nothing.
        steps = [np.append(_steps(notes), -1) for notes in pieces.values() if len(notes)]
        joined = np.concatenate([np.empty(0, np.int64), *steps])
        self._alphabet, text = np.unique(joined, return_inverse=True)
        self._suffixes = suffix_array(text, max(lengths, default=0))
        self._text = text.astype(_SYMBOL).tobytes()

    def longest_match(self, notes: Notes) -> Match:
        """Return the longest match of `notes`; of several equally long ones, the first."""
        steps = _steps(notes)
        symbols = np.searchsorted(self._alphabet, steps)
        known = np.append(self._alphabet, -1)[symbols] == steps
        query = np.where(known, symbols, len(self._alphabet)).astype(_SYMBOL).tobytes()
        size, length, first = _SYMBOL.itemsize, 0, 0
        for start in range(len(steps)):
            # Only sequences that are longer than the best one are searched.
            while start + length < len(steps) and len(
                self._places(query[size * start : size * (start + length + 1)])
            ):
                length, first = length + 1, start
        if not length:
            return Match(0, len(notes))
        found = self._places(query[size * first : size * (first + length)])
        pieces = np.searchsorted(self._starts, found, side="right") - 1
        source = self.names[int(pieces.min())]
        source_onset, source_pitch = self._notes[found.min()].tolist()
        return Match(
            num_notes=length + 1,
            num_piece_notes=len(notes),
            first_beat=int(notes[first, 0]) / GRID,
            last_beat=int(notes[first + length, 0]) / GRID,
            source=source,
            source_bar=self.bar_at(source, source_onset),
            transposition=int(notes[first, 1]) - source_pitch,
            num_sources=len(np.unique(pieces)),
        )

    def _places(self, steps: bytes) -> IntArray:
        """Return the indices of the notes at which a sequence of steps begins."""

        def text_at(place: int) -> bytes:
            start = _SYMBOL.itemsize * place
            return self._text[start : start + len(steps)]

        low = bisect_left(self._suffixes, steps, key=text_at)
        return self._suffixes[low : bisect_right(self._suffixes, steps, low, key=text_at)]


def suffix_array(text: NDArray[np.integer], length: int) -> IntArray:
    """Return the first indices of the suffixes of a text, in lexicographic order: [N].

    Args:
        text: [N] symbols 0, 1, …, all of which occur.
        length: suffixes are compared by at least this many symbols.
    """
    rank = text + 1
    order = np.argsort(rank, kind="stable")
    compared = 1
    while compared < length and rank.max(initial=0) < len(text):
        # Ranks by the first `compared` symbols give ranks by twice as many.
        after = np.zeros_like(rank)
        after[:-compared] = rank[compared:]
        key = rank * (len(text) + 1) + after
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        rank[order] = np.cumsum(np.append(True, ordered[1:] != ordered[:-1]))
        compared *= 2
    return order


def _steps(notes: Notes) -> IntArray:
    """Return a number for the time and the interval from each note to the next: [N − 1], ≥ 0."""
    time, interval = np.diff(notes, axis=0).T
    return time * 2 * _PITCHES + interval + _PITCHES
