"""SineSPE: stochastic codes whose expected kernel is a sum of sines, and the limit R → ∞."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.position.angles import angles_at, to_fp64
from musicgen.position.base import (
    LayerCode,
    Projection,
    prefers_large_operations,
    product_dtype,
)
from musicgen.position.spe.base import SPE, Gate
from musicgen.position.spe.batched import ArrayCode, times_sines
from musicgen.position.spe.sine_blockwise import Omega
from musicgen.position.spe.sines import Sines
from musicgen.random import NoiseKey, RandomStream
from musicgen.validation import check_int

# In n dimensions, frequencies have a logarithmic scale on both sides of zero, and a linear scale
# near zero, below about σ(−6)/2: a period of 800 positions.
_LINEAR_BELOW = 6.0


class SineSPE(SPE):
    """SineSPE (Liutkus et al. 2021, §2.1, eq. 18): P_d(τ) = 1/2K' Σ_k λ² cos(2πf·τ + θ).

    In one dimension, f = σ(a)/2 with a learned a. In n dimensions, f and τ are vectors, and the
    components of f may be negative, for waves in all directions: f = (σ(a − 6) − σ(−a − 6))/2. The
    magnitude is initialised as in one dimension, the sign at random.

    q̂ = vec(q_d Ω_d(n)) z is one matrix product, with Ω(n) = [λ cos(2πfn + θ), λ sin(2πfn + θ)] of
    width 2K' for each of the K dimensions. The codes themselves are computed only on accelerators
    and for many sequences, which share them (`batched.py`).

    `num_realizations=None` is the limit R → ∞, which has a finite width E = K (2K' + 1):
    q̂ = [√(1−δ) q_d Ω_d(n) / √2K', √δ q] has the expected products, without noise. FAVOR+ projects
    it by the product above, with its directions ω in place of z.

    Without a gate, class tokens have learned weights w in place of Ω(n), for queries and keys.
    Their expected product with another token is Σ_d q_d k_d (w·Ω)_d / 2K'. w is initialised as
    Ω(0).

    Args:
        num_sines: K', the number of sines in the kernel of each dimension.
    """

    name = "sine_spe"

    def __init__(self, *args: int, num_sines: int = 5, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_int("num_sines", num_sines)
        self.num_sines = num_sines
        if self.num_realizations is None:
            self.relative = "exact"
            self.logit_scale = self.width**-0.5
            self.encoded_dim = self.width * (2 * num_sines + (self.gate is not None))
        shape = (self.num_codes, self.num_heads, self.width, num_sines)
        # Low initial frequencies: sigmoid(−4)/2 is a period of about 110 positions.
        if self.num_dims == 1:
            self.frequency = nn.Parameter(torch.randn(shape) - 4)
        else:
            size = torch.randn(self.num_codes, self.num_dims, *shape[1:]) - 4 + _LINEAR_BELOW
            self.frequency = nn.Parameter(torch.where(torch.rand_like(size) < 0.5, -size, size))
        self.phase = nn.Parameter(torch.randn(shape))
        gain = torch.randn(shape)
        self.gain = nn.Parameter(gain / (gain.norm(dim=-1, keepdim=True).sqrt() / 2))
        if self.class_token and self.gate is None:
            cos = F.softplus(self.gain.detach()).transpose(-2, -1)
            self.class_code = nn.Parameter(torch.cat((cos, torch.zeros_like(cos)), dim=-2))

    def sines(self, code: int) -> Sines:
        """Return the parameters of one code."""
        frequency = to_fp64(self.frequency[code])
        if self.num_dims == 1:
            frequency = frequency.sigmoid()[None]
        else:
            above, below = (a - _LINEAR_BELOW for a in (frequency, -frequency))
            frequency = above.sigmoid() - below.sigmoid()
        phase, gain = self.phase[code].float(), F.softplus(self.gain[code].float())
        class_omega = None
        if self.class_code is not None:
            class_omega = self.class_code[code].float()
        elif self.class_token:
            class_omega = gain.new_zeros(self.num_heads, 2 * self.num_sines, self.width)
        return Sines(frequency / 2, phase, gain, class_omega)

    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        f, theta, gain = (p[..., None] for p in self.sines(code)[:3])
        tau = lags.T[:, None, None, None]  # [P, 1, 1, 1, N]
        dtype = torch.promote_types(lags.dtype, torch.float32)
        waves = gain**2 * torch.cos(angles_at(zip(tau, f, strict=True), dtype) + theta)
        return waves.sum(-2) / (2 * self.num_sines)

    def draw(
        self,
        key: NoiseKey,
        positions: Tensor,
        device: torch.device,
        *,
        batch_size: int = 1,
        state: Any = None,
    ) -> SineNoise:
        if state is not None:  # the noise of the earlier tokens
            return state
        if self.num_realizations is None:
            return SineNoise(None, None, False)
        shape = (self.num_codes, self.num_heads, 2 * self.num_sines, self.width)
        z = key.fold(RandomStream.SPE_CODE).normal(*shape, self.num_realizations, device=device)
        z = z.mul_(self.code_scale / math.sqrt(2 * self.num_sines))
        # Codes for all sequences have L·H·K·R numbers, products with Ω B·L·H·K·2K'.
        forms_codes = batch_size * 2 * self.num_sines >= self.num_realizations
        return SineNoise(z, self.draw_epsilon(key, device), forms_codes)

    def forward(
        self, positions: Tensor, *, noise: Any, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        positions = self.read(positions)
        if state is not None:
            noise = state
        elif isinstance(noise, NoiseKey):
            noise = self.draw(noise, positions, positions.device)
        sines = [self.sines(code) for code in range(self.num_codes)]
        gates = self.gates(noise.epsilon)
        large = prefers_large_operations(positions.device)
        if noise.z is None:
            exact = [ExactOmega(positions, code_sines, large) for code_sines in sines]
            return [ExactSineCode(g, exact[i % len(exact)]) for i, g in enumerate(gates)], None
        build = _blocked
        if large:
            # All sequences can share codes only if they have the same positions.
            build = _formed if noise.forms_codes and len(positions) == 1 else _expanded
        shared = [build(*each, positions) for each in zip(sines, noise.z, strict=True)]
        codes = [shared[i % len(shared)](gate) for i, gate in enumerate(gates)]
        return codes, noise


class SineNoise(NamedTuple):
    """The noise of a sequence."""

    z: Tensor | None  # [codes, H, 2K', K, R], scaled; None in the limit R → ∞
    epsilon: Tensor | None  # [layers, H, K, R], of the gates
    forms_codes: bool  # whether codes for all sequences are smaller than Ω times each sequence


def _blocked(sines: Sines, z: Tensor, positions: Tensor) -> Callable[[Gate | None], LayerCode]:
    omega, grad_anchor = Omega.of(positions, sines)
    return lambda gate: SineCode(gate, omega, grad_anchor, z)


def _formed(sines: Sines, z: Tensor, positions: Tensor) -> Callable[[Gate | None], LayerCode]:
    q_code, k_code = sines.codes(positions, z)
    return lambda gate: ArrayCode(gate, q_code, k_code, None)


def _expanded(sines: Sines, z: Tensor, positions: Tensor) -> Callable[[Gate | None], LayerCode]:
    dtype = product_dtype(positions.device)
    omega_q, omega_k = (omega.to(dtype) for omega in sines.omega(positions))
    return lambda gate: ExpandedSineCode(gate, omega_q, omega_k, z)


class SineCode(LayerCode):
    """Encoding by blocks of positions: the gate of a layer, Ω, its gradient anchor, and noise z."""

    def __init__(self, gate: Gate | None, omega: Omega, grad_anchor: Tensor, z: Tensor) -> None:
        self.gate, self.omega, self.grad_anchor, self.z = gate, omega, grad_anchor, z

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.omega.project(q, k, self.grad_anchor, self.z, self.gate)


class ExpandedSineCode(LayerCode):
    """Encoding by few large operations: the gate of a layer, Ω of queries and of keys, noise z."""

    def __init__(self, gate: Gate | None, omega_q: Tensor, omega_k: Tensor, z: Tensor) -> None:
        self.gate, self.omega_q, self.omega_k, self.z = gate, omega_q, omega_k, z

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(q.device.type, enabled=False):
            return (
                times_sines(q, self.omega_q, self.z, self.gate),
                times_sines(k, self.omega_k, self.z, self.gate),
            )


class ExactOmega:
    """Ω of one code in the limit R → ∞, shared by all layers.

    Args:
        positions: [1|B, L, num_dims].
        sines: parameters of the code.
        large: compute products by few large operations, and Ω immediately. Else products are
            computed by blocks that fit a CPU's cache, and Ω when it is first used.
    """

    def __init__(self, positions: Tensor, sines: Sines, large: bool) -> None:
        self.positions, self.sines, self.large = positions, sines, large
        self.waves = sines.omega(positions) if large else None
        # Not `cached_property`, as torch.compile cannot trace its lock in Python 3.11.
        self._anchored: tuple[Omega, Tensor] | None = None
        self._scaled: tuple[Tensor, Tensor] | None = None

    @property
    def anchored(self) -> tuple[Omega, Tensor]:
        """Ω and its gradient anchor, for products by blocks."""
        if self._anchored is None:
            self._anchored = Omega.of(self.positions, self.sines)
        return self._anchored

    @property
    def scaled(self) -> tuple[Tensor, Tensor]:
        """Ω / √2K' of queries and of keys: [1|B, L, H, 2K', K] each."""
        if self._scaled is None:
            q, k = self.waves or self.sines.omega(self.positions)
            scale = q.shape[-2] ** -0.5
            self._scaled = q.transpose(1, 2) * scale, k.transpose(1, 2) * scale
        return self._scaled

    def project(self, q: Tensor, k: Tensor, z: Tensor, gate: Gate | None) -> tuple[Tensor, Tensor]:
        """Return q̂ and k̂, [B, L, H, M] each, with directions z [H, 2K', K, M] instead of noise."""
        if self.waves is None:
            omega, grad_anchor = self.anchored
            return omega.project(q, k, grad_anchor, z, gate)
        omega_q, omega_k = (waves.to(product_dtype(q.device)) for waves in self.waves)
        with torch.autocast(q.device.type, enabled=False):
            return times_sines(q, omega_q, z, gate), times_sines(k, omega_k, z, gate)


class ExactSineCode(LayerCode):
    """Encoding in the limit R → ∞: q̂ = [√(1−δ) q_d Ω_d(n) / √2K', √δ q]."""

    def __init__(self, gate: Gate | None, omega: ExactOmega) -> None:
        self.gate, self.omega = gate, omega

    def repeatable(self) -> LayerCode:
        if self.omega.large:
            return self
        fresh = ExactOmega(self.omega.positions, self.omega.sines, self.omega.large)
        return ExactSineCode(self.gate, fresh)

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        encoded = []
        with torch.autocast(q.device.type, enabled=False):
            for x, omega in zip((q.float(), k.float()), self.omega.scaled, strict=True):
                u = x if self.gate is None else x * self.gate.position
                parts = [(u[..., None, :] * omega).flatten(-2)]  # [B, L, H, 2K'·K]
                if self.gate is not None:
                    parts.append(x * self.gate.constant)
                encoded.append(torch.cat(parts, dim=-1))
        return encoded[0], encoded[1]

    def project(self, q: Tensor, k: Tensor, directions: Tensor) -> tuple[Projection, Projection]:
        heads, width, num_sines = self.omega.sines.gain.shape
        num_waves = 2 * num_sines
        z, last = directions.split([num_waves * width, len(directions) - num_waves * width])
        z = (z * num_waves**-0.5).unflatten(0, (num_waves, width)).expand(heads, -1, -1, -1)
        mean_square, gate = self.omega.sines.mean_square(self.omega.positions), self.gate
        if gate is not None:
            mean_square = mean_square * gate.position.square() + gate.constant.square()
            gate = gate._replace(epsilon=last.expand(heads, -1, -1))
        q_product, k_product = self.omega.project(q, k, z, gate)
        squared_norm = (k.float().square() * mean_square).sum(-1, keepdim=True)
        return Projection(q_product), Projection(k_product, squared_norm)
