"""PermuteFormer, a case of LRPE."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.position.rotary.permutation import PermutationLRPE
from musicgen.validation import check_bool


class PermuteFormer(PermutationLRPE):
    """PermuteFormer (Chen 2021): LRPE's type 3 with P = I, and a decay in causal attention.

    The paper encodes queries by (r P_π)^s and keys by (r⁻¹ P_π)^s, which weights the pair (n, m)
    of tokens by r^(n − m). Here the causal product applies r^(n − m), where it cannot overflow.
    Head h has r = sigmoid(2 + 3h/H), as in the paper's language models. The decay always counts
    tokens. Softmax attention, which has no decay, takes `PermutationLRPE` in the identity basis.

    Args:
        decay: False sets r = 1. Bidirectional attention never decays.
    """

    name = "permute"
    decays = True

    def __init__(self, *args: int, decay: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, basis="identity", **kwargs)
        check_bool("decay", decay)
        self.decay = decay

    def log_decay(self) -> Tensor | None:
        if not self.decay:
            return None
        heads = torch.arange(self.num_heads, device=self.cycles.device)
        return F.logsigmoid(2 + 3 * heads / self.num_heads)
