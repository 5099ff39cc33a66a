"""Part order: which parts come first in their bars, so that others can be written to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from musicgen.errors import UserError
from musicgen.midi import Score
from musicgen.package_data import CHORALE_MODEL
from musicgen.tokenization.augmentation import Rng
from musicgen.tokenization.quantization import UNMOVED
from musicgen.tokenization.vocabulary import IntArray

NUM_FOLLOWING_BARS = 2
"""Number of following bars that decide which candidate for rewritten bars is taken."""

NO_TOKENS = np.empty(0, np.int64)
FREE = -1  # in place of tokens that the model writes


class ConditioningTokens(NamedTuple):
    """The tokens of a piece of which some parts are kept, and others are written.

    Attributes:
        ids: those of the kept parts, -1 in place of what is to be written. [L]
        roles: the decoded track that each of the score's tracks is; None: none.
        targets: the decoded tracks to be written.
        start: grid step from which they replace the score's.
        stop: grid step at which the last bar of `ids` ends; None: with the ids.
        tick_map: from ticks of the score to those of its whole bars, see `relocate`. [2, N]
        rules: how tracks are read whose names tell other parts, in words.
        following: ids of the next bars of the piece, of all parts; at most `NUM_FOLLOWING_BARS`.
    """

    ids: IntArray
    roles: Sequence[int | None]
    targets: Sequence[int]
    start: int = 0
    stop: int | None = None
    tick_map: IntArray = UNMOVED
    rules: Sequence[str] = ()
    following: IntArray = NO_TOKENS


class PartOrder:
    """The order of parts in the tokens of a piece; this base class has one fixed order."""

    def rearrange(self, window: IntArray, rng: Rng) -> IntArray:
        """Return a training crop with its parts in a random order, by the settings' probabilities.

        [L] -> [any length]
        """
        return window

    def name_tune(self, score: Score) -> tuple[Score, int | None]:
        """Name the only track of a score after a part if it is a tune; return it with the part.

        Other scores, and tunes of a known instrument, are unchanged, and their part is None.
        """
        return score, None

    def keep_parts(
        self, score: Score, names: Sequence[str], first: int, end: int | None
    ) -> ConditioningTokens:
        """Return a piece in an order in which some parts lead, so that others are written to them.

        Args:
            names: of the decoded tracks that lead.
            first: tick up to which the other parts are kept, too.
            end: tick at which the writing ends; None: with the piece.

        Raises:
            UserError: the tokens have no such order, or the piece has no such parts.
        """
        raise UserError(
            "keep and rewrite need a model whose tokens have the parts of a bar one after another "
            f"(tokenizer=songs); keep also works with voices, such as checkpoint={CHORALE_MODEL}"
        )
