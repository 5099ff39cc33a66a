"""Chorales in another order: some voices ahead of the others.

The first token says which order it is; all orders keep a token for each voice of each frame.

- `BOS`: four voices of one frame after another.
- `Lead_*`, the names of one to three voices: those are `LEAD` frames ahead of the others, which
  therefore begin, as they end, with `Empty` tokens. Their pitches are `Ahead_*`, so that each tells
  by itself what it is. The piece ends with the leading voices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from musicgen.tokenization.chorale.frames import NUM_VOICES, VOICES
from musicgen.tokenization.vocabulary import IntArray

LEAD = 16

LEADING = [
    [bool(number >> voice & 1) for voice in range(NUM_VOICES)]
    for number in range(1, 2**NUM_VOICES - 1)
]
"""The sets of voices that may lead, in the order of their tokens; the first is the soprano."""

BoolArray = NDArray[np.bool_]


def arrangement_tokens(pitches: range, *, lead: bool) -> dict[str, list[str]]:
    """Return the families of tokens that arrangements add to a vocabulary."""
    leading = ["+".join(np.array(VOICES)[voices].tolist()) for voices in LEADING]
    return {
        "Empty": ["Empty"] * lead,
        "Ahead": [f"Ahead_{pitch}" for pitch in pitches] * lead,
        "Lead": [f"Lead_{names}" for names in leading] * lead,
    }


class Arrangements:
    """What the first token of a sequence says of its order, by the token's id.

    Attributes:
        leading: the voices that are not behind others: all, but after `Lead_*`. [V, 4]
        delay: frames by which the other voices are behind. [V]
    """

    def __init__(self, size: int, families: Mapping[str, range]) -> None:
        self.leading = np.ones((size, NUM_VOICES), bool)
        self.delay = np.zeros(size, np.int64)
        for header, voices in zip(families["Lead"], LEADING, strict=False):
            self.leading[header], self.delay[header] = voices, LEAD

    def times(self, header: IntArray, index: IntArray, is_end: BoolArray) -> IntArray:
        """Return the musical time in frames of tokens, by their index, of any shape.

        Args:
            header: the first tokens of their sequences.
            is_end: whether they are EOS, which has the first frame after all.
        """
        frame, voice = np.divmod(np.maximum(index - 1, 0), NUM_VOICES)
        behind = ~self.leading[header, voice] | is_end
        return np.maximum(frame - behind * self.delay[header], 0)


def lead(frames: IntArray, voices: Sequence[bool], *, complete: bool, empty: int) -> IntArray:
    """Return frames in which the given voices are ahead.

    Args:
        frames: a token for each voice [F, 4].
        complete: whether the piece ends with them; the others have `LEAD` more frames.
        empty: the token without music.

    Returns:
        [F + LEAD, 4], or [F, 4] of an incomplete piece.
    """
    ahead, size = np.array(voices), len(frames)
    moved = np.full((size + LEAD * complete, NUM_VOICES), empty, np.int64)
    moved[:size, ahead] = frames[:, ahead]
    moved[LEAD:, ~ahead] = frames[: max(0, len(moved) - LEAD), ~ahead]
    return moved


def unlead(frames: IntArray, voices: Sequence[bool], empty: int) -> IntArray:
    """Return the frames that `lead` moved, also of a prefix; what is still to come is `empty`."""
    ahead = np.array(voices)
    moved = frames.copy()
    moved[:, ~ahead] = empty
    moved[: max(0, len(frames) - LEAD), ~ahead] = frames[LEAD:, ~ahead]
    return moved
