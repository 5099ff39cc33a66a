"""The same music under two names, found by passages that sound alike in whatever key.

A passage is 4 beats × 4 of a piece's notes, from its first note on in steps of 4 beats: onsets in
sixteenths, pitches above the passage's lowest. So neither key, tempo, resolution, velocities,
durations, track names nor a silence in front matter. Pieces are compared by the share of passages
that they have in common (Jaccard index), estimated from the 32 smallest hashes of each (bottom-k
sketch: Cohen & Kaplan 2007, "Summarizing data using bottom-k sketches").
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import NOTE, Score

SKETCH_SIZE = 32
NO_PASSAGE = np.iinfo(np.uint64).max
"""Fills the sketch of a piece with fewer passages."""

SAME_MUSIC = 0.5
"""Share of common passages from which two pieces are the same: a changed note changes four."""

# A passage of fewer notes, or one found in more pieces, says little about a piece.
_FEWEST_NOTES = 8
_MOST_PIECES = 64
_STEPS_PER_BEAT, _FRAME, _FRAMES = 4, 16, 4

Sketches = NDArray[np.uint64]


def sketch(score: Score) -> Sketches:
    """The smallest hashes of a piece's passages, ascending. [SKETCH_SIZE]."""
    notes = [track.notes for track in score.tracks]
    drums = [np.full(len(track.notes), track.is_drum) for track in score.tracks]
    columns = np.concatenate([np.empty(0, NOTE), *notes])
    step = np.rint(columns["onset"] * _STEPS_PER_BEAT / score.ticks_per_beat).astype(np.int64)
    is_drum = np.concatenate([np.empty(0, bool), *drums])
    step -= step.min(initial=np.iinfo(np.int64).max)
    code = np.unique((step * 2 + is_drum) * 128 + np.clip(columns["pitch"], 0, 127))
    step, rest = np.divmod(code, 256)
    is_drum, pitch = rest >= 128, rest % 128

    # Passage p holds the frames p to p + 3: each note is in four passages.
    frame, in_frame = np.divmod(step, _FRAME)
    begins = np.unique(np.concatenate([frame - back for back in range(_FRAMES)]))
    passage = np.concatenate([np.searchsorted(begins, frame - b) for b in range(_FRAMES)])
    place = np.concatenate([in_frame + b * _FRAME for b in range(_FRAMES)])
    is_drum, pitch = np.tile(is_drum, _FRAMES), np.tile(pitch, _FRAMES)
    lowest = np.full(len(begins), 128)
    np.minimum.at(lowest, passage[~is_drum], pitch[~is_drum])
    relative = np.where(is_drum, 128 + pitch, pitch - lowest[passage])

    total = np.zeros(len(begins), np.uint64)
    np.add.at(total, passage, _mixed((place * 256 + relative).astype(np.uint64)))
    found = np.unique(total[np.bincount(passage, minlength=len(begins)) >= _FEWEST_NOTES])
    return np.append(found, np.full(SKETCH_SIZE, NO_PASSAGE))[:SKETCH_SIZE]


def _mixed(values: Sketches) -> Sketches:
    """A fixed random 64-bit number for each value: the finaliser of SplitMix64."""
    values = (values + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def similarity(one: Sketches, other: Sketches) -> float:
    """Estimated share of passages in common; 0 where a piece has none."""
    union = np.union1d(one, other)
    smallest = union[union < NO_PASSAGE][:SKETCH_SIZE]
    both = np.isin(smallest, one) & np.isin(smallest, other)
    return float(both.mean()) if len(smallest) else 0.0


def find_duplicates(sketches: Sketches) -> list[int]:
    """For each piece, the first of those that are the same music, itself included.

    "The same" is passed on: if b is the same as a, and c as b, so is c.

    Args:
        sketches: of the pieces. [num_pieces, SKETCH_SIZE]
    """
    first = list(range(len(sketches)))

    def find(piece: int) -> int:
        while first[piece] != piece:
            first[piece] = piece = first[first[piece]]
        return piece

    def join(one: int, other: int) -> None:
        low, high = sorted((find(one), find(other)))
        first[high] = low

    # Equal sketches are the same at once, and are compared with the others once.
    rows, leaders, members = np.unique(sketches, axis=0, return_index=True, return_inverse=True)
    for piece, row in enumerate(members.ravel().tolist()):
        if rows[row, 0] != NO_PASSAGE:
            join(int(leaders[row]), piece)
    for one, other in _candidates(rows):
        if similarity(rows[one], rows[other]) >= SAME_MUSIC:
            join(int(leaders[one]), int(leaders[other]))
    return [find(piece) for piece in range(len(sketches))]


def _candidates(sketches: Sketches) -> Iterable[tuple[int, int]]:
    """Pairs of pieces that share a passage which few have."""
    values = sketches.ravel()
    pieces = np.repeat(np.arange(len(sketches)), SKETCH_SIZE)
    order = np.argsort(values, kind="stable")
    values, pieces = values[order], pieces[order]
    edges = np.flatnonzero(np.diff(values, prepend=NO_PASSAGE, append=NO_PASSAGE))
    pairs: set[tuple[int, int]] = set()
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if 1 < end - begin <= _MOST_PIECES and values[begin] != NO_PASSAGE:
            pairs.update(combinations(pieces[begin:end].tolist(), 2))
    return sorted(pairs)
