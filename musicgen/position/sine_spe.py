"""SineSPE: stochastic codes whose expected kernel is a sum of sines, and their exact limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.position.base import LayerCode, NoiseKey, Projection
from musicgen.position.spe import CODE_DRAW, SPE, Gate
from musicgen.position.waves import Project, Sines, Unplaced, Waves

# In n dimensions a logarithmic scale of frequencies on both sides gives way, towards zero, to a
# linear one across it: below about σ(−6)/2, a period of 800 positions.
_AROUND_ZERO = 6.0


class SineSPE(SPE):
    """P_d(τ) = 1/2K' Σ_k λ² cos(2πf·τ + θ) (Liutkus et al. 2021, §2.2, eq. 18).

    In one dimension f = σ(a)/2, with a learned a. In n dimensions f and τ are vectors, and each
    of f's components may be negative, for waves in all directions: f = (σ(a − 6) − σ(−a − 6))/2,
    which on either side of zero is as in one dimension, and starts like that, with random signs.

    The codes are never formed: q̂ = vec(q_d Ω_d(n)) z is one matrix product, with
    Ω(n) = [λ cos(2πfn + θ), λ sin(2πfn + θ)] of width 2K' for each of the K dimensions.

    Without a number of realizations it is the limit R → ∞, which has a finite width:
    q̂ = [√(1−δ) q_d Ω_d(n) / √2K', √δ q], E = K (2K' + 1), has the expected products themselves,
    without noise. FAVOR+ projects it as the product above, with its ω in the place of z.

    An ungated class token has weights w of its own in the place of Ω(n), for queries and keys:
    Σ_d q_d k_d (w·Ω)_d / 2K' is expected of its product with another token's. w starts as Ω(0).

    Args:
        num_realizations: R; None for the exact limit.
        num_sines: K', sines in each dimension's kernel.

    The other arguments are `SPE`'s.
    """

    name = "sine_spe"

    def __init__(
        self,
        *args: int,
        num_realizations: int | None = 64,
        num_sines: int = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, num_realizations=num_realizations, **kwargs)
        self.num_sines = num_sines
        if num_realizations is None:
            self.relative = "exact"
            self.logit_scale = self.width**-0.5
            self.encoded_dim = self.width * (2 * num_sines + (self.gate is not None))
        shape = (self.num_codes, self.num_heads, self.width, num_sines)
        # Low frequencies at the start: sigmoid(−4)/2 is a period of about 110 positions.
        if self.num_dims == 1:
            self.frequency = nn.Parameter(torch.randn(shape) - 4)
        else:
            size = torch.randn(self.num_codes, self.num_dims, *shape[1:]) - 4 + _AROUND_ZERO
            self.frequency = nn.Parameter(torch.where(torch.rand_like(size) < 0.5, -size, size))
        self.phase = nn.Parameter(torch.randn(shape))
        gain = torch.randn(shape)
        self.gain = nn.Parameter(gain / (gain.norm(dim=-1, keepdim=True).sqrt() / 2))
        if self.class_token and self.gate is None:
            cos = F.softplus(self.gain.detach()).transpose(-2, -1)
            self.class_code = nn.Parameter(torch.cat((cos, torch.zeros_like(cos)), dim=-2))

    def sines(self, code: int) -> Sines:
        """What one code is made of."""
        frequency = self.frequency[code].float()
        if self.num_dims == 1:
            frequency = frequency.sigmoid()[None]
        else:
            above, below = (a - _AROUND_ZERO for a in (frequency, -frequency))
            frequency = above.sigmoid() - below.sigmoid()
        return Sines(frequency / 2, self.phase[code].float(), F.softplus(self.gain[code].float()))

    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        f, theta, gain = (p[..., None] for p in self.sines(code))
        tau = lags.movedim(-1, 0)[:, None, None, None]  # [P, 1, 1, 1, N]
        waves = gain**2 * torch.cos((2 * math.pi * f * tau).sum(0) + theta)
        return waves.sum(-2) / (2 * self.num_sines)

    def noise(self, noise: NoiseKey, code: int, device: torch.device) -> Tensor:
        """Z of one code, scaled: [H, 2K', K, R]."""
        assert self.num_realizations is not None
        shape = (self.num_heads, 2 * self.num_sines, self.width, self.num_realizations)
        z = noise.fold(CODE_DRAW, code).normal(*shape, device=device)
        return z * (self.code_scale / math.sqrt(2 * self.num_sines))

    def unplaced(self, positions: Tensor, code: int) -> Unplaced | None:
        """Which tokens at positions [1|B, L, num_dims] have no place, and their Ω."""
        placed = self.placed(positions)
        if placed is None:
            return None
        if self.class_code is not None:
            return Unplaced(placed, self.class_code[code].float())
        shape = (self.num_heads, 2 * self.num_sines, self.width)
        return Unplaced(placed, torch.zeros(shape, device=positions.device))

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        positions = self.read(positions)
        device, codes = positions.device, range(self.num_codes)
        made_of = [(self.sines(code), self.unplaced(positions, code)) for code in codes]
        if self.num_realizations is None:
            exact = [ExactWaves(positions, *code) for code in made_of]
            gates = self.gates(noise, device)
            return [ExactSineCode(g, exact[i % len(exact)]) for i, g in enumerate(gates)], None
        if state is None:
            state = [self.noise(noise, code, device) for code in codes], self.gates(noise, device)
        draws, gates = state
        waves = [Waves.of(positions, *code) for code in made_of]
        return [
            SineCode(gate, *waves[i % len(waves)], draws[i % len(draws)])
            for i, gate in enumerate(gates)
        ], state


class SineCode(LayerCode):
    """The waves of a code, what stands for them in the graph, the noise, and a layer's gate."""

    def __init__(self, gate: Gate | None, waves: Waves, token: Tensor, z: Tensor) -> None:
        self.gate, self.waves, self.token, self.z = gate, waves, token, z

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        position, constant, epsilon = self.gate or (None, None, None)
        q_hat, k_hat = (
            Project.apply(x, position, constant, self.token, omega, grad, self.z, epsilon)
            for x, omega, grad in (
                (q, self.waves.q, self.waves.grad_q),
                (k, self.waves.k, self.waves.grad_k),
            )
        )
        return q_hat, k_hat


class ExactWaves:
    """Ω of one code for all layers: factorised for projections, in full for all else."""

    def __init__(self, positions: Tensor, sines: Sines, unplaced: Unplaced | None) -> None:
        self.positions, self.sines, self.unplaced = positions, sines, unplaced
        # Not `cached_property`: its lock on Python 3.11 is what compiled steps cannot trace.
        self._factorised: tuple[Waves, Tensor] | None = None
        self._in_full: tuple[Tensor, Tensor] | None = None

    @property
    def factorised(self) -> tuple[Waves, Tensor]:
        if self._factorised is None:
            self._factorised = Waves.of(self.positions, self.sines, self.unplaced)
        return self._factorised

    @property
    def in_full(self) -> tuple[Tensor, Tensor]:
        """Ω / √2K' of queries and keys: [1|B, L, H, 2K', K]."""
        if self._in_full is None:
            waves = self.sines.waves(self.positions, self.unplaced)
            q, k = (omega.transpose(1, 2) for omega in waves)
            scale = q.shape[-2] ** -0.5
            self._in_full = q * scale, k * scale
        return self._in_full

    @property
    def power(self) -> Tensor:
        """‖Ω‖² / 2K', the same at every place: [H, K]; or [1|B, L, H, K] with tokens without."""
        num_waves = 2 * self.sines.gain.shape[-1]
        power = self.sines.gain.square().sum(-1) / num_waves
        if self.unplaced is None:
            return power
        placed, omega = self.unplaced
        return torch.where(placed[..., None, None], power, omega.square().sum(-2) / num_waves)


class ExactSineCode(LayerCode):
    """The limit R → ∞: [√(1−δ) q_d Ω_d(n) / √2K', √δ q]."""

    def __init__(self, gate: Gate | None, waves: ExactWaves) -> None:
        self.gate, self.waves = gate, waves

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        encoded = []
        with torch.autocast(q.device.type, enabled=False):
            for x, omega in zip((q.float(), k.float()), self.waves.in_full, strict=True):
                u = x if self.gate is None else x * self.gate.position
                parts = [(u[..., None, :] * omega).flatten(-2)]  # [B, L, H, 2K'·K]
                if self.gate is not None:
                    parts.append(x * self.gate.constant)
                encoded.append(torch.cat(parts, dim=-1))
        return encoded[0], encoded[1]

    def project(self, q: Tensor, k: Tensor, omega: Tensor) -> tuple[Projection, Projection]:
        waves, token = self.waves.factorised
        _, heads, _, num_waves, width = waves.q.shape
        z, last = omega.split([num_waves * width, omega.shape[0] - num_waves * width])
        z = (z * num_waves**-0.5).unflatten(0, (num_waves, width)).expand(heads, -1, -1, -1)
        position, constant, power, epsilon = None, None, self.waves.power, None
        if self.gate is not None:
            position, constant, epsilon = *self.gate[:2], last.expand(heads, -1, -1)
            power = power * position.square() + constant.square()
        projections = []
        for x, wave, grad in ((q, waves.q, waves.grad_q), (k, waves.k, waves.grad_k)):
            product = Project.apply(x, position, constant, token, wave, grad, z, epsilon)
            squared_norm = (x.float().square() * power).sum(-1, keepdim=True)
            projections.append(Projection(product, squared_norm))
        return projections[0], projections[1]
