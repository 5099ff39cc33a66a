"""ConvSPE: stochastic codes that are white noise through learned filters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from musicgen.errors import UserError
from musicgen.position.base import LayerCode, NoiseKey
from musicgen.position.conv_codes import Codes, ConvCode
from musicgen.position.conv_noise import BLOCK, SIDES, ConvNoise, LineNoise, TileNoise
from musicgen.position.spe import CODE_DRAW, SPE, Gate


class ConvSPE(SPE):
    """q̄ = Φ_q * z, k̄ = Φ_k * z, one filter per head and dimension (Liutkus et al. 2021, §2.2).

    In two or three dimensions z and the filters have as many, as for images.

    An ungated class token has a filter of its own over z at the origin, for queries and keys,
    which starts as Φ_k. Its products with tokens further than P from there are zero in
    expectation, as those between any tokens so far apart; the gate's constant is not.

    Args:
        filter_length: P, positions a filter spans in each dimension; the kernel is zero from a
            lag of P on in any of them.

    The other arguments are `SPE`'s.

    Raises:
        UserError: there is no number of realizations, or `coordinates` have no grid of filters.
    """

    name = "conv_spe"

    def __init__(
        self,
        *args: int,
        filter_length: int = 128,
        coordinates: str | int = "index",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, coordinates=coordinates, **kwargs)
        if self.num_realizations is None:
            raise UserError(
                "model.position.num_realizations=null: only sineSPE has a limit of finite width; "
                "give a number, or use position=sine_spe"
            )
        if coordinates == "both":
            raise UserError(
                "model.position.coordinates=both: index and musical time have no grid in common "
                "for position=conv_spe to filter noise over. Use model.position.coordinates=index "
                "or time, or position=sine_spe"
            )
        if self.num_dims > len(SIDES):
            raise UserError(
                f"model.position.coordinates={coordinates}: position=conv_spe filters noise in up "
                f"to {len(SIDES)} dimensions. Give as many at most, or use position=sine_spe"
            )
        self.filter_length = filter_length
        taps = (filter_length,) * self.num_dims
        shape = (self.num_codes, self.num_heads, self.width, *taps)
        scale = math.sqrt(filter_length**self.num_dims / 2)
        self.filter_q = nn.Parameter(torch.rand(shape) / scale)
        self.filter_k = nn.Parameter(torch.rand(shape) / scale)
        if self.class_token and self.gate is None:
            self.class_code = nn.Parameter(self.filter_k.detach().clone())

    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        # q̄[m] = Σ_p Φ_q[p] z[m + p]: lag τ pairs Φ_q[p] with Φ_k[p + τ]. All lags at once, in a
        # period of 2P, where those below 0 come last.
        dims = tuple(range(-self.num_dims, 0))
        period = [2 * self.filter_length] * self.num_dims
        spectra = [
            torch.fft.rfftn(filters[code].float(), period, dims)
            for filters in (self.filter_q, self.filter_k)
        ]
        every = torch.fft.irfftn(spectra[0].conj() * spectra[1], period, dims)
        inside = lags.abs() < self.filter_length  # [N, P]
        index = (lags * inside).long()
        return every[:, :, *index.unbind(-1)] * inside.all(-1)

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        index = self.read(positions)
        placed = self.placed(index)
        index, device = index.long(), index.device
        if placed is not None:  # those without a place share one, of which nothing is read
            index = torch.where(placed[..., None], index, index.amax((0, 1)).clamp(min=0))
        if state is None:
            layout = _Line() if self.num_dims == 1 else _Tiles(SIDES[self.num_dims - 1])
            state = _State(self.gates(noise, device), self._class_codes(noise, device), layout)
        layout, places, new, kept = state.layout.over(index)
        codes, tokens = state.codes, [torch.zeros(1, device=device)] * self.num_codes
        if new:
            made = [
                Codes.of(
                    self._noise(new, code, noise, device),
                    self.filter_q[code].float(),
                    self.filter_k[code].float(),
                )
                for code in range(self.num_codes)
            ]
            if kept is None:
                codes, tokens = [pair[0] for pair in made], [pair[1] for pair in made]
            else:
                codes = [old.joined(more, kept) for old, (more, _) in zip(codes, made, strict=True)]
            state = _State(state.gates, state.class_codes, layout, codes)
        gates = state.gates
        if placed is not None:
            gates = [self._gate_at(gate, placed, state, i) for i, gate in enumerate(gates)]
        return [
            ConvCode(gate, codes[i % self.num_codes], tokens[i % self.num_codes], places)
            for i, gate in enumerate(gates)
        ], state

    def _noise(
        self,
        blocks: range | list[tuple[int, ...]],
        code: int,
        noise: NoiseKey,
        device: torch.device,
    ) -> ConvNoise:
        """The noise of one code over blocks."""
        key = noise.fold(CODE_DRAW, code)
        sizes = self.width, self.encoded_dim, self.code_scale, self.filter_length
        if isinstance(blocks, range):
            return LineNoise(key, *sizes, device, blocks)
        return TileNoise(key, *sizes, device, blocks)

    def _class_codes(self, noise: NoiseKey, device: torch.device) -> list[Tensor]:
        """The class token's own codes, [H, K, R] each, if it has any."""
        if self.class_code is None:
            return []
        codes = []
        for code, filters in enumerate(self.class_code.float()):
            at_origin = range(1) if self.num_dims == 1 else [(0,) * self.num_dims]
            z = self._noise(at_origin, code, noise, device)
            with torch.autocast(device.type, enabled=False):
                heads = [
                    torch.einsum("kp,kpr->kr", taps.flatten(1), z.corner(z.draw(head)))
                    for head, taps in enumerate(filters)
                ]
            codes.append(torch.stack(heads))
        return codes

    def _gate_at(self, gate: Gate | None, placed: Tensor, state: _State, layer: int) -> Gate:
        """A layer's gate, with the positions of those tokens alone that have one."""
        here = placed[..., None, None].float()  # [1|B, L, 1, 1]
        if gate is None:
            return Gate(here, 1 - here, state.class_codes[layer % self.num_codes])
        return gate._replace(position=gate.position * here)


@dataclass(frozen=True)
class _State:
    """Noise that a sequence keeps, and codes of the blocks of positions that are in use."""

    gates: list[Gate | None]
    class_codes: list[Tensor]
    layout: _Line | _Tiles
    codes: list[Codes] = field(default_factory=list)


@dataclass(frozen=True)
class _Line:
    """Which places there are codes of, in one dimension: a run of blocks."""

    run: range = range(0)

    def over(self, index: Tensor) -> tuple[_Line, Tensor | None, range, int | None]:
        """What the positions [1|B, L, 1] ask for.

        Returns:
            The layout that has them; their places in it, [1|B, L], or None if they are all from
            the first on; the blocks that are new, behind the old ones; and the old place from
            which on it keeps codes, or None if it keeps none.
        """
        index = index[..., 0]
        first, last = int(index.min()) // BLOCK, int(index.max()) // BLOCK
        layout, kept = self, None
        new = range(self.run.stop, last + 1) if first in self.run else range(first, last + 1)
        if new:
            layout = _Line(range(first, last + 1))
            kept = (first - self.run.start) * BLOCK if first in self.run else None
        index = index - layout.run.start * BLOCK
        from_start = torch.arange(index.shape[1], device=index.device)
        places = None if len(index) == 1 and torch.equal(index[0], from_start) else index
        return layout, places, new, kept


@dataclass(frozen=True)
class _Tiles:
    """Which places there are codes of, in n dimensions: blocks, in the order of their use."""

    side: int
    slots: dict[tuple[int, ...], int] = field(default_factory=dict)

    def over(self, index: Tensor) -> tuple[_Tiles, Tensor, list[tuple[int, ...]], int | None]:
        """What the positions [1|B, L, P] ask for, as `_Line.over`; it keeps all that it has."""
        block, inner = index // self.side, index % self.side
        names, which = block.flatten(0, 1).unique(dim=0, return_inverse=True)
        blocks = [tuple(name) for name in names.tolist()]
        new = [name for name in blocks if name not in self.slots]
        slots = self.slots | {name: len(self.slots) + i for i, name in enumerate(new)}
        slot = torch.tensor([slots[name] for name in blocks], device=index.device)[which]
        places = slot.view(index.shape[:2])
        for column in inner.unbind(-1):
            places = places * self.side + column
        return _Tiles(self.side, slots), places, new, 0 if self.slots else None
