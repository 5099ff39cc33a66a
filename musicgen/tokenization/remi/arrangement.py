"""REMI in another order: what follows a gap stands before the bars that fill it.

`Gap_n` says that n bars are missing there, in the metre in force. The bars that follow them come
next, `AHEAD` of them, fewer only where the piece ends; then `Fill`, the missing bars, and `EOS`.
After `Fill` metre, chord and tempo are those before the gap. No note sounds across its edges.
"""

from __future__ import annotations

import numpy as np

from musicgen.tokenization.vocabulary import IntArray, within

AHEAD = 8
MAX_BARS = 32
MAX_WRITTEN = 16
"""Of the bars of a gap; those before them are given, so that what precedes is near, too."""

FOLLOWERS: dict[str, set[str]] = {
    "": {"Gap"},
    "Bar": {"Gap", "Fill", "EOS"},
    "Chord": {"Gap", "Fill"},
    "Tempo": {"Gap", "Fill"},
    "Duration": {"Gap", "Fill"},
    "Gap": {"Bar", "Fill"},
    "Fill": {"Bar"},
}
"""Which family may follow which, beside those of the plain order."""


def gap_tokens(*, fill: bool) -> dict[str, list[str]]:
    """Return the families of tokens that this order adds to a vocabulary."""
    return {
        "Gap": [f"Gap_{bars}" for bars in range(1, MAX_BARS + 1)] * fill,
        "Fill": ["Fill"] * fill,
    }


def next_bars(tokens: IntArray, families: dict[str, range], lengths: IntArray) -> IntArray:
    """Return the grid step at which a bar would begin after each id. [L] -> [L].

    Args:
        lengths: grid steps in a bar of each metre. [num_metres]
    """
    is_bar = within(tokens, families["Bar"])
    index = np.maximum.accumulate(np.where(is_bar, np.arange(len(tokens)), -1))
    metre = np.where(index >= 0, tokens[index] - families["Bar"].start, 0)
    steps = np.where(is_bar, lengths[metre], 0)
    gap = np.flatnonzero(within(tokens, families["Gap"]))[:1]
    steps[gap] = (tokens[gap] - families["Gap"].start + 1) * lengths[metre[gap]]
    ends = np.cumsum(steps)
    for fill in np.flatnonzero(within(tokens, families["Fill"]))[: len(gap)]:
        ends[fill:] -= ends[fill] - ends[gap] + steps[gap]
    return ends
