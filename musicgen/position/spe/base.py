"""Stochastic positional encoding (Liutkus et al. 2021): random codes with a relative covariance.

Letters: head width K (the paper's D), encoded width E = the number of realizations R. For each
head, q̂[n, r] = Σ_d q[n, d] q̄[n, d, r] with random codes q̄, k̄ such that
E[q̄[m, d, r] k̄[n, d, r]] ∝ P_d(m − n), so that q̂·k̂ estimates Σ_d q_d k_d P_d(m − n).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.position.base import PositionalEncoding, Site
from musicgen.random import NoiseKey, RandomStream
from musicgen.validation import check_bool


class SPE(PositionalEncoding):
    """The base of SineSPE and ConvSPE.

    Args:
        num_realizations: R, the width of encoded queries and keys; None: R → ∞, for SineSPE only.
        gated: mix each layer's kernel with a constant, P_d ← δ + (1 − δ) P_d (§2.2, eqs. 23–25).
        shared: draw one code per forward for all layers, else one with its own parameters for each.
        class_token: allow tokens without a position, which have a negative coordinate among those
            read. If gated, the code of such a token is the gate's ε: its expected products are
            δ q·k. If ungated, it is a learned code, made of the same noise as the codes of
            positions.
    """

    sites = frozenset({Site.QUERY_KEY})
    relative: Literal["no", "exact", "expected"] = "expected"

    def __init__(
        self,
        *args: int,
        num_realizations: int | None = 64,
        gated: bool = True,
        shared: bool = True,
        class_token: bool = False,
        **reading: Any,
    ) -> None:
        super().__init__(*args, **reading)
        for name, value in (("gated", gated), ("shared", shared), ("class_token", class_token)):
            check_bool(name, value)
        self.num_realizations, self.class_token = num_realizations, class_token
        self.class_code: nn.Parameter | None = None  # if class tokens have a learned code
        self.num_codes = 1 if shared else self.num_layers
        self.shares_kernel = shared and not gated
        if num_realizations is not None:
            self.encoded_dim = num_realizations
            # Each code carries (R·K)^-¼, so R^-½ here scales the expected product by K^-½.
            self.logit_scale = num_realizations**-0.5
            self.code_scale = (num_realizations * self.width) ** -0.25
        sizes = self.num_layers, self.num_heads, self.width
        self.gate = nn.Parameter(torch.randn(sizes)) if gated else None

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor:
        """Return the expected kernel P_d at the lags m − n: [N], or [N, coordinates] -> [H, K, N].

        `layer` gives the code and the gate; None is the first code, ungated.
        """
        steps = lags.reshape(-1, self.num_dims)
        kernel = self.code_kernel(steps, (layer or 0) % self.num_codes)
        if layer is None or self.gate is None:
            return kernel
        delta = self.gate[layer].sigmoid()[..., None]
        return delta + (1 - delta) * kernel

    @abstractmethod
    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        """Return the ungated P_d of one code: [N, num_dims] -> [H, K, N]."""

    def draw_epsilon(self, key: NoiseKey, device: torch.device) -> Tensor | None:
        """Draw the scaled noise of all gates, [layers, H, K, R]; None: gates have none."""
        if self.gate is None or self.num_realizations is None:
            return None
        epsilon = key.fold(RandomStream.SPE_GATE).normal(
            *self.gate.shape, self.num_realizations, device=device
        )
        return epsilon.mul_(self.code_scale)

    def gates(self, epsilon: Tensor | None) -> list[Gate | None]:
        """Return each layer's gate with its noise, of what `draw_epsilon` returned (eqs. 23–25)."""
        if self.gate is None:
            return [None] * self.num_layers
        # √(1 − δ) and √δ by logarithms: the root of a sigmoid that rounds to 0 has no gradient.
        gate = self.gate.float()
        position, constant = (F.logsigmoid(x).div(2).exp() for x in (-gate, gate))
        by_layer = [None] * self.num_layers if epsilon is None else epsilon
        return [Gate(*parts) for parts in zip(position, constant, by_layer, strict=True)]


class Gate(NamedTuple):
    """A layer's gate. It scales q and k, so that no layer keeps a gated copy of the codes."""

    position: Tensor  # [H, K]: √(1 − δ), the factor of the code
    constant: Tensor  # [H, K]: √δ, the factor of ε
    epsilon: Tensor | None  # [H, K, R]: noise, scaled like the codes; None in the exact limit
