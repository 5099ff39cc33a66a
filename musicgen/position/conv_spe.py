"""ConvSPE: stochastic codes that are white noise through learned filters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.errors import UserError
from musicgen.position.base import LayerCode, NoiseKey, product_dtype
from musicgen.position.spe import CODE_DRAW, SPE, Gate

# Noise is drawn by blocks of positions, so that any part of a sequence can be computed alone.
BLOCK = 128


class ConvSPE(SPE):
    """q̄ = Φ_q * z, k̄ = Φ_k * z, one filter per head and dimension (Liutkus et al. 2021, §2.2).

    Args:
        filter_length: P, positions a filter spans; the kernel is zero from lag P on.

    The other arguments are `SPE`'s.
    """

    name = "conv_spe"

    def __init__(self, *args: int, filter_length: int = 128, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.num_realizations is None:
            raise UserError(
                "model.position.num_realizations=null: only sineSPE has a limit of finite width; "
                "give a number, or use position=sine_spe"
            )
        self.filter_length = filter_length
        shape = (self.num_codes, self.num_heads, self.width, filter_length)
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
        if state is None:
            state = _State(self.gates(noise, positions.device))
        index = self.read(positions)[..., 0].long()  # [1|B, L]
        device = index.device
        first, last = int(index.min()) // BLOCK, int(index.max()) // BLOCK
        tokens = [torch.zeros(1, device=device)] * self.num_codes
        fresh = first not in state.run
        run = range(first if fresh else state.run.stop, last + 1)
        if run:
            new = [self._codes(run, code, noise, device) for code in range(self.num_codes)]
            codes = [pair[0] for pair in new]
            if fresh:
                state, tokens = _State(state.gates, run, codes), [pair[1] for pair in new]
            else:
                state = state.grown(first, last, codes)
        index = index - state.run.start * BLOCK
        from_start = torch.arange(index.shape[1], device=device)
        places = None if len(index) == 1 and torch.equal(index[0], from_start) else index
        return [
            ConvCode(gate, state.codes[i % self.num_codes], tokens[i % self.num_codes], places)
            for i, gate in enumerate(state.gates)
        ], state

    def _codes(
        self, run: range, code: int, noise: NoiseKey, device: torch.device
    ) -> tuple[_Codes, Tensor]:
        """One code over a run of whole blocks of positions, and a token.

        The token stands for it in the graph, so that no gradient of its size is passed from layer
        to layer. It is kept apart, since its graph holds the codes: a cycle would keep them until
        the next collection.
        """
        filters = self.filter_q[code].float(), self.filter_k[code].float()
        reach = -(-(self.filter_length - 1) // BLOCK)
        shape = (self.width, BLOCK, self.encoded_dim)

        def draw(head: int) -> Tensor:
            """A head's z over the run and as far after it as filters reach: [K, positions, R]."""
            key = noise.fold(CODE_DRAW, code, head)
            blocks = range(run.start, run.stop + reach)
            draws = [key.fold(block).normal(*shape, device=device) for block in blocks]
            return torch.cat(draws, dim=1) * self.code_scale

        q, k = (
            torch.empty(
                (len(run) * BLOCK, self.num_heads, self.width, self.encoded_dim),
                dtype=product_dtype(device),
                device=device,
            )
            for _ in filters
        )
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            # A head at a time, so that there is never the noise of all.
            for head in range(self.num_heads):
                z = draw(head)
                for bar, taps in ((q, filters[0]), (k, filters[1])):
                    matrix = _toeplitz(taps[head], reach)
                    for block in range(len(run)):
                        part = slice(block * BLOCK, (block + 1) * BLOCK)
                        bar[part, head] = (matrix @ _window(z, block, reach)).transpose(0, 1)
        codes = _Codes(q, k)
        return codes, _Collect.apply(*filters, draw, codes)


def _toeplitz(taps: Tensor, reach: int) -> Tensor:
    """Filters [K, P] as matrices over a block and its reach: [K, BLOCK, (1 + reach)·BLOCK].

    Row i holds the taps from column i on, so that a matrix product is the correlation.
    """
    width = (1 + reach) * BLOCK
    padded = F.pad(taps, (BLOCK - 1, width - taps.shape[-1]))
    return padded.unfold(-1, width, 1).flip(1)


def _diagonal_sums(matrix: Tensor, length: int) -> Tensor:
    """The transpose of `_toeplitz`: the sums along its diagonals, [K, P]."""
    # Entry (i, i + p) of rows of width w lies at i·(w + 1) + p: in rows of w + 1, at column p.
    _, rows, width = matrix.shape
    skewed = F.pad(matrix.flatten(1), (0, rows)).unflatten(1, (rows, width + 1))
    return skewed.sum(1)[:, :length]


def _window(z: Tensor, block: int, reach: int) -> Tensor:
    """The noise under one block's filters: [K, (1 + reach)·BLOCK, R]."""
    return z[:, block * BLOCK : (block + 1 + reach) * BLOCK]


@dataclass
class _Codes:
    """q̄ and k̄ over a run of positions, [N, H, K, R] each, once for all layers.

    In the type of products.

    Attributes:
        uses: for each side, what every layer's backward leaves for theirs.
    """

    q: Tensor
    k: Tensor
    uses: tuple[list[_Use], list[_Use]] = field(default_factory=lambda: ([], []))


class _Use(NamedTuple):
    places: Tensor | None  # [1|B, L] in the run; None: the run from its start
    u: Tensor  # [B, L, H, K]
    grad: Tensor  # [B, L, H, R]


@dataclass(frozen=True)
class _State:
    """The gates' noise, and the codes of the run of blocks of positions that is in use."""

    gates: list[Gate | None]
    run: range = range(0)
    codes: list[_Codes] = field(default_factory=list)

    def grown(self, first: int, last: int, more: list[_Codes]) -> _State:
        """With the codes behind this run, to the block `last`; without those before `first`."""
        past = (first - self.run.start) * BLOCK
        joined = [
            _Codes(torch.cat((old.q[past:], new.q)), torch.cat((old.k[past:], new.k)))
            for old, new in zip(self.codes, more, strict=True)
        ]
        return _State(self.gates, range(first, last + 1), joined)


class ConvCode(LayerCode):
    """A code, the places of the tokens in it [1|B, L] (None: from its start), a layer's gate."""

    def __init__(
        self, gate: Gate | None, codes: _Codes, token: Tensor, places: Tensor | None
    ) -> None:
        self.gate, self.codes, self.token, self.places = gate, codes, token, places

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(q.device.type, enabled=False):
            q_hat, k_hat = (
                self._project(x.to(code.dtype), code, uses)
                for x, code, uses in zip(
                    (q, k), (self.codes.q, self.codes.k), self.codes.uses, strict=True
                )
            )
        return q_hat, k_hat

    def _project(self, x: Tensor, code: Tensor, uses: list[_Use]) -> Tensor:
        if self.gate is None:
            return _Mix.apply(x, self.token, code, self.places, uses)
        position, constant, epsilon = (p.to(x.dtype) for p in self.gate if p is not None)
        x_hat = _Mix.apply(x * position, self.token, code, self.places, uses)
        return x_hat + torch.einsum("blhk,hkr->blhr", x * constant, epsilon)


def _at(code: Tensor, places: Tensor | None, length: int) -> Tensor:
    """The code at the places [1|B, L] -> [1|B, L, H, K, R]; a run from the start is a view."""
    return code[None, :length] if places is None else code[places]


class _Mix(torch.autograd.Function):
    """x̂[n, r] = Σ_d u[n, d] x̄[n, d, r]; the code's gradient is left for `_Collect`."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        token: Tensor,
        code: Tensor,
        places: Tensor | None,
        uses: list[_Use],
    ) -> Tensor:
        ctx.save_for_backward(u, code, places)
        ctx.uses = uses
        return (u[..., None, :] @ _at(code, places, u.shape[1]))[..., 0, :]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, code, places = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            ctx.uses.append(_Use(places, u, grad))
        # As a row times the transpose: three times as fast here as a matrix times a column.
        grad_u = (grad[..., None, :] @ _at(code, places, u.shape[1]).transpose(-1, -2))[..., 0, :]
        return grad_u, grad.new_zeros(1, dtype=torch.float32), None, None, None


class _Collect(torch.autograd.Function):
    """Behind all layers: the filters' gradients, from all uses of the codes at once."""

    @staticmethod
    def forward(ctx: Any, filter_q: Tensor, filter_k: Tensor, draw: Any, codes: _Codes) -> Tensor:
        ctx.draw, ctx.codes, ctx.length = draw, codes, filter_q.shape[-1]
        return filter_q.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        codes: _Codes = ctx.codes
        length, heads, width = codes.q.shape[:3]
        grads = [
            codes.q.new_zeros(heads, width, ctx.length, dtype=torch.float32) for _ in codes.uses
        ]
        reach = -(-(ctx.length - 1) // BLOCK)
        for head in range(heads):
            z = ctx.draw(head)
            for grad, uses in zip(grads, codes.uses, strict=True):
                if not uses:
                    continue
                bar = _code_gradient(uses, head, length)  # [N, K, R]
                matrix = z.new_zeros(width, BLOCK, (1 + reach) * BLOCK)
                for at, part in enumerate(bar.split(BLOCK)):
                    window = _window(z, at, reach)
                    matrix.baddbmm_(part.transpose(0, 1), window.transpose(1, 2))
                grad[head] = _diagonal_sums(matrix, ctx.length)
        for uses in codes.uses:
            uses.clear()
        return *grads, None, None


def _code_gradient(uses: list[_Use], head: int, length: int) -> Tensor:
    """Σ over layers and rows of u gᵀ at each place, for one head: [N, K, R]."""
    u = torch.cat([use.u[:, :, head] for use in uses])  # [layers·B, L, K]
    g = torch.cat([use.grad[:, :, head] for use in uses])
    full = u.new_zeros((length, u.shape[-1], g.shape[-1]), dtype=torch.float32)
    places = [use.places.expand(len(use.u), -1) for use in uses if use.places is not None]
    if not places:  # the same for all layers of a forward
        full[: u.shape[1]] = u.permute(1, 2, 0) @ g.transpose(0, 1)
        return full
    outer = (u[..., None] * g[..., None, :]).flatten(0, 1).float()
    return full.index_add_(0, torch.cat(places).flatten(), outer)
