"""Splits of a corpus, and duplicates: pieces with the same music, in any key, share a split.

A passage is the notes of 16 beats. Passages start every 4 beats, beginning with the first note.
A passage consists of onsets in sixteenths and of pitches relative to its lowest pitch, so that key,
tempo, resolution, velocities, durations, track names and initial silence do not matter. Pieces are
compared by the share of passages that they have in common (Jaccard index). It is estimated from the
32 smallest hashes of each piece (bottom-k sketch: Cohen & Kaplan 2007, "Summarizing data using
bottom-k sketches").
"""

import hashlib
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from musicgen.data.corpora.base import Piece
from musicgen.midi import Score
from musicgen.midi.score import FloatArray

SKETCH_SIZE = 32
NO_PASSAGE = np.iinfo(np.uint64).max
"""Padding in the sketch of a piece with fewer passages."""

EMPTY_SKETCH = np.full(SKETCH_SIZE, NO_PASSAGE)
"""The sketch of a piece without passages."""

SAME_MUSIC = 0.5
"""Two pieces are the same from this share of common passages. A note is in four passages."""

# A passage with fewer notes than this, or in more pieces, does not identify a piece.
_MIN_NOTES = 8
_MAX_PIECES = 64
_BLOCK = 8192  # pairs compared at once
_STEPS_PER_BEAT, _FRAME, _FRAMES = 4, 16, 4

Sketches = NDArray[np.uint64]


def sketch(score: Score) -> Sketches:
    """Return the smallest hashes of the passages of a piece, ascending: [SKETCH_SIZE]."""
    notes = score.notes
    drums = [np.full(len(track.notes), track.is_drum) for track in score.tracks]
    is_drum = np.concatenate([np.empty(0, bool), *drums])
    step = np.rint(notes["onset"] * _STEPS_PER_BEAT / score.ticks_per_beat).astype(np.int64)
    step -= step.min(initial=np.iinfo(np.int64).max)
    code = np.sort((step * 2 + is_drum) * 128 + np.clip(notes["pitch"], 0, 127))
    code = code[np.diff(code, prepend=-1) > 0]
    step, rest = np.divmod(code, 256)
    is_drum, pitch = rest >= 128, rest % 128

    # Passage p contains the frames p - 3 to p: each note is in four passages.
    frame, in_frame = np.divmod(step, _FRAME)
    num_passages = frame.max(initial=-1) + _FRAMES
    passage = np.concatenate([frame + later for later in range(_FRAMES)])
    offset = np.concatenate([in_frame + b * _FRAME for b in reversed(range(_FRAMES))])
    is_drum, pitch = np.tile(is_drum, _FRAMES), np.tile(pitch, _FRAMES)
    lowest = np.full(num_passages, 128)
    np.minimum.at(lowest, passage[~is_drum], pitch[~is_drum])
    relative = np.where(is_drum, 128 + pitch, pitch - lowest[passage])

    total = np.zeros(num_passages, np.uint64)
    np.add.at(total, passage, hash_values((offset * 256 + relative).astype(np.uint64)))
    hashes = np.unique(total[np.bincount(passage, minlength=num_passages) >= _MIN_NOTES])
    return np.append(hashes, EMPTY_SKETCH)[:SKETCH_SIZE]


def hash_values(values: Sketches) -> Sketches:
    """Return a 64-bit hash of each value, by the finaliser of SplitMix64."""
    values = (values + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def similarity(ones: Sketches, others: Sketches) -> FloatArray:
    """Return the estimated share of common passages: [..., SKETCH_SIZE] -> [...].

    It is 0 if a piece has no passage.
    """
    hashes = np.sort(np.concatenate([ones, others], axis=-1), axis=-1)
    passages = hashes < NO_PASSAGE
    first = passages & (np.diff(hashes, axis=-1, prepend=NO_PASSAGE) != 0)
    smallest = first.cumsum(axis=-1) <= SKETCH_SIZE
    common = (passages & ~first & smallest).sum(axis=-1)
    return common / np.maximum(1, (first & smallest).sum(axis=-1))


def find_duplicates(sketches: Sketches, order: Sequence[int]) -> list[int]:
    """Return the index of the first piece with the same music, per piece in `order`.

    That may be the piece itself. The relation is transitive: if b is the same as a, and c is the
    same as b, then c is the same as a.

    Args:
        sketches: [num_pieces, SKETCH_SIZE].
        order: indices of the pieces to compare. A piece is the first one by this order.
    """
    from scipy.sparse import coo_array, csr_array  # slow to import
    from scipy.sparse.csgraph import connected_components

    num_pieces, compared = len(sketches), np.asarray(order)
    pieces, used = np.arange(num_pieces), sketches != NO_PASSAGE
    # Pieces with equal sketches are the same; one of them is compared with the others.
    whole = sketches @ hash_values(np.arange(SKETCH_SIZE, dtype=np.uint64))
    _, leaders, members = np.unique(whole, return_index=True, return_inverse=True)
    first_equal = np.where(used[:, 0], leaders[members], pieces)
    used &= (first_equal == pieces)[:, None]

    # Other pieces are compared only if they share a rare passage.
    hashes = np.sort(sketches[used])
    hashes, again = np.unique(hashes[1:][hashes[1:] == hashes[:-1]], return_counts=True)
    rare = np.append(hashes[again < _MAX_PIECES], NO_PASSAGE)
    passage = np.searchsorted(rare, sketches)
    entries = (used & (rare[passage] == sketches)).nonzero()
    contents = np.ones(len(entries[0]), bool), (entries[0], passage[entries])
    has = csr_array(contents, shape=(num_pieces, len(rare)))
    ones, others = (has @ has.T).nonzero()
    candidates = np.stack([ones, others])[:, ones < others]
    pairs = [np.stack([pieces, first_equal])]
    for begin in range(0, candidates.shape[1], _BLOCK):
        found = candidates[:, begin : begin + _BLOCK]
        pairs.append(found[:, similarity(*sketches[found]) >= SAME_MUSIC])
    edges = np.concatenate(pairs, axis=1)
    graph = coo_array((np.ones(edges.shape[1]), tuple(edges)), shape=2 * (num_pieces,))
    _, labels = connected_components(graph, directed=False)
    _, first, group = np.unique(labels[compared], return_index=True, return_inverse=True)
    return compared[first[group]].tolist()


def split_groups(pieces: Sequence[Piece], fractions: tuple[float, float]) -> list[str]:
    """Return the split of each piece: the published one, or one by a hash of its group.

    The hash maps the name of a group to [0, 1). A group therefore stays in its split when the
    corpus grows, and no training piece becomes a held-out piece. In a small corpus a split may be
    empty. Then a group is moved to it, if there are at least three groups and its fraction is not
    0.

    Args:
        fractions: shares of validation and test pieces.
    """
    groups = (os.fsencode(piece.group) for piece in pieces if piece.split is None)
    hashes = (hashlib.blake2b(group, digest_size=8).digest() for group in groups)
    shares = np.fromiter((int.from_bytes(each) / 2**64 for each in hashes), float)
    val, test = fractions
    names = "val", "test", "train"
    splits = np.digitize(shares, (val, val + test))
    order = np.unique(shares)
    if len(order) < 3:
        splits[:] = names.index("train")
    else:
        for group, split, fraction in ((-1, "train", 1), (0, "val", val), (1, "test", test)):
            if fraction and names.index(split) not in splits:
                splits[shares == order[group]] = names.index(split)
    chosen = iter(splits)
    return [piece.split or names[next(chosen)] for piece in pieces]
