"""ALiBi: a bias of logits that falls linearly with the distance."""

import torch
from torch import Tensor

from musicgen.position.logit.base import LogitEncoding
from musicgen.position.logit.term import LogitTerm


class ALiBi(LogitEncoding):
    """Bias −m_h |t − s|, m_h = 2^(−8h/H) (Press et al. 2022, §3); dimensions' distances add up."""

    name = "alibi"

    def slopes(self, device: torch.device | None = None) -> Tensor:
        """Return m_h for h = 1 … H: [H]."""
        return 2.0 ** (-8 * torch.arange(1, self.num_heads + 1, device=device) / self.num_heads)

    def logit_term(self, layer: int) -> LogitTerm:
        return LogitTerm(bias=lambda lags: -self.slopes(lags.device)[:, None] * lags.abs().sum(-1))
