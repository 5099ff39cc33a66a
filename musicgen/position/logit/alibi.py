"""ALiBi: a bias on logits that falls linearly with the distance."""

import torch
from torch import Tensor

from musicgen.position.base import LogitTerm
from musicgen.position.logit import LogitEncoding


class ALiBi(LogitEncoding):
    """ALiBi (Press et al. 2022, §3): the bias −m_h |t − s| on logits, with m_h = 2^(−8h/H).

    In several dimensions, |t − s| is the sum of the distances.
    """

    name = "alibi"

    def slopes(self, device: torch.device | None = None) -> Tensor:
        """Return the slopes m_h for h = 1 … H: [H]."""
        return 2.0 ** (-8 * torch.arange(1, self.num_heads + 1, device=device) / self.num_heads)

    def logit_term(self, layer: int) -> LogitTerm:
        return LogitTerm(bias=lambda lags: -self.slopes(lags.device)[:, None] * lags.abs().sum(-1))
