"""A short convolution over tokens, before the projections of attention."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ShortConvolution(nn.Module):
    """Adds to each token a weighted sum of the last `width` tokens: y_n = x_n + Σ_i w_i ⊙ x_{n−i}.

    It is used before q, k and v, as in H3 (Fu et al. 2023) and Mamba-2 (Dao and Gu 2024), with a
    residual connection. w is initialised as 0, so that the convolution changes nothing at first.
    In bidirectional models, the sum is over width // 2 tokens before, the token, and tokens after.

    Args:
        dim: number of features D.
        width: number of tokens in the sum.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.zeros(dim, 1, width))  # the last weighs the token itself

    def forward(
        self, x: Tensor, key_mask: Tensor | None, causal: bool, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return x plus the sums [B, L, D], and the argument `before` of the next call.

        Args:
            x: [B, L, D].
            key_mask: [B, L], false at tokens that contribute nothing.
            causal: whether sums are over earlier tokens only.
            before: [B, width − 1, D], the tokens before these (causal only); None: there are none.
        """
        reach = self.width - 1
        seen = x if key_mask is None else x.masked_fill(~key_mask[..., None], 0)
        if before is None:
            left = reach if causal else self.width // 2
            window = F.pad(seen, (0, 0, left, reach - left))
        else:
            window = torch.cat((before.to(x.dtype), seen), dim=1)
        weight = self.weight[:, 0]  # indexed, its gradient has the layout that DDP expects
        if x.shape[1] == 1:
            total = (window * weight.T).sum(1, keepdim=True)
        else:  # conv2d, as conv1d is several times slower on CPUs
            total = F.conv2d(window.mT.unsqueeze(2), weight[:, None, None], groups=x.shape[-1])
            total = total.squeeze(2).mT
        return x + total, window[:, -reach:].clone()
