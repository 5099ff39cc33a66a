"""The equations of stochastic positional encoding (Liutkus et al. 2021), built literally.

The oracle of the fast forms in tests and benchmarks: codes are arrays, and each layer keeps a gated
copy of them.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.position import ConvSPE, LayerCode, PositionalEncoding, SineSPE
from musicgen.position.angles import to_fp64
from musicgen.position.conv_spe import BLOCK_SIDE
from musicgen.random import NoiseKey, RandomStream


class NaiveSPE(PositionalEncoding):
    """A SineSPE or ConvSPE with the same parameters and noise, by the paper's equations."""

    name = "naive_spe"
    sites = SineSPE.sites
    relative = "expected"

    def __init__(self, spe: SineSPE | ConvSPE) -> None:
        super().__init__(spe.num_layers, spe.num_heads, spe.width, spe.model_dim)
        self.spe, self.num_columns = spe, spe.num_columns
        self.encoded_dim, self.logit_scale = spe.encoded_dim, spe.logit_scale

    def draw(self, key: NoiseKey, *args: Any, **options: Any) -> NoiseKey:
        return key

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[list[LayerCode], Any]:
        x = self.spe.read(positions)
        build: Any = sine if isinstance(self.spe, SineSPE) else conv
        codes = [build(self.spe, x, noise, code) for code in range(self.spe.num_codes)]
        layers: list[LayerCode] = []
        for layer, gate in enumerate(self.spe.gates(self.spe.draw_epsilon(noise, x.device))):
            bars = codes[layer % len(codes)]
            if gate is not None:  # √(1−δ) q̄ + √δ ε, with the same ε for k̄ (eqs. 23–25)
                a, c, epsilon = gate
                assert epsilon is not None  # R is finite
                bars = [a[..., None] * bar + c[..., None] * epsilon for bar in bars]
            layers.append(NaiveCode(*bars))
        return layers, None


class NaiveCode(LayerCode):
    """The codes q̄ and k̄ of a layer: [1|B, L, H, K, R] each."""

    def __init__(self, q_bar: Tensor, k_bar: Tensor) -> None:
        self.q_bar, self.k_bar = q_bar, k_bar

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q̂[n, r] = Σ_d q[n, d] q̄[n, d, r] (eqs. 16 and 17)."""
        pairs = ((q, self.q_bar), (k, self.k_bar))
        q_hat, k_hat = (torch.einsum("blhk,blhkr->blhr", x, bar) for x, bar in pairs)
        return q_hat, k_hat


def sine(spe: SineSPE, x: Tensor, noise: NoiseKey, code: int) -> list[Tensor]:
    """q̄ = Ω(θ) z and k̄ = Ω(0) z, Ω = [λ cos(2πf·x + θ), λ sin(2πf·x + θ)] (eqs. 20 and 21)."""
    a, gain = to_fp64(spe.frequency[code]), F.softplus(spe.gain[code])
    # In n dimensions f has either sign: it is odd in a, and σ(a − 6)/2 for large a.
    f = (a.sigmoid()[None] if x.shape[-1] == 1 else a.sinh() / (a.cosh() + math.cosh(6))) / 2
    turns = torch.einsum("blp,phkj->blhkj", to_fp64(x), f)
    angle = (2 * math.pi * turns).to(gain)
    drawn, *_ = spe.draw(noise, x, x.device)
    assert drawn is not None  # R is finite
    z = drawn[code].transpose(1, 2)  # [H, K, 2K', R]
    bars = []
    for shifted in (angle + spe.phase[code], angle):
        omega = torch.cat((gain * shifted.cos(), gain * shifted.sin()), dim=-1)
        if spe.class_token:
            own = torch.zeros_like(omega) if spe.class_code is None else spe.class_code[code].mT
            omega = torch.where((x >= 0).all(-1)[..., None, None, None], omega, own)
        bars.append(torch.einsum("blhkj,hkjr->blhkr", omega, z))
    return bars


def conv(spe: ConvSPE, x: Tensor, noise: NoiseKey, code: int) -> list[Tensor]:
    """q̄ = Φ_q * z and k̄ = Φ_k * z, one filter per head and dimension (eq. 22)."""
    first = min(int(x.min()) // BLOCK_SIDE, 0)
    num_blocks = -(-(int(x.max()) + spe.filter_length) // BLOCK_SIDE)
    shape = spe.num_heads, spe.width, BLOCK_SIDE, spe.encoded_dim
    keys = [noise.fold(RandomStream.SPE_CODE, code, block) for block in range(first, num_blocks)]
    z = torch.cat([key.normal(*shape, device=x.device) for key in keys], dim=2) * spe.code_scale

    def filtered(filters: Tensor, x: Tensor) -> Tensor:
        """Return the code at x: filters [H, K, F], x [1|B, L, 1] -> [1|B, L, H, K, R]."""
        weight = filters.flatten(0, 1)[:, None]
        everywhere = F.conv1d(z.flatten(0, 1).movedim(-1, 0), weight, groups=len(weight))
        at_x: Tensor = everywhere[:, :, x[..., 0] - first * BLOCK_SIDE]  # [R, H·K, 1|B, L]
        return at_x.permute(2, 3, 1, 0).unflatten(2, filters.shape[:2])

    bars = [filtered(phi[code], x) for phi in (spe.filter_q, spe.filter_k)]
    if spe.class_token:
        own = torch.zeros(()).to(z)
        if spe.class_code is not None:
            own = filtered(spe.class_code[code], torch.zeros_like(x))
        positioned = (x >= 0).all(-1)[..., None, None, None]
        bars = [torch.where(positioned, bar, own) for bar in bars]
    return bars
