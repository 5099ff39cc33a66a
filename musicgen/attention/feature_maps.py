"""Feature maps of linear attention."""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.attention.base import FeatureMap
from musicgen.errors import ParameterError
from musicgen.position.base import at_least_fp32
from musicgen.random import NoiseKey


class FAVOR(FeatureMap):
    """FAVOR+: positive orthogonal random features of the softmax (Choromanski et al. 2021).

    φ(x) = [exp(u − ‖x‖²/2), exp(−u − ‖x‖²/2)] / √M with u = xω and x scaled by √logit_scale
    (§2.3, the hyperbolic form). The M/2 columns of ω are orthogonal in blocks of E. `queries` and
    `keys` return the exponents, as the features may overflow: `stabilise.py` brings them into
    range. ‖q‖² and √M are left out, as they cancel in the normaliser.

    Args:
        num_features: M, even; None: 2 / logit_scale². That is 2E, except for encodings whose E is
            larger than 1 / logit_scale² (exact SineSPE, unitary LRPE).
    """

    name = "favor"
    log_features = True
    omega: Tensor

    def __init__(self, dim: int, logit_scale: float, *, num_features: int | None = None) -> None:
        super().__init__(dim, logit_scale)
        num_features = 2 * round(logit_scale**-2) if num_features is None else num_features
        if num_features < 2 or num_features % 2:
            expected = "expected an even number above 0, such as 128, as features come in pairs"
            raise ParameterError("num_features", num_features, expected)
        self.feature_dim = num_features
        self.register_buffer("omega", torch.empty(dim, num_features // 2))
        if not self.omega.is_meta:  # seeded by the global generator, like the other weights
            self._fill(torch.Generator().manual_seed(int(torch.randint(2**62, ()))))

    def redraw(self, key: NoiseKey) -> None:
        self._fill(key.generator())

    @torch.no_grad()
    def _fill(self, generator: torch.Generator) -> None:
        """Draw blocks of E orthogonal columns, each with the length of a normal vector."""
        dim, columns = self.omega.shape
        draw = partial(torch.randn, generator=generator, device=generator.device)
        blocks = []
        for start in range(0, columns, dim):
            gaussian = draw(dim, min(dim, columns - start))
            # With the signs of R moved into Q, Q is uniform over rotations and reflections.
            q, r = torch.linalg.qr(gaussian)
            blocks.append(q * r.diagonal().sign())
        directions = torch.cat(blocks, dim=1)
        lengths = draw(dim, columns).norm(dim=0)
        self.omega.copy_(directions * lengths)

    @property
    def directions(self) -> Tensor:
        """ω · √logit_scale: [E, M/2]."""
        return at_least_fp32(self.omega)[0] * math.sqrt(self.logit_scale)

    @property
    def exponent_directions(self) -> Tensor:
        return self.queries(self.directions)

    def queries(self, q: Tensor) -> Tensor:
        return torch.cat((q, -q), dim=-1)

    def keys(self, k: Tensor, squared_norm: Tensor | None = None) -> Tensor:
        assert squared_norm is not None
        half_square = squared_norm * (self.logit_scale / 2)
        return torch.cat((k, -k), dim=-1) - half_square


class ReLU(FeatureMap):
    """φ(x) = relu(√logit_scale x) + ε, the Linear Transformer-ReLU of Liutkus et al. 2021, §3.1."""

    name = "relu"
    epsilon = 1e-3

    def queries(self, q: Tensor) -> Tensor:
        return F.relu(q * math.sqrt(self.logit_scale)) + self.epsilon


class ELU(FeatureMap):
    """φ(x) = elu(x) + 1 (Katharopoulos et al. 2020, eq. 7)."""

    name = "elu"

    def queries(self, q: Tensor) -> Tensor:
        return F.elu(q) + 1
