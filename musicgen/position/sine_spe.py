"""SineSPE: stochastic codes whose expected kernel is a sum of sines, and their exact limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.position.base import LayerCode, NoiseKey, Projection
from musicgen.position.spe import CODE_DRAW, SPE, Gate
from musicgen.position.waves import Project, Sines, Waves


class SineSPE(SPE):
    """P_d(τ) = 1/2K' Σ_k λ² cos(2πf τ + θ) (Liutkus et al. 2021, §2.2, eq. 18).

    The codes are never formed: q̂ = vec(q_d Ω_d(n)) z is one matrix product, with
    Ω(n) = [λ cos(2πfn + θ), λ sin(2πfn + θ)] of width 2K' for each of the K dimensions.

    Without a number of realizations it is the limit R → ∞, which has a finite width:
    q̂ = [√(1−δ) q_d Ω_d(n) / √2K', √δ q], E = K (2K' + 1), has the expected products themselves,
    without noise. FAVOR+ projects it as the product above, with its ω in the place of z.

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
        self.frequency = nn.Parameter(torch.randn(shape) - 4)
        self.phase = nn.Parameter(torch.randn(shape))
        gain = torch.randn(shape)
        self.gain = nn.Parameter(gain / (gain.norm(dim=-1, keepdim=True).sqrt() / 2))

    def sines(self, code: int) -> Sines:
        """What one code is made of."""
        return Sines(
            self.frequency[code].float().sigmoid() / 2,
            self.phase[code].float(),
            F.softplus(self.gain[code].float()),
        )

    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        f, theta, gain = (p[..., None] for p in self.sines(code))
        waves = gain**2 * torch.cos(2 * math.pi * f * lags + theta)
        return waves.sum(-2) / (2 * self.num_sines)

    def noise(self, noise: NoiseKey, code: int, device: torch.device) -> Tensor:
        """Z of one code, scaled: [H, 2K', K, R]."""
        assert self.num_realizations is not None
        shape = (self.num_heads, 2 * self.num_sines, self.width, self.num_realizations)
        z = noise.fold(CODE_DRAW, code).normal(*shape, device=device)
        return z * (self.code_scale / math.sqrt(2 * self.num_sines))

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        positions = self.read(positions)
        device, codes = positions.device, range(self.num_codes)
        sines = [self.sines(code) for code in codes]
        if self.num_realizations is None:
            exact = [ExactWaves(positions, code) for code in sines]
            gates = self.gates(noise, device)
            return [ExactSineCode(g, exact[i % len(exact)]) for i, g in enumerate(gates)], None
        if state is None:
            state = [self.noise(noise, code, device) for code in codes], self.gates(noise, device)
        draws, gates = state
        waves = [Waves.of(positions, code) for code in sines]
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

    def __init__(self, positions: Tensor, sines: Sines) -> None:
        self.positions, self.sines = positions, sines

    @cached_property
    def factorised(self) -> tuple[Waves, Tensor]:
        return Waves.of(self.positions, self.sines)

    @cached_property
    def in_full(self) -> tuple[Tensor, Tensor]:
        """Ω / √2K' of queries and keys: [1|B, L, H, 2K', K]."""
        q, k = (omega.transpose(1, 2) for omega in self.sines.waves(self.positions))
        scale = q.shape[-2] ** -0.5
        return q * scale, k * scale

    @property
    def power(self) -> Tensor:
        """‖Ω‖² / 2K', the same at every position: [H, K]."""
        return self.sines.gain.square().sum(-1) / (2 * self.sines.gain.shape[-1])


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
