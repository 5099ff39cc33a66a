"""SPE as the paper builds it: codes as arrays, a gated copy of them for each layer.

To read, to test the fast forms against, and to measure what they save.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.position import SPE, ConvSPE, LayerCode, NoiseKey, PositionalEncoding, SineSPE
from musicgen.position.conv_spe import BLOCK
from musicgen.position.spe import CODE_DRAW


class NaiveSPE(PositionalEncoding):
    """Wraps a SineSPE or ConvSPE: its parameters and noise, in the literal construction."""

    name = "naive_spe"
    sites = SPE.sites
    relative = "expected"

    def __init__(self, spe: SineSPE | ConvSPE) -> None:
        super().__init__(spe.num_layers, spe.num_heads, spe.width, spe.model_dim)
        self.spe = spe
        self.encoded_dim, self.logit_scale = spe.encoded_dim, spe.logit_scale

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        length = positions.shape[1]
        build = self._sine if isinstance(self.spe, SineSPE) else self._conv
        codes = [build(length, code, noise) for code in range(self.spe.num_codes)]
        layers = []
        for layer, gate in enumerate(self.spe.gates(noise, positions.device)):
            q_bar, k_bar = codes[layer % self.spe.num_codes]
            if gate is not None:
                a, c, epsilon = gate
                q_bar, k_bar = (
                    a[..., None] * bar + c[..., None] * epsilon for bar in (q_bar, k_bar)
                )
            layers.append(_ArrayCode(q_bar, k_bar))
        return layers, None

    def _sine(self, length: int, code: int, noise: NoiseKey) -> tuple[Tensor, Tensor]:
        """q̄ and k̄, [L, H, K, R]: Ω z at every position, head and dimension."""
        assert isinstance(self.spe, SineSPE)
        f, theta, gain = self.spe.sines(code)  # [H, K, K']
        z = self.spe.noise(noise, code, f.device).transpose(1, 2)  # [H, K, 2K', R]
        n = torch.arange(length, device=f.device)[:, None, None, None]
        angle = 2 * math.pi * f * n  # [L, H, K, K']
        bars = []
        for a in (angle + theta, angle):
            omega = torch.cat((gain * a.cos(), gain * a.sin()), dim=-1)
            bars.append(torch.einsum("lhkj,hkjr->lhkr", omega, z))
        return bars[0], bars[1]

    def _conv(self, length: int, code: int, noise: NoiseKey) -> tuple[Tensor, Tensor]:
        """q̄ and k̄, [L, H, K, R]: depthwise convolutions of one noise."""
        spe = self.spe
        assert isinstance(spe, ConvSPE)
        span = length + spe.filter_length - 1
        shape = (spe.width, BLOCK, spe.num_realizations)
        heads = []
        for head in range(spe.num_heads):
            key = noise.fold(CODE_DRAW, code, head)
            blocks = [
                key.fold(block).normal(*shape, device=spe.filter_q.device)
                for block in range(-(-span // BLOCK))
            ]
            heads.append(torch.cat(blocks, dim=1)[:, :span])
        z = torch.cat(heads).permute(2, 0, 1)  # [R, H·K, span]
        bars = []
        for taps in (spe.filter_q[code], spe.filter_k[code]):
            weight = taps.flatten(0, 1)[:, None]  # [H·K, 1, P]
            bar = F.conv1d(z, weight, groups=len(weight)) * spe.code_scale  # [R, H·K, L]
            bars.append(bar.permute(2, 1, 0).unflatten(1, taps.shape[:2]))
        return bars[0], bars[1]


class _ArrayCode(LayerCode):
    def __init__(self, q_bar: Tensor, k_bar: Tensor) -> None:
        self.q_bar, self.k_bar = q_bar, k_bar

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return (
            torch.einsum("blhk,lhkr->blhr", q, self.q_bar),
            torch.einsum("blhk,lhkr->blhr", k, self.k_bar),
        )
