"""The state of a copy head in decoding, and the settings of copies in a request."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LONGEST_MATCH = 128  # tokens
# A match of 1, 2, 4, … 128 tokens has level 1, 2, 3, … 8. Without a match, the level is 0.
NUM_LEVELS = LONGEST_MATCH.bit_length()
EMPTY = -(1 << 30)  # bar of a slot without a token


class CopySettings(NamedTuple):
    """Settings of a copy head in a decoding step, for each sequence of a batch.

    The weight of each copied token, g_h a_hj in `CopyHead`, is multiplied by exp(lag bias). The
    temperature divides only the logits of the model without copies. If it also applied to copies,
    likely copies would become even more likely, and the music would loop.
    """

    lag_bias: Tensor  # [B, max_lag + 1], in nats, by the lag in bars
    temperature: Tensor  # [B, 1]


class CopyState(NamedTuple):
    """State of a copy head: a ring buffer of W keys, and the key of the last token.

    Slot n % W has token n as the successor, and the key and the bar of token n − 1.
    """

    keys: Tensor  # [B, H, W, K]
    bars: Tensor  # [B, W]; EMPTY where there is no token
    successors: Tensor  # [B, W], ids
    last_key: Tensor  # [B, H, K], key of the last token, whose successor is not known yet
    last_bar: Tensor  # [B], its bar
    embedded: Tensor  # [B, taps − 1, width], embeddings of the last tokens, for the convolution
    matches: Tensor  # [B, W], number of tokens up to the key that agree with the last ones, ≤ 128

    def write(self, tokens: Tensor, index: Tensor, *, overwrite: bool = True) -> CopyState:
        """Return the state with one more token per sequence as the successor of the last key.

        Args:
            tokens: ids [B].
            index: number of tokens before them [B].
            overwrite: write into this ring buffer; else into a copy.
        """
        sequences = torch.arange(len(tokens), device=tokens.device)
        slots = sequences, index % self.bars.shape[1]
        put = Tensor.index_put_ if overwrite else Tensor.index_put
        return self._replace(
            keys=put(self.keys.transpose(1, 2), slots, self.last_key).transpose(1, 2),
            bars=put(self.bars, slots, self.last_bar),
            successors=put(self.successors, slots, tokens),
        )

    def match(self, same: Tensor, index: Tensor) -> CopyState:
        """Return the state with `matches` updated for one more token per sequence.

        A key's match is one longer than the match of the key before it, or 0 if its token differs
        from the new one. For the oldest key it is 0, as the slot before it has the newest token.

        Args:
            same: whether each successor has the class of the new token, [B, W].
            index: number of tokens before the new ones [B].
        """
        slots = torch.arange(self.bars.shape[1], device=index.device)
        newest = index[:, None] % (slots[-1:] + 1)  # by a tensor, which ONNX needs
        same = same & (slots != newest)
        before = self.matches * (self.bars != EMPTY)
        matches = (before + 1).clamp(max=LONGEST_MATCH) * same
        return self._replace(matches=torch.cat((matches[:, -1:], matches[:, :-1]), dim=1))
