"""Find the same music under different names, in any key.

A passage is 16 beats of a piece's notes; passages start every 4 beats, from the first note on. It
consists of onsets in sixteenths and pitches above its lowest, so that key, tempo, resolution,
velocities, durations, track names and initial silence do not matter. Pieces are compared by the
share of passages that they have in common (Jaccard index), estimated from the 32 smallest hashes of
each (bottom-k sketch: Cohen & Kaplan 2007, "Summarizing data using bottom-k sketches").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from musicgen.midi import NOTE, Score

SKETCH_SIZE = 32
NO_PASSAGE = np.iinfo(np.uint64).max
"""Padding in the sketch of a piece with fewer passages."""

SAME_MUSIC = 0.5
"""Share of common passages from which two pieces are the same; a changed note changes four."""

# A passage with fewer notes, or in more pieces, does not identify a piece.
_MIN_NOTES = 8
_MAX_PIECES = 64
_SHARE = 4_000_000  # hashes compared at once
_STEPS_PER_BEAT, _FRAME, _FRAMES = 4, 16, 4

Sketches = NDArray[np.uint64]


def sketch(score: Score) -> Sketches:
    """Return the smallest hashes of a piece's passages, ascending. [SKETCH_SIZE]."""
    notes = np.concatenate([np.empty(0, NOTE), *(track.notes for track in score.tracks)])
    drums = [np.full(len(track.notes), track.is_drum) for track in score.tracks]
    is_drum = np.concatenate([np.empty(0, bool), *drums])
    step = np.rint(notes["onset"] * _STEPS_PER_BEAT / score.ticks_per_beat).astype(np.int64)
    step -= step.min(initial=np.iinfo(np.int64).max)
    code = np.unique((step * 2 + is_drum) * 128 + np.clip(notes["pitch"], 0, 127))
    step, rest = np.divmod(code, 256)
    is_drum, pitch = rest >= 128, rest % 128

    # Passage p contains the frames p to p + 3: each note is in four passages.
    frame, in_frame = np.divmod(step, _FRAME)
    first_frames = np.unique(np.concatenate([frame - back for back in range(_FRAMES)]))
    passage = np.concatenate([np.searchsorted(first_frames, frame - b) for b in range(_FRAMES)])
    offset = np.concatenate([in_frame + b * _FRAME for b in range(_FRAMES)])
    is_drum, pitch = np.tile(is_drum, _FRAMES), np.tile(pitch, _FRAMES)
    lowest = np.full(len(first_frames), 128)
    np.minimum.at(lowest, passage[~is_drum], pitch[~is_drum])
    relative = np.where(is_drum, 128 + pitch, pitch - lowest[passage])

    total = np.zeros(len(first_frames), np.uint64)
    np.add.at(total, passage, _hash((offset * 256 + relative).astype(np.uint64)))
    hashes = np.unique(total[np.bincount(passage, minlength=len(first_frames)) >= _MIN_NOTES])
    return np.append(hashes, np.full(SKETCH_SIZE, NO_PASSAGE))[:SKETCH_SIZE]


def _hash(values: Sketches) -> Sketches:
    """Hash each value to 64 bits, by the finaliser of SplitMix64."""
    values = (values + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def similarity(one: Sketches, other: Sketches) -> float:
    """Estimate the share of common passages; 0 if a piece has none."""
    union = np.union1d(one, other)
    smallest = union[union < NO_PASSAGE][:SKETCH_SIZE]
    both = np.isin(smallest, one) & np.isin(smallest, other)
    return float(both.mean()) if len(smallest) else 0.0


def find_duplicates(sketches: Sketches, order: Sequence[int] | None = None) -> list[int]:
    """Return for each piece the index of the first one of the same music, which may be itself.

    The relation is transitive: if b is the same as a, and c as b, so is c.
    [num_pieces, SKETCH_SIZE] -> [num_pieces], or [len(order)].

    Args:
        order: indices of the pieces that are compared, from the first on.
    """
    pieces = np.arange(len(sketches))
    compared = pieces if order is None else np.asarray(order)
    # Equal sketches need no comparison, and are compared with the others once.
    whole = np.zeros(len(sketches), np.uint64)
    for column in range(SKETCH_SIZE):
        whole += _hash(sketches[:, column] + np.uint64(column))
    _, leaders, members = np.unique(whole, return_index=True, return_inverse=True)
    pairs = [(pieces, np.where(sketches[:, 0] == NO_PASSAGE, pieces, leaders[members]))]
    for one, other in _candidates(sketches, np.isin(pieces, leaders)):
        if similarity(sketches[one], sketches[other]) >= SAME_MUSIC:
            pairs.append((np.array([one]), np.array([other])))
    edges = np.concatenate(pairs, axis=1)
    graph = coo_array((np.ones(edges.shape[1]), tuple(edges)), shape=2 * (len(sketches),))
    _, labels = connected_components(graph, directed=False)
    _, first, group = np.unique(labels[compared], return_index=True, return_inverse=True)
    return compared[first[group]].tolist()


def _candidates(sketches: Sketches, compared: NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    """Return the pairs of compared pieces that share a rare passage."""
    # In shares of the hashes, so that memory stays small.
    num_shares = 1 + sketches.size // _SHARE
    shares = np.empty(sketches.shape, np.uint16)
    for column, values in enumerate(sketches.T):
        usable = compared & (values != NO_PASSAGE)
        shares[:, column] = np.where(usable, values % np.uint64(num_shares), num_shares)
    pairs: set[tuple[int, int]] = set()
    for share in range(num_shares):
        pieces, columns = np.nonzero(shares == share)
        values = sketches[pieces, columns]
        order = np.argsort(values, kind="stable")
        values, pieces = values[order], pieces[order]
        begins = np.flatnonzero(np.diff(values, prepend=NO_PASSAGE))
        counts = np.diff(begins, append=len(values))
        shared = (counts > 1) & (counts <= _MAX_PIECES)
        for begin, count in zip(begins[shared], counts[shared], strict=True):
            pairs.update(combinations(pieces[begin : begin + count].tolist(), 2))
    return sorted(pairs)
