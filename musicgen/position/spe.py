"""Stochastic positional encoding (Liutkus et al. 2021): random codes with a relative covariance.

Letters as in the rest of the repository: head width K (the paper's D), encoded width E = the
number of realizations R. For every head, q̂[n, r] = Σ_d q[n, d] q̄[n, d, r] with random codes q̄, k̄
of which E[q̄[m, d, r] k̄[n, d, r]] ∝ P_d(m − n), so that q̂·k̂ estimates Σ_d q_d k_d P_d(m − n).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.position.base import NoiseKey, PositionalEncoding, Site

# Words that keep the draws of one key apart.
CODE_DRAW, GATE_DRAW = 0, 1


class SPE(PositionalEncoding):
    """What sineSPE and convSPE share: scales, the gate, and one or many codes.

    Args:
        num_realizations: R, the width of encoded queries and keys; None where the limit R → ∞
            is to be had (sineSPE).
        gated: mix each layer's kernel with a constant, P_d ← δ + (1 − δ) P_d (§2.4, eqs. 23–25).
        shared: one code, drawn once per forward, for all layers; else a code and parameters each.
        class_token: tokens may have no place: a negative coordinate, of those that are read, says
            so. Gated, such a token's code is the gate's ε alone, so that δ q·k is expected of its
            products; ungated, it is a learned one, made of the noise that the places' codes are
            made of, so that these products can be other than zero.
    """

    sites = frozenset({Site.QUERY_KEY})
    relative: Literal["no", "exact", "expected"] = "expected"

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        width: int,
        model_dim: int,
        *,
        num_realizations: int | None = 64,
        gated: bool = True,
        shared: bool = True,
        class_token: bool = False,
        coordinates: str | int = "index",
    ) -> None:
        super().__init__(num_layers, num_heads, width, model_dim, coordinates=coordinates)
        self.num_realizations, self.shared = num_realizations, shared
        self.class_token = class_token
        self.class_code: nn.Parameter | None = None  # of the class token, if it has its own
        self.num_codes = 1 if shared else num_layers
        if num_realizations is not None:
            self.encoded_dim = num_realizations
            # The codes carry (R·K)^-¼ each, so R^-½ here makes K^-½ of the expected product.
            self.logit_scale = num_realizations**-0.5
            self.code_scale = (num_realizations * width) ** -0.25
        self.gate = nn.Parameter(torch.randn(num_layers, num_heads, width)) if gated else None

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor:
        """The expected kernel P_d at the lags m − n: [N], or [N, P] of P coordinates -> [H, K, N].

        Without `layer`: of the first code, ungated. With it: of that layer, through its gate.
        """
        assert lags.dim() == (1 if self.num_dims == 1 else 2)
        lags = lags.reshape(-1, self.num_dims)
        kernel = self.code_kernel(lags, 0 if self.shared or layer is None else layer)
        if layer is None or self.gate is None:
            return kernel
        delta = self.gate[layer].sigmoid()[..., None]
        return delta + (1 - delta) * kernel

    @property
    def shares_kernel(self) -> bool:
        return self.num_codes == 1 and self.gate is None

    @abstractmethod
    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        """P_d of one code, ungated: [N, num_dims] -> [H, K, N]."""

    def placed(self, positions: Tensor) -> Tensor | None:
        """Which tokens have a place, of what was read [1|B, L, num_dims]: [1|B, L]; None: all."""
        return (positions >= 0).all(-1) if self.class_token else None

    def gates(self, noise: NoiseKey, device: torch.device) -> list[Gate | None]:
        """Each layer's gate, with its own noise ε, drawn per layer (eqs. 23–25)."""
        if self.gate is None:
            return [None] * self.num_layers
        # √(1 − δ) and √δ by logarithms: the root of a sigmoid that rounds to 0 has no gradient.
        gate = self.gate.float()
        position, constant = (F.logsigmoid(x).div(2).exp() for x in (-gate, gate))
        gates: list[Gate | None] = []
        for layer in range(self.num_layers):
            epsilon = None
            if self.num_realizations is not None:
                shape = (self.num_heads, self.width, self.num_realizations)
                epsilon = noise.fold(GATE_DRAW, layer).normal(*shape, device=device)
                epsilon *= self.code_scale
            gates.append(Gate(position[layer], constant[layer], epsilon))
        return gates


class Gate(NamedTuple):
    """A layer's gate, folded into q and k so that no layer keeps a gated copy of the codes."""

    position: Tensor  # [H, K]: sqrt(1 − δ)
    constant: Tensor  # [H, K]: sqrt(δ)
    epsilon: Tensor | None  # [H, K, R]: noise, scaled like the codes; None in the exact limit
