"""What a copy head keeps of earlier tokens, and what a request sets in it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LONGEST_MATCH = 128  # tokens
EMPTY = -(1 << 30)  # bar of a slot without a token


class CopySettings(NamedTuple):
    """How copies are weighed in a decoding step, for each sequence of a batch.

    The share of each copied token, g_h a_hj in `CopyHead`, is multiplied by exp(lag bias). The
    temperature divides the model's own logits alone: if it also divided those of the copies, what
    is likely would be copied even more, and the music would loop.
    """

    lag_bias: Tensor  # [B, max_lag + 1], in nats, by the lag in bars
    temperature: Tensor  # [B, 1]


class CopyState(NamedTuple):
    """What a copy head keeps of each row: a ring of W keys, and the last token's own.

    The slot n % W has what token n is copied by: the key and the bar of the token before it.
    """

    keys: Tensor  # [B, H, W, K]
    bars: Tensor  # [B, W]; EMPTY where there is no token
    successors: Tensor  # [B, W], ids
    last_key: Tensor  # [B, H, K], of the last token, whose successor is still to come
    last_bar: Tensor  # [B]
    embedded: Tensor  # [B, taps − 1, D_token], what the convolution keeps
    matches: Tensor  # [B, W], how many tokens up to the key's are the last ones, at most 128

    def write(self, tokens: Tensor, index: Tensor, *, overwrite: bool = True) -> CopyState:
        """Return the state whose ring has the tokens [B] of an index [B] as well.

        Args:
            overwrite: write into this ring; else into a copy.
        """
        rows = torch.arange(len(tokens), device=tokens.device)
        slot = index % self.bars.shape[1]
        put = Tensor.index_put_ if overwrite else Tensor.index_put
        return self._replace(
            keys=put(self.keys.transpose(1, 2), (rows, slot), self.last_key).transpose(1, 2),
            bars=put(self.bars, (rows, slot), self.last_bar),
            successors=put(self.successors, (rows, slot), tokens),
        )

    def match(self, same: Tensor, index: Tensor) -> CopyState:
        """Return the state whose `matches` are those of one more token of an index [B].

        That of the oldest key is 0: the slot before its own has the newest token.

        Args:
            same: whether each successor is of the newest token's class, [B, W].
        """
        slots = torch.arange(self.bars.shape[1], device=index.device)
        newest = index[:, None] % (slots[-1:] + 1)  # by a tensor, which ONNX needs
        same = same & (slots != newest)
        before = self.matches * (self.bars != EMPTY)
        matches = (before + 1).clamp(max=LONGEST_MATCH) * same
        return self._replace(matches=torch.cat((matches[:, -1:], matches[:, :-1]), dim=1))
