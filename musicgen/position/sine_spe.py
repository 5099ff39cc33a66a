"""SineSPE: stochastic codes whose expected kernel is a sum of sines, and the limit R → ∞."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.position.angles import angles_at, to_fp64
from musicgen.position.base import LayerCode, prefers_large_operations, product_dtype
from musicgen.position.spe import SPE, Gate, Sines, SPECode, times_codes, times_sines
from musicgen.position.spe_blockwise import sine_products
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
    width 2K' per dimension. The codes themselves are computed only on accelerators
    and for many sequences, which share them.

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
    ) -> Any:
        """Return the noise of a sequence, which is also the state after any of its tokens.

        Returns:
            The scaled noise z, [codes, H, 2K', K, R], or None in the limit R → ∞; the noise of the
            gates, [layers, H, K, R], or None; and whether codes for all sequences are smaller than
            Ω times each sequence.
        """
        if state is not None:
            return state
        if self.num_realizations is None:
            return None, None, False
        shape = (self.num_codes, self.num_heads, 2 * self.num_sines, self.width)
        z = key.fold(RandomStream.SPE_CODE).normal(*shape, self.num_realizations, device=device)
        z = z.mul_(self.code_scale / math.sqrt(2 * self.num_sines))
        # Codes for all sequences have L·H·K·R numbers, products with Ω B·L·H·K·2K'.
        forms_codes = batch_size * 2 * self.num_sines >= self.num_realizations
        return z, self.draw_epsilon(key, device), forms_codes

    def forward(
        self, positions: Tensor, *, noise: Any, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        positions = self.read(positions)
        if state is not None:
            noise = state
        elif isinstance(noise, NoiseKey):
            noise = self.draw(noise, positions, positions.device)
        z, epsilon, forms_codes = noise
        sines = [self.sines(code) for code in range(self.num_codes)]
        gates = self.gates(epsilon)
        large = prefers_large_operations(positions.device)
        if z is None:
            shared: list[Any] = [
                (positions, each, each.omega(positions) if large else None, {}) for each in sines
            ]
            return [ExactSineCode(g, *shared[i % len(shared)]) for i, g in enumerate(gates)], None
        products = []
        for code_sines, code_z in zip(sines, z, strict=True):
            if not large:
                of_q_and_k = [
                    partial(times, z=code_z) for times in sine_products(positions, code_sines)
                ]
            elif forms_codes and len(positions) == 1:  # all sequences can share codes
                codes = _codes(positions, code_sines, code_z)
                of_q_and_k = [partial(times_codes, code=code, slots=None) for code in codes]
            else:
                dtype = product_dtype(positions.device)
                of_q_and_k = [
                    partial(times_sines, omega=omega.to(dtype), z=code_z)
                    for omega in code_sines.omega(positions)
                ]
            products.append(of_q_and_k)
        return [SPECode(gate, *products[i % len(products)]) for i, gate in enumerate(gates)], noise


def _codes(positions: Tensor, sines: Sines, z: Tensor) -> list[Tensor]:
    """Return the codes q̄ and k̄, which are Ω times noise, in the dtype of products.

    Args:
        positions: [1, L, P].
        z: noise [H, 2K', K, R].

    Returns:
        [L, H, K, R] each.
    """
    dtype = product_dtype(positions.device)
    noise = z.transpose(1, 2).flatten(0, 1).to(dtype)  # [H·K, 2K', R]
    codes = []
    for omega in sines.omega(positions):
        waves = omega[0].permute(0, 3, 1, 2).flatten(0, 1).to(dtype)  # [H·K, L, 2K']
        with torch.autocast(positions.device.type, enabled=False):
            code = torch.bmm(waves, noise)  # [H·K, L, R]
        codes.append(code.transpose(0, 1).unflatten(1, z.shape[0:3:2]).contiguous())
    return codes


class ExactSineCode(LayerCode):
    """Encoding in the limit R → ∞: q̂ = [√(1−δ) q_d Ω_d(n) / √2K', √δ q].

    Args:
        gate: of the layer.
        positions: [1|B, L, num_dims].
        sines: parameters of the code.
        omegas: Ω of queries and of keys, for products by few large operations. None: products are
            computed by blocks that fit a CPU's cache, and Ω when it is first used.
        cache: results that all layers with the same code share.
    """

    def __init__(
        self,
        gate: Gate | None,
        positions: Tensor,
        sines: Sines,
        omegas: tuple[Tensor, Tensor] | None,
        cache: dict[str, list[Any]],
    ) -> None:
        self.gate, self.positions, self.sines = gate, positions, sines
        self.omegas, self.cache = omegas, cache

    def repeatable(self) -> LayerCode:
        if self.omegas is not None:
            return self
        return ExactSineCode(self.gate, self.positions, self.sines, None, {})

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if "scaled" not in self.cache:  # Ω / √2K': [1|B, L, H, 2K', K] each
            omegas = self.omegas or self.sines.omega(self.positions)
            scale = omegas[0].shape[-2] ** -0.5
            self.cache["scaled"] = [omega.transpose(1, 2) * scale for omega in omegas]
        encoded = []
        with torch.autocast(q.device.type, enabled=False):
            for x, omega in zip((q.float(), k.float()), self.cache["scaled"], strict=True):
                u = x if self.gate is None else x * self.gate.position
                parts = [(u[..., None, :] * omega).flatten(-2)]  # [B, L, H, 2K'·K]
                if self.gate is not None:
                    parts.append(x * self.gate.constant)
                encoded.append(torch.cat(parts, dim=-1))
        return encoded[0], encoded[1]

    def project(self, q: Tensor, k: Tensor, directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads, width, num_sines = self.sines.gain.shape
        num_waves = 2 * num_sines
        z, last = directions.split([num_waves * width, len(directions) - num_waves * width])
        z = (z * num_waves**-0.5).unflatten(0, (num_waves, width)).expand(heads, -1, -1, -1)
        mean_square, gate = self.sines.mean_square(self.positions), self.gate
        if gate is not None:
            mean_square = mean_square * gate.position.square() + gate.constant.square()
            gate = gate._replace(epsilon=last.expand(heads, -1, -1))
        if self.omegas is not None:
            dtype = product_dtype(q.device)
            of_q, of_k = (partial(times_sines, omega=omega.to(dtype)) for omega in self.omegas)
        else:
            if "products" not in self.cache:
                self.cache["products"] = sine_products(self.positions, self.sines)
            of_q, of_k = self.cache["products"]
        with torch.autocast(q.device.type, enabled=False):
            projected = of_q(q, gate, z=z), of_k(k, gate, z=z)
        return *projected, (k.float().square() * mean_square).sum(-1, keepdim=True)
