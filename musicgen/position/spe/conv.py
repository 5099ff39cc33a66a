"""ConvSPE: stochastic codes that are white noise, filtered by learned filters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from musicgen.errors import ParameterError
from musicgen.position.base import LayerCode, prefers_large_operations, product_dtype
from musicgen.position.spe.base import SPE, Gate
from musicgen.position.spe.batched import ArrayCode
from musicgen.position.spe.conv_blockwise import CodeArrays, ConvCode
from musicgen.position.spe.conv_noise import BLOCK_SIDE, correlate_at_once, draw_blocks
from musicgen.random import NoiseKey, RandomStream


class ConvSPE(SPE):
    """ConvSPE (Liutkus et al. 2021, §2.1): q̄ = Φ_q * z and k̄ = Φ_k * z with white noise z.

    Each head and dimension has its own filters Φ.

    Without a gate, a class token has a learned filter over z at the origin, for queries and keys,
    which is initialised as Φ_k. Its expected products with tokens at a lag of P or more from the
    origin are zero, as between any two tokens at such a lag. With a gate, they have its constant.

    Args:
        filter_length: P, the number of taps of a filter. The kernel is zero at lags of P or more.

    Raises:
        ParameterError: `num_realizations` is None, or there is more than one coordinate.
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

    def draw(
        self,
        key: NoiseKey,
        positions: Tensor,
        device: torch.device,
        *,
        batch_size: int = 1,
        state: _State | None = None,
    ) -> ConvNoises:
        index = self.read(positions)[..., 0]
        known = range(0) if state is None else state.blocks
        blocks, new, kept_from, contiguous, last = _find(known, index)
        z = class_z = None
        if new:
            z = self._draw_blocks(key, new, device)
        epsilon = None if state is not None else self.draw_epsilon(key, device)
        if state is None and self.class_code is not None:
            class_z = self._draw_blocks(key, range(1), device)
        return ConvNoises(z, epsilon, class_z, blocks, kept_from, contiguous, last)

    def _draw_blocks(self, key: NoiseKey, blocks: range, device: torch.device) -> Tensor:
        """Return the scaled noise of all codes over blocks: [codes, H, K, positions, R]."""
        shape = self.num_heads, self.width, self.encoded_dim
        keys = [key.fold(RandomStream.SPE_CODE, code) for code in range(self.num_codes)]
        drawn = [draw_blocks(k, blocks, shape, self.filter_length, device) for k in keys]
        return torch.stack(drawn).mul_(self.code_scale)

    def forward(
        self, positions: Tensor, *, noise: Any, state: _State | None = None
    ) -> tuple[Sequence[LayerCode], Any]:
        device = positions.device
        if isinstance(noise, NoiseKey):
            noise = self.draw(noise, positions, device, state=state)
        index = self.read(positions)[..., 0].long()
        positioned = index >= 0 if self.class_token else None
        if positioned is not None:  # tokens without a position share a slot that they do not use
            index = torch.where(positioned, index, noise.last)
        slots = None if noise.contiguous else index - noise.blocks.start * BLOCK_SIDE
        if state is None:
            gates = self.gates(noise.epsilon)
            state = _State(gates, self._class_codes(noise.class_z), noise.blocks, [])
        gates = state.gates
        if positioned is not None:
            gates = [self._gate_of(gate, positioned, state, i) for i, gate in enumerate(gates)]
        if prefers_large_operations(device):
            formed, state = self._formed(noise, state)
            by_code = [formed[i % self.num_codes] for i in range(self.num_layers)]
            pairs = zip(gates, by_code, strict=True)
            return [ArrayCode(gate, *codes, slots) for gate, codes in pairs], state
        codes, anchors = state.codes, [torch.zeros(1, device=device)] * self.num_codes
        if noise.z is not None:
            computed = [
                CodeArrays.of(z, self.filter_q[c], self.filter_k[c], product_dtype(device))
                for c, z in enumerate(noise.z)
            ]
            if noise.kept_from is None:
                codes, anchors = map(list, zip(*computed, strict=True))
            else:
                both = zip(codes, computed, strict=True)
                codes = [old.append(more, noise.kept_from) for old, (more, _) in both]
            state = _State(state.gates, state.class_codes, noise.blocks, codes)
        return [
            ConvCode(gate, codes[i % self.num_codes], anchors[i % self.num_codes], slots)
            for i, gate in enumerate(gates)
        ], state

    def _formed(
        self, noise: ConvNoises, state: _State
    ) -> tuple[list[tuple[Tensor, Tensor]], _State]:
        """Return q̄ and k̄ of each code, [N, H, K, R] each, and the state with them.

        They are computed by few large operations.
        """
        formed = [(codes.q, codes.k) for codes in state.codes]
        if noise.z is None:
            return formed, state
        dtype = product_dtype(noise.z.device)
        new = []
        with torch.autocast(noise.z.device.type, enabled=False):
            for c, z in enumerate(noise.z):
                filters = self.filter_q[c].float(), self.filter_k[c].float()
                q, k = (correlate_at_once(z, taps, dtype) for taps in filters)
                new.append((q, k))
        if noise.kept_from is not None:
            start, both = noise.kept_from, zip(formed, new, strict=True)
            new = [
                (torch.cat((old_q[start:], q)), torch.cat((old_k[start:], k)))
                for (old_q, old_k), (q, k) in both
            ]
        codes = [CodeArrays(q, k) for q, k in new]
        return new, _State(state.gates, state.class_codes, noise.blocks, codes)

    def _class_codes(self, z: Tensor | None) -> list[Tensor]:
        """Return the codes of class tokens, [H, K, R] for each code; []: none are learned."""
        if self.class_code is None:
            return []
        assert z is not None
        with torch.autocast(z.device.type, enabled=False):
            reached = z[..., : self.filter_length, :].flatten(0, 2)  # [codes·H·K, F, R]
            taps = self.class_code.float().flatten(0, 2)[:, None]
            product = torch.bmm(taps, reached)[:, 0]
        return list(product.unflatten(0, self.class_code.shape[:3]))

    def _gate_of(self, gate: Gate | None, positioned: Tensor, state: _State, layer: int) -> Gate:
        """Return the gate of a layer, with the factor 0 on codes of tokens without a position."""
        mask = positioned[..., None, None].float()  # [1|B, L, 1, 1]
        if gate is None:
            return Gate(mask, 1 - mask, state.class_codes[layer % self.num_codes])
        return gate._replace(position=gate.position * mask)


class ConvNoises(NamedTuple):
    """The noise of a sequence, or of the blocks of positions that are new in it."""

    z: Tensor | None  # [codes, H, K, positions, R], of the new blocks; None: there are none
    epsilon: Tensor | None  # [layers, H, K, R], of the gates
    class_z: Tensor | None  # like z, of the block at the origin, for class tokens
    blocks: range  # all blocks with codes, the new ones included
    kept_from: int | None  # the first slot of earlier codes to keep; None: keep none
    contiguous: bool  # whether the slots are 0, 1, …, L − 1
    last: int  # the largest position


@dataclass(frozen=True)
class _State:
    """What later tokens of a sequence need: gates, and the codes of the blocks in use."""

    gates: list[Gate | None]
    class_codes: list[Tensor]
    blocks: range
    codes: list[CodeArrays]


def _find(blocks: range, index: Tensor) -> tuple[range, range, int | None, bool, int]:
    """Extend the range of blocks that have codes, so that it contains the positions [1|B, L].

    Negative positions need no code.

    Returns:
        All blocks; the new blocks, which are the last ones; the first slot of earlier codes to
        keep, or None to keep none; whether the slots are 0, 1, …, L − 1; the largest position.
    """
    last = max(int(index.max()), 0)
    smallest = int(torch.where(index < 0, last, index).min())
    first, end = smallest // BLOCK_SIDE, last // BLOCK_SIDE
    kept_from = None
    new = range(blocks.stop if first in blocks else first, end + 1)
    if new:
        kept_from = (first - blocks.start) * BLOCK_SIDE if first in blocks else None
        blocks = range(first, end + 1)
    from_start = torch.arange(index.shape[1], device=index.device) + blocks.start * BLOCK_SIDE
    contiguous = len(index) == 1 and torch.equal(index[0].long(), from_start)
    return blocks, new, kept_from, contiguous, last
