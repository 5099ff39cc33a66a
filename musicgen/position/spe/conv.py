"""ConvSPE: stochastic codes that are white noise filtered by learned filters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from musicgen.errors import ParameterError
from musicgen.position.base import Coordinates, LayerCode
from musicgen.position.spe.base import SPE, Gate
from musicgen.position.spe.conv_noise import BLOCK_SIDES, ConvNoise, GridNoise, SequenceNoise
from musicgen.position.spe.conv_operators import CodeArrays, ConvCode
from musicgen.random import NoiseKey, RandomStream


class ConvSPE(SPE):
    """q̄ = Φ_q * z, k̄ = Φ_k * z, one filter per head and dimension (Liutkus et al. 2021, §2.2).

    In two or three dimensions z and the filters have as many, as for images.

    An ungated class token has its own filter over z at the origin, for queries and keys,
    initialised as Φ_k. Its expected products with tokens at a lag of P or more from the origin are
    zero, as between any tokens that far apart. The gate's constant is not zero there.

    Args:
        filter_length: P, the taps of a filter in each dimension. The kernel is zero where the lag
            in any dimension is at least P.

    Raises:
        ValueError: `num_realizations` is None; `coordinates` are neither one name nor a grid of up
            to three dimensions.
    """

    name = "conv_spe"
    has_fixed_state = False

    def __init__(
        self,
        *args: int,
        filter_length: int = 128,
        coordinates: Coordinates = "index",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, coordinates=coordinates, **kwargs)
        if self.num_realizations is None:
            expected = "expected an integer: only sine_spe has an exact limit"
            raise ParameterError("num_realizations", None, expected)
        is_grid = isinstance(coordinates, int) and self.num_dims <= len(BLOCK_SIDES)
        if self.num_dims > 1 and not is_grid:
            expected = (
                "expected index, time or another name alone, or at most "
                f"{len(BLOCK_SIDES)} coordinates of a grid; sine_spe takes any"
            )
            raise ParameterError("coordinates", coordinates, expected)
        self.filter_length = filter_length
        taps = (filter_length,) * self.num_dims
        shape = (self.num_codes, self.num_heads, self.width, *taps)
        scale = math.sqrt(filter_length**self.num_dims / 2)
        self.filter_q = nn.Parameter(torch.rand(shape) / scale)
        self.filter_k = nn.Parameter(torch.rand(shape) / scale)
        if self.class_token and self.gate is None:
            self.class_code = nn.Parameter(self.filter_k.detach().clone())

    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        # q̄[m] = Σ_p Φ_q[p] z[m + p]: lag τ pairs Φ_q[p] with Φ_k[p + τ]. The FFT computes all
        # lags at once, in a period of 2P, in which negative lags come last.
        dims = tuple(range(-self.num_dims, 0))
        period = [2 * self.filter_length] * self.num_dims
        q, k = (
            torch.fft.rfftn(filters[code].float(), period, dims)
            for filters in (self.filter_q, self.filter_k)
        )
        all_lags = torch.fft.irfftn(q.conj() * k, period, dims)
        inside = lags.abs() < self.filter_length  # [N, P]
        index = (lags * inside).long()
        return all_lags[:, :, *index.unbind(-1)] * inside.all(-1)

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        index = self.read(positions)
        positioned = (index >= 0).all(-1) if self.class_token else None
        index, device = index.long(), index.device
        if positioned is not None:  # tokens without a position share a slot that they do not use
            index = torch.where(positioned[..., None], index, index.amax((0, 1)).clamp(min=0))
        if state is None:
            layout = _Sequence() if self.num_dims == 1 else _Grid()
            state = _State(self.gates(noise, device), self._class_codes(noise, device), layout)
        layout, slots, new, kept_from = state.layout.find(index)
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
            state = _State(state.gates, state.class_codes, layout, codes)
        gates = state.gates
        if positioned is not None:
            gates = [self._gate_of(gate, positioned, state, i) for i, gate in enumerate(gates)]
        return [
            ConvCode(gate, codes[i % self.num_codes], anchors[i % self.num_codes], slots)
            for i, gate in enumerate(gates)
        ], state

    def _noise(
        self, blocks: Sequence[Any], code: int, noise: NoiseKey, device: torch.device
    ) -> ConvNoise:
        """Return the noise of one code over blocks."""
        sizes = self.num_dims, self.width, self.encoded_dim, self.code_scale, self.filter_length
        kind = SequenceNoise if self.num_dims == 1 else GridNoise
        return kind(noise.fold(RandomStream.SPE_CODE, code), blocks, *sizes, device)

    def _class_codes(self, noise: NoiseKey, device: torch.device) -> list[Tensor]:
        """Return the learned codes of class tokens, [H, K, R] for each code, if there are any."""
        if self.class_code is None:
            return []
        origin: Sequence[Any] = range(1) if self.num_dims == 1 else [(0,) * self.num_dims]
        codes = []
        for code, filters in enumerate(self.class_code.float()):
            z = self._noise(origin, code, noise, device)
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
    layout: _Sequence | _Grid
    codes: list[CodeArrays] = field(default_factory=list)


@dataclass(frozen=True)
class _Sequence:
    """The blocks that have codes in one dimension: a range, in order."""

    blocks: range = range(0)

    def find(self, index: Tensor) -> tuple[_Sequence, Tensor | None, range, int | None]:
        """Find the slots of positions [1|B, L, 1], and extend the layout to hold them.

        Returns:
            The extended layout; the slots [1|B, L], or None if they are 0, 1, …, L − 1; the new
            blocks, which come last; the first old slot to keep, or None to keep none.
        """
        index, side = index[..., 0], BLOCK_SIDES[0]
        first, last = int(index.min()) // side, int(index.max()) // side
        layout, kept_from = self, None
        new = range(self.blocks.stop if first in self.blocks else first, last + 1)
        if new:
            layout = _Sequence(range(first, last + 1))
            kept_from = (first - self.blocks.start) * side if first in self.blocks else None
        index = index - layout.blocks.start * side
        from_start = torch.arange(index.shape[1], device=index.device)
        slots = None if len(index) == 1 and torch.equal(index[0], from_start) else index
        return layout, slots, new, kept_from


@dataclass(frozen=True)
class _Grid:
    """The blocks that have codes in n dimensions, in the order of their use."""

    rank: dict[tuple[int, ...], int] = field(default_factory=dict)

    def find(self, index: Tensor) -> tuple[_Grid, Tensor, list[tuple[int, ...]], int | None]:
        """Find the slots of positions [1|B, L, P], as `_Sequence.find` does. Keep all old slots."""
        side = BLOCK_SIDES[index.shape[-1] - 1]
        block, offset = index // side, index % side
        unique, inverse = block.flatten(0, 1).unique(dim=0, return_inverse=True)
        blocks = [tuple(coordinates) for coordinates in unique.tolist()]
        new = [b for b in blocks if b not in self.rank]
        rank = self.rank | {b: len(self.rank) + i for i, b in enumerate(new)}
        slots = torch.tensor([rank[b] for b in blocks], device=index.device)[inverse]
        slots = slots.view(index.shape[:2])
        for column in offset.unbind(-1):
            slots = slots * side + column
        return _Grid(rank), slots, new, 0 if self.rank else None
