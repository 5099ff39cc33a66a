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
    """Base class of SineSPE and ConvSPE (Liutkus et al. 2021).

    Args:
        num_realizations: R, the width of encoded queries and keys; None: R → ∞, for SineSPE only.
        gated: mix each layer's kernel with a constant, P_d ← δ + (1 − δ) P_d (§2.2, eqs. 23–25).
        shared: draw one code per forward pass for all layers; else one code per layer with its own
            parameters.
        class_token: allow tokens without a position, which have a negative coordinate. If gated,
            the code of such a token is the noise ε of the gate: its expected products are δ q·k. If
            ungated, it is a learned function of the noise from which other codes are computed.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        for name, value in (("gated", gated), ("shared", shared), ("class_token", class_token)):
            check_bool(name, value)
        self.num_realizations, self.class_token = num_realizations, class_token
        self.class_code: nn.Parameter | None = None  # if class tokens have a learned code
        self.num_codes = 1 if shared else self.num_layers
        self.shares_kernel = shared and not gated
        if num_realizations is not None:
            self.encoded_dim = num_realizations
            # Codes of queries and of keys are scaled by (R·K)^-¼ each. With R^-½ here, the expected
            # product is scaled by K^-½.
            self.logit_scale = num_realizations**-0.5
            self.code_scale = (num_realizations * self.width) ** -0.25
        sizes = self.num_layers, self.num_heads, self.width
        self.gate = nn.Parameter(torch.randn(sizes)) if gated else None

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor:
        """Return the expected kernel P_d: lags m − n, [N] or [N, num_dims] -> [H, K, N].

        Args:
            layer: number of the layer, whose gate is applied; None: the first code, without a gate.
        """
        steps = lags.reshape(-1, self.num_dims)
        kernel = self.code_kernel(steps, (layer or 0) % self.num_codes)
        if layer is None or self.gate is None:
            return kernel
        delta = self.gate[layer].sigmoid()[..., None]
        return delta + (1 - delta) * kernel

    @abstractmethod
    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        """Return P_d of one code without a gate: lags [N, num_dims] -> [H, K, N]."""

    def draw_epsilon(self, key: NoiseKey, device: torch.device) -> Tensor | None:
        """Return the scaled noise ε of all gates, [layers, H, K, R]; None: there is none."""
        if self.gate is None or self.num_realizations is None:
            return None
        epsilon = key.fold(RandomStream.SPE_GATE).normal(
            *self.gate.shape, self.num_realizations, device=device
        )
        return epsilon.mul_(self.code_scale)

    def gates(self, epsilon: Tensor | None) -> list[Gate | None]:
        """Return each layer's gate (eqs. 23–25), with the noise that `draw_epsilon` returned."""
        if self.gate is None:
            return [None] * self.num_layers
        # √(1 − δ) and √δ by logarithms: the root of a sigmoid that rounds to 0 has no gradient.
        gate = self.gate.float()
        position, constant = (F.logsigmoid(x).div(2).exp() for x in (-gate, gate))
        by_layer = [None] * self.num_layers if epsilon is None else epsilon
        layers = zip(position, constant, by_layer, strict=True)
        return [Gate(*factors_and_noise) for factors_and_noise in layers]


class Gate(NamedTuple):
    """The gate of a layer. It scales q and k, so that no layer keeps a gated copy of the codes."""

    position: Tensor  # [H, K]: √(1 − δ), the factor on codes of positions
    constant: Tensor  # [H, K]: √δ, the factor on ε
    epsilon: Tensor | None  # [H, K, R]: noise, scaled like the codes; None in the limit R → ∞
