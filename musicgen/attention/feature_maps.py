"""Feature maps of linear attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.attention.base import FeatureMap
from musicgen.errors import UserError
from musicgen.position.base import LayerCode, NoiseKey


class FAVOR(FeatureMap):
    """Positive orthogonal random features of the softmax kernel, FAVOR+ (Choromanski et al. 2021).

    φ(x) = [exp(u − ‖x‖²/2), exp(−u − ‖x‖²/2)] / √M with u = xω and x scaled by √logit_scale
    (§2.3, the hyperbolic form); the M/2 columns of ω are orthogonal in blocks of E. Returned are
    the exponents: they outgrow any float. What scales all of a query's features, or every key's,
    cancels in the normaliser, so ‖q‖² and √M are left out.

    Args:
        num_features: M, even; None takes twice the width that the logits' scale stands for, as in
            the paper's sizes: 2E, but for encodings that widen queries without sharpening them.
    """

    name = "favor"
    log_features = True
    omega: Tensor

    def __init__(self, dim: int, logit_scale: float, *, num_features: int | None = None) -> None:
        super().__init__(dim, logit_scale)
        num_features = 2 * round(logit_scale**-2) if num_features is None else num_features
        if num_features < 2 or num_features % 2:
            raise UserError(
                f"model.attention.feature_map.num_features={num_features}: FAVOR+ takes features "
                "in pairs; give an even number, such as 128"
            )
        self.feature_dim = num_features
        self.register_buffer("omega", torch.empty(dim, num_features // 2))
        # From the global generator, so that a seed decides it like the other weights.
        self._fill(torch.Generator().manual_seed(int(torch.randint(2**62, ()))))

    def redraw(self, key: NoiseKey) -> None:
        self._fill(key.generator())

    @torch.no_grad()
    def _fill(self, generator: torch.Generator) -> None:
        """Blocks of E orthogonal columns, each with the length of a normal vector."""
        dim, columns = self.omega.shape
        blocks = []
        for start in range(0, columns, dim):
            gaussian = torch.randn(dim, min(dim, columns - start), generator=generator)
            # With R's signs moved into Q, it is uniform over rotations and reflections.
            q, r = torch.linalg.qr(gaussian)
            blocks.append(q * r.diagonal().sign())
        directions = torch.cat(blocks, dim=1)
        lengths = torch.randn(dim, columns, generator=generator).norm(dim=0)
        self.omega.copy_(directions * lengths)

    def forward(self, q: Tensor, k: Tensor, code: LayerCode) -> tuple[Tensor, Tensor]:
        queries, keys = code.project(q, k, self._directions)
        return self._exponents(queries.product), self._exponents(*keys)

    def queries(self, q: Tensor) -> Tensor:
        return self._exponents(q @ self._directions)

    def keys(self, k: Tensor) -> Tensor:
        return self._exponents(k @ self._directions, k.square().sum(-1, keepdim=True))

    @property
    def _directions(self) -> Tensor:
        return self.omega.float() * math.sqrt(self.logit_scale)

    def _exponents(self, u: Tensor, squared_norm: Tensor | None = None) -> Tensor:
        u = u.float()
        if squared_norm is None:
            return torch.cat((u, -u), dim=-1)
        half_square = squared_norm * (self.logit_scale / 2)
        return torch.cat((u - half_square, -u - half_square), dim=-1)


class ReLU(FeatureMap):
    """φ(x) = relu(x · √logit_scale) + ε: the Linear Transformer-ReLU of the SPE paper (§3.1)."""

    name = "relu"
    epsilon = 1e-3

    def __init__(self, dim: int, logit_scale: float) -> None:
        super().__init__(dim, logit_scale)
        self.feature_dim = dim

    def queries(self, q: Tensor) -> Tensor:
        return F.relu(q * math.sqrt(self.logit_scale)) + self.epsilon

    def keys(self, k: Tensor) -> Tensor:
        return self.queries(k)


class ELU(FeatureMap):
    """φ(x) = elu(x) + 1 (Katharopoulos et al. 2020, eq. 7)."""

    name = "elu"

    def __init__(self, dim: int, logit_scale: float) -> None:
        super().__init__(dim, logit_scale)
        self.feature_dim = dim

    def queries(self, q: Tensor) -> Tensor:
        return F.elu(q) + 1

    def keys(self, k: Tensor) -> Tensor:
        return self.queries(k)
