"""The order of tokens in which the bars after a gap come first: future, past, gap.

    Gap_Future, up to eight bars that follow the gap, Gap_Now, the bars before it, the gap

So a gap follows its past directly, and a model that reads from left to right knows where the gap
leads. Musical time, a coordinate, tells how far away the future is. Other models put the gap behind
the whole piece (MMM, Ens & Pasquier 2020), far from its past.
"""

import numpy as np

from musicgen.tokenization.vocabulary import IntArray

MARKS = ("Future", "Now")
"""The tokens of the family `Gap`: one before the future and one behind it."""

FUTURE_BARS = 8
"""The most bars of a future."""


def future_length(tokens: IntArray, marks: range) -> int:
    """Return how many of the ids [L] come before the past of a gap; 0: there is no future.

    Args:
        marks: the ids of `MARKS`; empty: the vocabulary has none.
    """
    if not marks or not len(tokens) or tokens[0] != marks.start:
        return 0
    return int(np.argmax(np.asarray(tokens) == marks.start + 1)) + 1
