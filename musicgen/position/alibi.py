"""ALiBi: logits fall linearly with the distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from musicgen.position.base import LayerCode, NoiseKey, PositionalEncoding, Site
from musicgen.position.relative import RelativeCode


class ALiBi(PositionalEncoding):
    """Logit −m_h |t − s| beside the content's, m_h = 2^(−8h/H) (Press et al. 2022, §3).

    Nothing is learned, and lags of any size are encoded. In n dimensions distances add up. For
    linear attention, `model.attention.decay=learned` is the same with learned m_h.
    """

    name = "alibi"
    sites = frozenset({Site.LOGIT})
    relative = "exact"

    def slopes(self, device: torch.device | None = None) -> Tensor:
        """m_h for h = 1 … H: [H]."""
        heads = torch.arange(1, self.num_heads + 1, device=device)
        return 2.0 ** (-8 * heads / self.num_heads)

    def logit_bias(self, lags: Tensor, layer: int | None = None) -> Tensor:
        """−m_h |lag|: -> [H, 1, N]."""
        return self._biases(lags.reshape(-1, self.num_dims)).transpose(1, 2)

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        self.read(positions)
        known = [] if state is None else state  # of all layers
        code = RelativeCode(positions, self.columns, self._queries, self._biases, known)
        return [code] * self.num_layers, known

    def _queries(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """What content meets is as it is; what positions meet makes up for the logits' scale."""
        return q, q.new_full((), 1 / self.logit_scale).expand(*q.shape[:-1], 1)

    def _biases(self, lags: Tensor) -> Tensor:
        distance = lags.abs().sum(-1)
        return (-self.slopes(lags.device)[:, None] * distance)[..., None]  # [H, N, 1]
