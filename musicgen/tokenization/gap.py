"""A part of a piece that is still to be written."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from musicgen.tokenization.vocabulary import IntArray


@dataclass(frozen=True, eq=False)
class Gap:
    """A part of a piece that is still to be written, as a model continues it.

    Attributes:
        tokens: what is added to the tokens before it, or all of these, for a model to go on. [L]
        start, end: musical time in grid steps.
        silent_by: the end of the whole gap, by which the notes end that are written.
        given: the tokens from there on, -1 for each that is to be written, where a model has
            learned this order of a piece; EOS may end them earlier. [N]
        kept: notes of the piece that are in the whole gap, by onset: step and ranks of pitch,
            velocity and duration for REMI [N, 4], onset, voice and end for Groove2Groove [N, 3].
        writes: which of the decoded tracks have new notes. [num_tracks]
    """

    tokens: IntArray
    start: int
    end: int
    silent_by: int
    given: IntArray | None = None
    kept: IntArray = field(default_factory=lambda: np.empty((0, 4), np.int64))
    writes: NDArray[np.bool_] = field(default_factory=lambda: np.ones(1, bool))

    @cached_property
    def num_kept(self) -> int:
        """The number of kept notes that begin in it."""
        onsets = self.kept[:, 0]
        return int(((onsets >= self.start) & (onsets < self.end)).sum())
