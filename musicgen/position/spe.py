"""Stochastic positional encoding (Liutkus et al. 2021): random codes with a relative covariance.

Letters as in the rest of the repository: head width K (the paper's D), encoded width E = the
number of realizations R. For every head, q̂[n, r] = Σ_d q[n, d] q̄[n, d, r] with random codes q̄, k̄
of which E[q̄[m, d, r] k̄[n, d, r]] ∝ P_d(m − n), so that q̂·k̂ estimates Σ_d q_d k_d P_d(m − n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.position.base import LayerCode, NoiseKey, PositionalEncoding, Site

# Words that keep the draws of one key apart.
_CODE, _GATE = 0, 1

_CodePair = tuple[Tensor, Tensor]


class SPE(PositionalEncoding):
    """What sineSPE and convSPE share: scales, the gate, and one or many codes.

    Args:
        num_realizations: R, the width of encoded queries and keys.
        gated: mix each layer's kernel with a constant, P_d ← δ + (1 − δ) P_d (§2.4, eqs. 23–25).
        shared: one code, drawn once per forward, for all layers; else a code and parameters each.
    """

    sites = frozenset({Site.QUERY_KEY})
    relative = "expected"

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        width: int,
        model_dim: int,
        *,
        num_realizations: int = 64,
        gated: bool = True,
        shared: bool = True,
    ) -> None:
        super().__init__(num_layers, num_heads, width, model_dim)
        self.num_realizations, self.shared = num_realizations, shared
        self.num_codes = 1 if shared else num_layers
        self.encoded_dim = num_realizations
        # The codes carry (R·K)^-¼ each, so R^-½ here makes K^-½ of the expected product.
        self.logit_scale = num_realizations**-0.5
        self.code_scale = (num_realizations * width) ** -0.25
        self.gate = nn.Parameter(torch.randn(num_layers, num_heads, width)) if gated else None

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor:
        """The expected kernel P_d at the lags m − n: [N] -> [H, K, N].

        Without `layer`: of the first code, ungated. With it: of that layer, through its gate.
        """
        kernel = self.code_kernel(lags, 0 if self.shared or layer is None else layer)
        if layer is None or self.gate is None:
            return kernel
        delta = self.gate[layer].sigmoid()[..., None]
        return delta + (1 - delta) * kernel

    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        """P_d of one code, ungated: [N] -> [H, K, N]."""
        raise NotImplementedError

    def _gates(self, noise: NoiseKey, device: torch.device) -> list[_Gate | None]:
        """Each layer's gate, with its own noise ε, drawn per layer (eqs. 23–25)."""
        if self.gate is None:
            return [None] * self.num_layers
        delta = self.gate.float().sigmoid()
        shape = (self.num_heads, self.width, self.num_realizations)
        return [
            _Gate(
                (1 - delta[layer]).sqrt(),
                delta[layer].sqrt(),
                noise.fold(_GATE, layer).normal(*shape, device=device) * self.code_scale,
            )
            for layer in range(self.num_layers)
        ]


@dataclass
class _Gate:
    """sqrt(1 − δ) and sqrt(δ), [H, K] each, and the scaled noise ε, [H, K, R]."""

    position: Tensor
    constant: Tensor
    epsilon: Tensor

    def project(self, x: Tensor) -> Tensor:
        """The positionless part of an encoded query or key: [B, L, H, K] -> [B, L, H, R]."""
        return torch.einsum("blhk,hkr->blhr", x * self.constant, self.epsilon)


class _SPECode(LayerCode):
    """Folds the gate into q and k, so that no layer keeps a gated copy of the codes."""

    def __init__(self, gate: _Gate | None) -> None:
        self.gate = gate

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The part of the encoded queries and keys that position acts on."""
        raise NotImplementedError

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(q.device.type, enabled=False):
            q, k = q.float(), k.float()
            if self.gate is None:
                return self.project(q, k)
            q_hat, k_hat = self.project(q * self.gate.position, k * self.gate.position)
            return q_hat + self.gate.project(q), k_hat + self.gate.project(k)


class SineSPE(SPE):
    """SineSPE: the kernel is a sum of sines, P_d(τ) = 1/2K' Σ_k λ² cos(2πf τ + θ) (§2.2, eq. 18).

    The codes are never formed: q̂ = vec(q_d Ω_d(n)) z is one matrix product, with
    Ω(n) = [λ cos(2πfn + θ), λ sin(2πfn + θ)] of width 2K' for each of the K dimensions.

    Args:
        num_sines: K', sines in each dimension's kernel.
    """

    name = "sine_spe"

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        width: int,
        model_dim: int,
        *,
        num_realizations: int = 64,
        num_sines: int = 5,
        gated: bool = True,
        shared: bool = True,
    ) -> None:
        super().__init__(
            num_layers,
            num_heads,
            width,
            model_dim,
            num_realizations=num_realizations,
            gated=gated,
            shared=shared,
        )
        self.num_sines = num_sines
        shape = (self.num_codes, num_heads, width, num_sines)
        # Low frequencies at the start: sigmoid(−4)/2 is a period of about 110 positions.
        self.frequency = nn.Parameter(torch.randn(shape) - 4)
        self.phase = nn.Parameter(torch.randn(shape))
        gain = torch.randn(shape)
        self.gain = nn.Parameter(gain / (gain.norm(dim=-1, keepdim=True).sqrt() / 2))

    def _parameters_of(self, code: int) -> tuple[Tensor, Tensor, Tensor]:
        """Frequencies in cycles per position within (0, ½), phases, gains: [H, K, K'] each."""
        return (
            self.frequency[code].float().sigmoid() / 2,
            self.phase[code].float(),
            F.softplus(self.gain[code].float()),
        )

    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        f, theta, gain = (p[..., None] for p in self._parameters_of(code))
        waves = gain**2 * torch.cos(2 * math.pi * f * lags + theta)
        return waves.sum(-2) / (2 * self.num_sines)

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        device = positions.device
        if state is None:
            shape = (self.num_heads, self.width * 2 * self.num_sines, self.num_realizations)
            scale = self.code_scale / math.sqrt(2 * self.num_sines)
            draws = [
                noise.fold(_CODE, code).normal(*shape, device=device) * scale
                for code in range(self.num_codes)
            ]
            state = draws, self._gates(noise, device)
        draws, gates = state
        with torch.autocast(device.type, enabled=False):
            waves = [self._waves(positions, code) for code in range(self.num_codes)]
        codes = [
            _SineCode(gate, *waves[layer % self.num_codes], draws[layer % self.num_codes])
            for layer, gate in enumerate(gates)
        ]
        return codes, state

    def _waves(self, positions: Tensor, code: int) -> tuple[Tensor, Tensor]:
        """Ω_q (with the phase) and Ω_k (without) at the positions, [1|B, L, H, K, 2K'] each."""
        f, theta, gain = self._parameters_of(code)
        angle = (2 * math.pi) * positions[..., :1, None, None].float() * f  # [1|B, L, H, K, K']

        def waves(angle: Tensor) -> Tensor:
            return torch.cat((gain * angle.cos(), gain * angle.sin()), dim=-1)

        return waves(angle + theta), waves(angle)


class _SineCode(_SPECode):
    def __init__(self, gate: _Gate | None, omega_q: Tensor, omega_k: Tensor, z: Tensor) -> None:
        super().__init__(gate)
        self.omega_q, self.omega_k, self.z = omega_q, omega_k, z

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        def spread(x: Tensor, omega: Tensor) -> Tensor:
            wide = (x[..., None] * omega).flatten(-2)  # [B, L, H, K·2K']
            return torch.einsum("blhx,hxr->blhr", wide, self.z)

        return spread(q, self.omega_q), spread(k, self.omega_k)


class ConvSPE(SPE):
    """ConvSPE: codes are white noise through learned filters, one per head and dimension (§2.2).

    Args:
        filter_length: P, positions a filter spans; the kernel is zero from lag P on.
    """

    name = "conv_spe"

    # Noise is drawn by blocks of positions, so that any part of a sequence can be computed alone.
    block = 128

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        width: int,
        model_dim: int,
        *,
        num_realizations: int = 64,
        filter_length: int = 128,
        gated: bool = True,
        shared: bool = True,
    ) -> None:
        super().__init__(
            num_layers,
            num_heads,
            width,
            model_dim,
            num_realizations=num_realizations,
            gated=gated,
            shared=shared,
        )
        self.filter_length = filter_length
        shape = (self.num_codes, num_heads, width, filter_length)
        self.filter_q = nn.Parameter(torch.rand(shape) / math.sqrt(filter_length / 2))
        self.filter_k = nn.Parameter(torch.rand(shape) / math.sqrt(filter_length / 2))

    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        # q̄[m] = Σ_p Φ_q[p] z[m + p]: lag τ pairs Φ_q[p] with Φ_k[p + τ].
        p = torch.arange(self.filter_length, device=lags.device)
        index = p[:, None] + lags.long()  # [P, N]
        inside = (index >= 0) & (index < self.filter_length)
        shifted = self.filter_k[code][..., index.clamp(0, self.filter_length - 1)] * inside
        return torch.einsum("hkp,hkpn->hkn", self.filter_q[code], shifted)

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        device = positions.device
        if state is None:
            state = _ConvState(self._gates(noise, device))
        index = positions[..., 0].long()  # [1|B, L]
        first, last = int(index.min()) // self.block, int(index.max()) // self.block
        run, bars = state.missing(first, last), []
        computed = self._run(run, noise, device)
        state = state.update(first, run, computed, self.block)
        if run == range(first, last + 1):
            bars = computed
        else:
            blocks = [state.blocks[block] for block in range(first, last + 1)]
            for code in range(self.num_codes):
                q_bars, k_bars = zip(*(block[code] for block in blocks), strict=True)
                bars.append((torch.cat(q_bars), torch.cat(k_bars)))
        index = index - first * self.block
        # A run from a block's start is a slice, which copies nothing.
        from_start = torch.arange(index.shape[1], device=device)
        whole = index.shape[0] == 1 and torch.equal(index[0], from_start)
        picked = [
            tuple(bar[None, : index.shape[1]] if whole else bar[index] for bar in pair)
            for pair in bars
        ]
        return [
            _ConvCode(gate, *picked[layer % self.num_codes])
            for layer, gate in enumerate(state.gates)
        ], state

    def _run(self, run: range, noise: NoiseKey, device: torch.device) -> list[_CodePair]:
        """For each code, q̄ and k̄ of a run of whole blocks: [len(run)·block, H, K, R] each."""
        if not run:
            return []
        # Noise of the blocks, and of as many after them as the filter reaches into.
        reach = -(-(self.filter_length - 1) // self.block)
        shape = (self.num_heads, self.width, self.num_realizations, self.block)
        codes = []
        with torch.autocast(device.type, enabled=False):
            for code in range(self.num_codes):
                draws = [
                    noise.fold(_CODE, code, block).normal(*shape, device=device)
                    for block in range(run.start, run.stop + reach)
                ]
                z = torch.cat(draws, dim=-1)
                spectrum = torch.fft.rfft(z)
                q_bar, k_bar = (
                    self._correlate(spectrum, taps[code].float(), z.shape[-1])
                    .narrow(-1, 0, len(run) * self.block)
                    .permute(3, 0, 1, 2)
                    .contiguous()
                    for taps in (self.filter_q, self.filter_k)
                )
                codes.append((q_bar, k_bar))
        return codes

    def _correlate(self, spectrum: Tensor, taps: Tensor, length: int) -> Tensor:
        """Σ_p taps[p] z[n + p] for n ≤ length − P, through the circular correlation's spectrum."""
        response = torch.fft.rfft(taps, n=length).conj()[:, :, None]  # [H, K, 1, F]
        return torch.fft.irfft(spectrum * response, n=length) * self.code_scale


@dataclass(frozen=True)
class _ConvState:
    """The gates' noise, and each code's q̄, k̄ for the blocks of positions that are in use."""

    gates: list[_Gate | None]
    blocks: dict[int, list[_CodePair]] = field(default_factory=dict)

    def missing(self, first: int, last: int) -> range:
        """The smallest run of blocks that covers those of first..last that are not there."""
        absent = [block for block in range(first, last + 1) if block not in self.blocks]
        return range(absent[0], absent[-1] + 1) if absent else range(0)

    def update(self, first: int, run: range, codes: list[_CodePair], size: int) -> _ConvState:
        """With the codes of a run of blocks, without the blocks before `first`."""
        blocks = {block: pairs for block, pairs in self.blocks.items() if block >= first}
        for i, block in enumerate(run):
            part = slice(i * size, (i + 1) * size)
            blocks[block] = [(q_bar[part], k_bar[part]) for q_bar, k_bar in codes]
        return _ConvState(self.gates, blocks)


class _ConvCode(_SPECode):
    def __init__(self, gate: _Gate | None, q_bar: Tensor, k_bar: Tensor) -> None:
        super().__init__(gate)
        self.q_bar, self.k_bar = q_bar, k_bar  # [1|B, L, H, K, R]

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        def mix(x: Tensor, code: Tensor) -> Tensor:
            if code.shape[0] == 1:
                return torch.einsum("blhk,lhkr->blhr", x, code[0])
            return torch.einsum("blhk,blhkr->blhr", x, code)

        return mix(q, self.q_bar), mix(k, self.k_bar)
