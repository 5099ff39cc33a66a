"""Find the same music under different names, in any key.

A passage is 16 beats of a piece's notes; passages start every 4 beats, from the first note on. It
consists of onsets in sixteenths and pitches above its lowest, so that key, tempo, resolution,
velocities, durations, track names and initial silence do not matter. Pieces are compared by the
share of passages that they have in common (Jaccard index), estimated from the 32 smallest hashes of
each (bottom-k sketch: Cohen & Kaplan 2007, "Summarizing data using bottom-k sketches").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import NOTE, Score

SKETCH_SIZE = 32
NO_PASSAGE = np.iinfo(np.uint64).max
"""Padding in the sketch of a piece with fewer passages."""

SAME_MUSIC = 0.5
"""Share of common passages from which two pieces are the same; a changed note changes four."""

# A passage with fewer notes, or in more pieces, does not identify a piece.
_MIN_NOTES = 8
_MAX_PIECES = 64
_BLOCK = 8192  # sketches read at once
_SHARE = 2**20  # hashes compared at once
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
    np.add.at(total, passage, hash_values((offset * 256 + relative).astype(np.uint64)))
    hashes = np.unique(total[np.bincount(passage, minlength=len(first_frames)) >= _MIN_NOTES])
    return np.append(hashes, np.full(SKETCH_SIZE, NO_PASSAGE))[:SKETCH_SIZE]


def hash_values(values: Sketches) -> Sketches:
    """Hash each value to 64 bits, by the finaliser of SplitMix64."""
    values = (values + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def similarity(ones: Sketches, others: Sketches) -> NDArray[np.float64]:
    """Estimate the share of common passages; 0 if a piece has none. [..., SKETCH_SIZE] -> [...]."""
    hashes = np.sort(np.concatenate([ones, others], axis=-1), axis=-1)
    passages = hashes < NO_PASSAGE
    first = passages & (np.diff(hashes, axis=-1, prepend=NO_PASSAGE) != 0)
    smallest = first.cumsum(axis=-1) <= SKETCH_SIZE
    common = (passages & ~first & smallest).sum(axis=-1)
    return common / np.maximum(1, (first & smallest).sum(axis=-1))


def find_duplicates(sketches: Sketches, order: Sequence[int]) -> list[int]:
    """Return for each piece the index of the first one of the same music, which may be itself.

    The relation is transitive: if b is the same as a, and c as b, so is c.
    [num_pieces, SKETCH_SIZE] -> [len(order)].

    Args:
        order: indices of the pieces that are compared, from the first on.
    """
    pieces, compared = np.arange(len(sketches)), np.asarray(order)
    # Equal sketches need no comparison, and are compared with the others once.
    first_equal = _first_equal(sketches)
    pairs = [np.stack([pieces, first_equal])]
    for found in _candidates(sketches, first_equal == pieces):
        ones, others = (np.stack([sketches[piece] for piece in side]) for side in found)
        pairs.append(found[:, similarity(ones, others) >= SAME_MUSIC])
    edges = np.concatenate(pairs, axis=1)
    from scipy.sparse import coo_array  # slow to import
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(edges.shape[1]), tuple(edges)), shape=2 * (len(sketches),))
    _, labels = connected_components(graph, directed=False)
    _, first, group = np.unique(labels[compared], return_index=True, return_inverse=True)
    return compared[first[group]].tolist()


def _first_equal(sketches: Sketches) -> NDArray[np.int64]:
    """Return for each piece the first one with an equal sketch; itself if it has no passage."""
    whole, empty = np.zeros(len(sketches), np.uint64), np.zeros(len(sketches), bool)
    columns = np.arange(SKETCH_SIZE).astype(np.uint64)
    for rows, block in _blocks(sketches):
        whole[rows] = hash_values(block + columns).sum(axis=1)
        empty[rows] = block[:, 0] == NO_PASSAGE
    _, leaders, members = np.unique(whole, return_index=True, return_inverse=True)
    return np.where(empty, np.arange(len(sketches)), leaders[members])


def _candidates(sketches: Sketches, compared: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """Yield the pairs of compared pieces that share a rare passage, some again. [2, num_pairs]."""
    # In shares of the hashes, a power of two of them, so that memory stays small.
    num_shares = 1 << (len(sketches) * SKETCH_SIZE // _SHARE).bit_length()
    for share in range(num_shares):
        values, pieces = _hashes(sketches, compared, share, num_shares)
        begins = np.flatnonzero(np.diff(values, prepend=NO_PASSAGE))
        counts = np.diff(begins, append=len(values))
        shared = np.repeat((counts > 1) & (counts <= _MAX_PIECES), counts)
        values, pieces = values[shared], pieces[shared]
        codes = np.empty(0, np.int64)
        for distance in range(1, counts.max(where=counts <= _MAX_PIECES, initial=1)):
            equal = values[distance:] == values[:-distance]
            own = pieces[:-distance][equal] * len(sketches) + pieces[distance:][equal]
            codes = np.union1d(codes, own)
        for begin in range(0, len(codes), _BLOCK):
            yield np.stack(np.divmod(codes[begin : begin + _BLOCK], len(sketches)))


def _hashes(
    sketches: Sketches, compared: NDArray[np.bool_], share: int, num_shares: int
) -> tuple[Sketches, NDArray[np.int64]]:
    """Return a share of the hashes of compared pieces, sorted, and their pieces."""
    found = []
    for rows, block in _blocks(sketches):
        usable = compared[rows, None] & (block != NO_PASSAGE)
        usable &= block & np.uint64(num_shares - 1) == share
        found.append((block[usable], rows.start + usable.nonzero()[0]))
    values, pieces = map(np.concatenate, zip(*found, strict=True))
    order = np.argsort(values, kind="stable")
    return values[order], pieces[order]


def _blocks(sketches: Sketches) -> Iterator[tuple[slice, Sketches]]:
    for begin in range(0, len(sketches), _BLOCK):
        block = sketches[begin : begin + _BLOCK]
        yield slice(begin, begin + len(block)), block
