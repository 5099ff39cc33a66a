"""PermuteFormer, as a case of LRPE."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.position.base import Site
from musicgen.position.lrpe import PermutationLRPE


class PermuteFormer(PermutationLRPE):
    """PermuteFormer (Chen 2021): LRPE's type 3 with P = I, and a decay where attention is causal.

    The paper encodes by (r P_π)^s on queries and (r⁻¹ P_π)^s on keys, so that the pair (n, m) of
    tokens weighs r^(n − m) besides. Here r^(n − m) goes to the causal product, where it cannot
    overflow. The h-th head has r = sigmoid(2 + 3h/H), as in the paper's language models.

    Args:
        decay: false takes r = 1, as bidirectional attention does in any case.
        shared: one permutation for all layers; else one for each.
        coordinates: what the permutation is a power of. The decay goes by the number of tokens.
    """

    name = "permute"
    sites = frozenset({Site.FEATURE})

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        width: int,
        model_dim: int,
        *,
        decay: bool = True,
        shared: bool = True,
        coordinates: str | int = "index",
    ) -> None:
        sizes = num_layers, num_heads, width, model_dim
        super().__init__(*sizes, basis="identity", shared=shared, coordinates=coordinates)
        self.decay = decay

    def log_decay(self) -> Tensor | None:
        if not self.decay:
            return None
        heads = torch.arange(self.num_heads, device=self.cycles.device)
        return F.logsigmoid(2 + 3 * heads / self.num_heads)
