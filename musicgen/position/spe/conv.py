"""ConvSPE: stochastic codes that are white noise filtered by learned filters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from musicgen.errors import ParameterError
from musicgen.position.base import LayerCode
from musicgen.position.spe.base import SPE, Gate
from musicgen.position.spe.conv_noise import BLOCK_SIDE, ConvNoise
from musicgen.position.spe.conv_operators import CodeArrays, ConvCode
from musicgen.random import NoiseKey, RandomStream


class ConvSPE(SPE):
    """q̄ = Φ_q * z, k̄ = Φ_k * z, one filter per head and dimension (Liutkus et al. 2021, §2.1).

    An ungated class token has its own filter over z at the origin, for queries and keys,
    initialised as Φ_k. Its expected products with tokens at a lag of P or more from the origin are
    zero, as between any tokens that far apart. The gate's constant is not zero there.

    Args:
        filter_length: P, the taps of a filter. The kernel is zero at lags of P or more.

    Raises:
        ValueError: `num_realizations` is None; `coordinates` are several.
    """

    name = "conv_spe"
    has_fixed_state = False

    def __init__(self, *args: int, filter_length: int = 128, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.num_realizations is None:
            expected = "expected an integer: only sine_spe has an exact limit"
            raise ParameterError("num_realizations", None, expected)
        if self.num_dims > 1:
            expected = "expected index, time or another name alone; sine_spe takes any"
            raise ParameterError("coordinates", kwargs["coordinates"], expected)
        self.filter_length = filter_length
        shape = (self.num_codes, self.num_heads, self.width, filter_length)
        scale = math.sqrt(filter_length / 2)
        self.filter_q = nn.Parameter(torch.rand(shape) / scale)
        self.filter_k = nn.Parameter(torch.rand(shape) / scale)
        if self.class_token and self.gate is None:
            self.class_code = nn.Parameter(self.filter_k.detach().clone())

    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        # q̄[m] = Σ_p Φ_q[p] z[m + p]: lag τ pairs Φ_q[p] with Φ_k[p + τ]. The FFT computes all
        # lags at once, in a period of 2P, in which negative lags come last.
        period, lags = 2 * self.filter_length, lags[:, 0]
        q, k = (torch.fft.rfft(x[code].float(), period) for x in (self.filter_q, self.filter_k))
        all_lags = torch.fft.irfft(q.conj() * k, period)
        inside = lags.abs() < self.filter_length  # [N]
        return all_lags[..., (lags * inside).long()] * inside

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        index = self.read(positions)[..., 0]
        positioned = index >= 0 if self.class_token else None
        index, device = index.long(), index.device
        if positioned is not None:  # tokens without a position share a slot that they do not use
            index = torch.where(positioned, index, index.max().clamp(min=0))
        if state is None:
            state = _State(self.gates(noise, device), self._class_codes(noise, device))
        blocks, slots, new, kept_from = _find(state.blocks, index)
        codes, anchors = state.codes, [torch.zeros(1, device=device)] * self.num_codes
        if new:
            computed = [
                CodeArrays.of(
                    self._noise(new, c, noise, device), self.filter_q[c], self.filter_k[c]
                )
                for c in range(self.num_codes)
            ]
            if kept_from is None:
                codes, anchors = map(list, zip(*computed, strict=True))
            else:
                pairs = zip(codes, computed, strict=True)
                codes = [old.append(more, kept_from) for old, (more, _) in pairs]
            state = _State(state.gates, state.class_codes, blocks, codes)
        gates = state.gates
        if positioned is not None:
            gates = [self._gate_of(gate, positioned, state, i) for i, gate in enumerate(gates)]
        return [
            ConvCode(gate, codes[i % self.num_codes], anchors[i % self.num_codes], slots)
            for i, gate in enumerate(gates)
        ], state

    def _noise(self, blocks: range, code: int, noise: NoiseKey, device: torch.device) -> ConvNoise:
        """Return the noise of one code over blocks."""
        sizes = self.width, self.encoded_dim, self.code_scale, self.filter_length
        return ConvNoise(noise.fold(RandomStream.SPE_CODE, code), blocks, *sizes, device)

    def _class_codes(self, noise: NoiseKey, device: torch.device) -> list[Tensor]:
        """Return the learned codes of class tokens, [H, K, R] for each code, if there are any."""
        if self.class_code is None:
            return []
        codes = []
        for code, filters in enumerate(self.class_code.float()):
            z = self._noise(range(1), code, noise, device)
            with torch.autocast(device.type, enabled=False):
                heads = [z.correlate_first(z.draw(h), taps) for h, taps in enumerate(filters)]
            codes.append(torch.stack(heads))
        return codes

    def _gate_of(self, gate: Gate | None, positioned: Tensor, state: _State, layer: int) -> Gate:
        """Return a layer's gate without the code of positions for tokens that have none."""
        mask = positioned[..., None, None].float()  # [1|B, L, 1, 1]
        if gate is None:
            return Gate(mask, 1 - mask, state.class_codes[layer % self.num_codes])
        return gate._replace(position=gate.position * mask)


@dataclass(frozen=True)
class _State:
    """The noise that a sequence keeps, and the codes of the blocks of positions in use."""

    gates: list[Gate | None]
    class_codes: list[Tensor]
    blocks: range = range(0)
    codes: list[CodeArrays] = field(default_factory=list)


def _find(blocks: range, index: Tensor) -> tuple[range, Tensor | None, range, int | None]:
    """Find the slots of positions [1|B, L], and extend the blocks that have codes to hold them.

    Returns:
        All blocks then, in order; the slots [1|B, L], or None if they are 0, 1, …, L − 1; the new
        blocks, which come last; the first old slot to keep, or None to keep none.
    """
    first, last = int(index.min()) // BLOCK_SIDE, int(index.max()) // BLOCK_SIDE
    kept_from = None
    new = range(blocks.stop if first in blocks else first, last + 1)
    if new:
        kept_from = (first - blocks.start) * BLOCK_SIDE if first in blocks else None
        blocks = range(first, last + 1)
    index = index - blocks.start * BLOCK_SIDE
    from_start = torch.arange(index.shape[1], device=index.device)
    slots = None if len(index) == 1 and torch.equal(index[0], from_start) else index
    return blocks, slots, new, kept_from
