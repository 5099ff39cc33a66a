"""Find music that held-out pieces share with others: transposed, under other chords, in a medley.

A piece is read as lines: the top line of each pitched track and of all of them together, and the
texture, all pitched notes by onset and then pitch. A line is known by its runs of successive steps.
A step of a top line is an interval between different pitches and by how much the time from note to
note grows or shrinks, so that key, tempo and repeated notes do not matter; a step of the texture is
an interval and a time in sixteenths. Two pieces share a line if the shorter one has a third of
its runs in common with the other, wherever they are (containment: Broder 1997, "On the resemblance
and containment of documents"), estimated from an eighth of the hashes of each line's runs, or from
its 64 smallest ones (Irber et al. 2022, "Lightweight compositional analysis of metagenomes with
FracMinHash and minimum metagenome covers").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.data.corpora.base import SPLITS
from musicgen.data.preparation.duplicates import (
    NO_PASSAGE,
    SKETCH_SIZE,
    Sketches,
    hash_values,
)
from musicgen.midi import NOTE, NoteArray, Score

SHARED = 1 / 3
"""Share of a line's runs from which on it is shared; see benchmarks/leaks.py."""

_STEPS = {"melody": 8, "texture": 16}  # in a run
_MIN_RUNS = 32  # a line with fewer is an accompaniment's figure
_LOWEST = 55  # median pitch of a melody; lines below are basses
_REST = 8  # beats after which an accompaniment below the last note may be a melody
_MAX_LINES = 64  # of the held-out pieces that a run is in; those in more are common figures
_SIZE, _RATE = 64, np.uint64(2**61)  # hashes kept of each line, and those below an eighth
_MIN_COMMON = 6
_LINE = np.uint64(255)  # the lowest bits of a hash are its line: 0 is the texture
_BLOCK = 512  # pieces compared at once

Hashes = NDArray[np.uint64]


class Shared(NamedTuple):
    """A piece of validation or testing that shares a line with a piece of another split."""

    piece: int
    other: int
    kind: str  # texture or melody
    share: float  # of the runs of the shorter line
    part: float  # length of the piece's line, as a share of that of the other


def line_hashes(score: Score) -> Hashes:
    """Return hashes of the runs of a piece's lines, ascending; the lowest bits name the line."""
    tracks = [track.notes for track in score.tracks if not track.is_drum and len(track.notes)]
    together = np.concatenate([np.empty(0, NOTE), *tracks])
    beat = score.ticks_per_beat
    lines = [_runs(_texture_steps(together, beat), _STEPS["texture"])]
    for notes, rest in [(together, _REST * beat), *((track, 0) for track in tracks[:254])]:
        line = top_line(notes, rest)
        high = len(line) > 0 and np.median(line["pitch"]) >= _LOWEST
        lines.append(_runs(_melody_steps(line), _STEPS["melody"]) if high else lines[0][:0])
    kept = [
        runs[: max(_SIZE, int(np.searchsorted(runs, _RATE)))] & ~_LINE | np.uint64(number)
        for number, runs in enumerate(lines)
        if len(runs) >= _MIN_RUNS
    ]
    return np.sort(np.concatenate([np.empty(0, np.uint64), *kept]))


def top_line(notes: NoteArray, rest: int) -> NoteArray:
    """Return the highest of the notes that begin together, without those below one that sounds.

    Args:
        rest: ticks after a note in which a fourth below it and lower there is accompaniment alone.
    """
    notes = notes[np.lexsort((-notes["pitch"], notes["onset"]))]
    notes = notes[np.diff(notes["onset"], prepend=-1) > 0]
    kept, end, top = [], 0, 0
    columns = (notes[name].tolist() for name in ("onset", "duration", "pitch"))
    for i, (onset, duration, pitch) in enumerate(zip(*columns, strict=True)):
        if pitch >= top or onset >= end + rest or (onset >= end and pitch > top - 5):
            kept.append(i)
            end, top = onset + duration * 3 // 4, pitch  # notes played legato overlap
    return notes[kept]


def _melody_steps(line: NoteArray) -> NDArray[np.int64]:
    line = line[np.diff(line["pitch"], prepend=-1) != 0]
    times = np.log2(np.maximum(1, np.diff(line["onset"])))
    growth = np.clip(np.rint(np.diff(times)), -2, 2).astype(np.int64)
    return np.diff(line["pitch"])[1:] * 8 + growth


def _texture_steps(notes: NoteArray, ticks_per_beat: int) -> NDArray[np.int64]:
    step = np.rint(notes["onset"] * 4 / ticks_per_beat).astype(np.int64)
    step, pitch = np.divmod(np.unique(step * 128 + notes["pitch"]), 128)
    return np.diff(step) * 256 + np.diff(pitch)


def _runs(steps: NDArray[np.int64], length: int) -> Hashes:
    """Return the hashes of the different runs of steps, ascending."""
    count = max(0, len(steps) - length + 1)
    total = np.zeros(count, np.uint64)
    for i in range(length):
        # The product keeps the hashes of a step at different places apart.
        total += hash_values((steps[i : i + count] * 64 + i).astype(np.uint64))
    return np.unique(hash_values(total))


class PassageHashes:
    """The hashes of sketches of passages, see `duplicates`, as those of one line of each piece.

    They find the same music in any key and in medleys, at the cost of the sketches that a cache
    has, but not a melody under other chords.
    """

    size, min_common = SKETCH_SIZE, 3

    def __init__(self, sketches: Sketches, pieces: Sequence[int]) -> None:
        self._sketches, self._pieces = sketches, pieces

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, piece: int) -> Hashes:
        hashes = self._sketches[int(self._pieces[piece])]
        return hashes[hashes != NO_PASSAGE] & ~_LINE


class LineHashes(list[Hashes]):
    """The `line_hashes` of each piece."""

    size, min_common = _SIZE, _MIN_COMMON


def find_shared(stored: PassageHashes | LineHashes, splits: Sequence[str]) -> list[Shared]:
    """Return what pieces for validation and testing share with pieces of other splits.

    Of the lines that two pieces share, the texture is named, or else the one with the largest
    share. Memory is that of the held-out pieces' hashes.

    Args:
        splits: of each piece.
    """
    rank = np.array([SPLITS.index(split) for split in splits])
    hashes, lines = _hashes(stored, np.flatnonzero(rank > 0))
    order = np.argsort(hashes, kind="stable")
    hashes, lines = hashes[order], lines[order]
    best: dict[tuple[int, int], Shared] = {}
    num_lines = 256 * len(stored)
    for begin in range(0, len(stored), _BLOCK):
        others, other_lines = _hashes(stored, range(begin, min(begin + _BLOCK, len(stored))))
        first = np.searchsorted(hashes, others)
        count = np.searchsorted(hashes, others, side="right") - first
        count[count > _MAX_LINES] = 0
        row = np.repeat(np.arange(len(others)), count)
        place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        held, other = lines[first[row] + place], other_lines[row]
        across = rank[held // 256] > rank[other // 256]  # train < val < test
        codes, common = np.unique(held[across] * num_lines + other[across], return_counts=True)
        for code in codes[common >= stored.min_common].tolist():
            found = _compare(stored, *divmod(code, num_lines))
            key = found.piece, found.other
            if found.share >= SHARED and (
                key not in best or (found.kind, found.share) > (best[key].kind, best[key].share)
            ):
                best[key] = found
    return sorted(best.values())


def _hashes(
    stored: PassageHashes | LineHashes, pieces: Sequence[int] | NDArray[np.int64]
) -> tuple[Hashes, NDArray[np.int64]]:
    """Return the hashes of pieces without their lines, and the number of each one's line."""
    parts = [stored[int(piece)] for piece in pieces]
    joined = np.concatenate([np.empty(0, np.uint64), *parts])
    sizes = np.array([len(part) for part in parts], np.int64)
    owner = np.repeat(np.asarray(pieces, np.int64), sizes)
    return joined & ~_LINE, owner * 256 + (joined & _LINE).astype(np.int64)


def _compare(stored: PassageHashes | LineHashes, line: int, other: int) -> Shared:
    ones, others = (_line(stored[each // 256], each % 256) for each in (line, other))
    # Below it, both lines have all of their hashes.
    limit = min(int(each[-1]) if len(each) >= stored.size else 2**64 - 1 for each in (ones, others))
    size, other_size = (int(np.searchsorted(each, limit, side="right")) for each in (ones, others))
    common = len(np.intersect1d(ones[:size], others[:other_size], assume_unique=True))
    kind = "melody" if line % 256 else "texture"
    share = common / min(size, other_size)
    return Shared(line // 256, other // 256, kind, share, size / other_size)


def _line(hashes: Hashes, line: int) -> Hashes:
    return hashes[hashes & _LINE == line] & ~_LINE
