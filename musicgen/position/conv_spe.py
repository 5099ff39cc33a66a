"""ConvSPE: stochastic codes that are white noise, filtered by learned filters."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from musicgen.errors import ParameterError
from musicgen.position.base import LayerCode, prefers_large_operations, product_dtype
from musicgen.position.spe import SPE, Gate, SPECode, times_codes
from musicgen.position.spe_blockwise import codes_by_blocks, filter_noise, toeplitz
from musicgen.random import NoiseKey, RandomStream
from musicgen.validation import check_int

BLOCK_SIDE = 128  # positions in a block of noise, which is a function of its key only


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
        check_int("filter_length", filter_length)
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
        # lags at once, in a period of 2P; negative lags come last.
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
        state: Any = None,
    ) -> Any:
        """Return the noise of a sequence, or of the blocks of positions that are new in it.

        Returns:
            The noise of the new blocks [codes, H, K, positions, R], or None if there are none; the
            noise of the gates [layers, H, K, R], or None; the noise of the block at the origin if
            class tokens have a learned code, or None; the range of the blocks with codes, new ones
            included; and whether the tokens are at all positions from its start on, in order.
        """
        index = self.read(positions)[..., 0]
        if state is None:
            known, epsilon = range(0), self.draw_epsilon(key, device)
            class_z = None if self.class_code is None else self._draw(key, range(1), device)
        else:
            (known, _, class_z, _), epsilon = state, None
        coded = index
        if self.class_token:  # tokens without a position need no code
            coded = torch.where(index < 0, index.max().clamp(min=0), index)
        first, last = (int(bound) // BLOCK_SIDE for bound in coded.aminmax())
        end = last + 1
        new = range(known.stop if first in known else first, end)
        blocks = range(first, end) if new else known
        z = self._draw(key, new, device) if new else None
        from_start = torch.arange(index.shape[1], device=index.device) + blocks.start * BLOCK_SIDE
        contiguous = len(index) == 1 and torch.equal(index[0].long(), from_start)
        return z, epsilon, class_z, blocks, contiguous

    def _draw(self, key: NoiseKey, blocks: range, device: torch.device) -> Tensor:
        """Return the scaled noise of blocks and of the blocks after them that filters reach into.

        Returns:
            [codes, H, K, positions, R].
        """
        size = self.num_heads, self.width, BLOCK_SIDE, self.encoded_dim
        reached = range(blocks.start, blocks.stop + _num_reached(self.filter_length))
        drawn = []
        for code in range(self.num_codes):
            keys = [key.fold(RandomStream.SPE_CODE, code, block) for block in reached]
            drawn.append(torch.cat([each.normal(*size, device=device) for each in keys], dim=2))
        return torch.stack(drawn).mul_(self.code_scale)

    def forward(
        self, positions: Tensor, *, noise: Any, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        if isinstance(noise, NoiseKey):
            noise = self.draw(noise, positions, positions.device, state=state)
        z, epsilon, class_z, blocks, contiguous = noise
        # The state has the blocks, gates and noise in use, and the codes at the blocks.
        known, all_gates, _, earlier = state or (range(0), self.gates(epsilon), None, [])
        gates, index = all_gates, self.read(positions)[..., 0].long()
        if self.class_token:
            positioned = index >= 0
            gates = self._gates_at(positioned, gates, class_z)
            # Tokens without a position share a slot that they do not use.
            index = torch.where(positioned, index, blocks.start * BLOCK_SIDE)
        slots = None if contiguous else index - blocks.start * BLOCK_SIDE
        codes, products = [], []
        for c in range(self.num_codes):
            kept = None  # the arrays at earlier blocks
            if blocks.start in known:
                start = (blocks.start - known.start) * BLOCK_SIDE
                kept = [code[start:] for code in earlier[c]]
            arrays, of_q_and_k = self._products(c, None if z is None else z[c], kept, slots)
            codes.append(arrays)
            products.append(of_q_and_k)
        layers = [SPECode(gate, *products[i % self.num_codes]) for i, gate in enumerate(gates)]
        return layers, (blocks, all_gates, class_z, codes)

    def _products(
        self, code: int, z: Tensor | None, kept: list[Tensor] | None, slots: Tensor | None
    ) -> tuple[list[Tensor], list[partial[Tensor]]]:
        """Return the arrays q̄ and k̄ of a code, [N, H, K, R] each, and products with them.

        Args:
            z: the noise of new blocks, [H, K, positions, R].
            kept: the arrays at the blocks before them, which have no gradient on CPUs.
            slots: of each token, [1|B, L]; None: 0, 1, …, L − 1.
        """
        filters = [self.filter_q[code].float(), self.filter_k[code].float()]
        device = filters[0].device
        large, dtype = prefers_large_operations(device), product_dtype(device)
        arrays = kept or []
        if z is not None:
            with torch.autocast(z.device.type, enabled=False):
                if large:
                    new = [_correlate_at_once(z, taps, dtype) for taps in filters]
                else:
                    num_positions = z.shape[2] - _num_reached(self.filter_length) * BLOCK_SIDE
                    new, products = filter_noise(z, filters, num_positions, slots, dtype)
                    if kept is None:
                        return new, products
            arrays = new if kept is None else [torch.cat(x) for x in zip(kept, new, strict=True)]
        times = times_codes if large else codes_by_blocks
        return arrays, [partial(times, code=array, slots=slots) for array in arrays]

    def _gates_at(
        self, positioned: Tensor, gates: list[Gate | None], class_z: Tensor | None
    ) -> list[Gate | None]:
        """Return the gates with the factor 0 on codes of tokens without a position.

        Args:
            positioned: whether each token has a position, [1|B, L].
            class_z: noise, if class tokens have a learned code. Without gates, it is added instead.
        """
        mask = positioned[..., None, None].float()  # [1|B, L, 1, 1]
        if self.class_code is None:
            return [x._replace(position=x.position * mask) for x in gates if x is not None]
        assert class_z is not None
        with torch.autocast(class_z.device.type, enabled=False):
            reached = class_z[..., : self.filter_length, :].flatten(0, 2)  # [codes·H·K, F, R]
            taps = self.class_code.float().flatten(0, 2)[:, None]
            product = torch.bmm(taps, reached)[:, 0]
        codes = list(product.unflatten(0, self.class_code.shape[:3]))
        return [Gate(mask, 1 - mask, codes[i % self.num_codes]) for i in range(self.num_layers)]


def _num_reached(filter_length: int) -> int:
    """Return the number of blocks after a block that filters reach into."""
    return -((1 - filter_length) // BLOCK_SIDE)


def _correlate_at_once(z: Tensor, taps: Tensor, dtype: torch.dtype) -> Tensor:
    """Return Σ_p taps[p] z[position + p] of all positions and heads, by few large operations.

    Args:
        z: noise of blocks and of the blocks after them that filters reach, [H, K, positions, R].
        taps: [H, K, F].
        dtype: of the products.

    Returns:
        [N, H, K, R], for the N positions of the blocks.
    """
    heads, _, _, realizations = z.shape
    reached = _num_reached(taps.shape[-1])
    matrix = toeplitz(taps, BLOCK_SIDE, (1 + reached) * BLOCK_SIDE).flatten(0, 1).to(dtype)
    # Blocks of positions as columns: [H·K, block, blocks, R].
    side_by_side = z.unflatten(2, (-1, BLOCK_SIDE)).transpose(2, 3).flatten(0, 1).to(dtype)
    num_blocks = side_by_side.shape[2] - reached
    total = None
    for i, part in enumerate(matrix.split(BLOCK_SIDE, dim=-1)):  # of each block reached into
        product = torch.bmm(part, side_by_side[:, :, i : i + num_blocks].flatten(2))
        total = product if total is None else total + product
    assert total is not None
    codes = total.unflatten(2, (num_blocks, realizations)).unflatten(0, (heads, -1))
    return codes.permute(3, 2, 0, 1, 4).flatten(0, 1)  # [blocks, block, H, K, R]
