"""Relative encodings of attention logits: Transformer-XL's four terms, whatever makes the lags'.

For query i and key j (Dai et al. 2019, eq. 4; Alfons 2022, formula 1):

    A_ij = q_i·k_j + q_i·P_(j−i) + u·k_j + v·P_(j−i)

with biases u, v of a layer, and one vector P of the model's width for each signed lag, key minus
query. Heads take slices of u, v and P, as they do of q and k.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from musicgen.position.base import LayerCode, NoiseKey, PositionalEncoding, Site

Box = tuple[tuple[int, int], ...]
"""The first and the last lag of each dimension."""


class LagTable(NamedTuple):
    """Encodings of all lags in a box, in the order of their last dimension first."""

    values: Tensor  # [H, N, K]
    box: Box
    columns: slice[int, int, None]  # the coordinates of the box's dimensions

    def places(self, lags: Tensor) -> Tensor:
        """Where lags [..., P] are among the values; those outside are at its edge."""
        place = torch.zeros_like(lags[..., 0])
        for i, (low, high) in enumerate(self.box, start=self.columns.start):
            place = place * (high - low + 1) + (lags[..., i].clamp(low, high) - low)
        return place


@dataclass(frozen=True)
class RelativeCode(LayerCode):
    """Acts on logits: kernels that form them ask for both kinds of queries and for the lags.

    Attributes:
        positions: [1|B, L, P] of the tokens.
        columns: the coordinates that lags are taken of.
        queries: queries [B, L, H, K] to those that content meets [B, L, H, K], and those that
            positions do [B, L, H, K'].
        generate: whole lags [N, P] to their encodings, in fp32: [H, N, K'].
        known: what was generated last, for this sequence.
    """

    positions: Tensor
    columns: slice[int, int, None]
    queries: Callable[[Tensor], tuple[Tensor, Tensor]]
    generate: Callable[[Tensor], Tensor]
    known: list[LagTable]

    def first(self, rows: int) -> RelativeCode:
        """The code of the first rows of the batch."""
        return replace(self, positions=self.positions[:rows])

    def table(self, box: Box) -> LagTable:
        """The encodings of the lags in a box, or in a larger one that is known already."""
        for known in self.known:
            if all(
                a <= low and high <= b for (a, b), (low, high) in zip(known.box, box, strict=True)
            ):
                return known
        if self.known:  # a sequence that grows asks for more with every token
            box = tuple((-_power_of_two(-low), _power_of_two(high)) for low, high in box)
        device = self.positions.device
        axes = [torch.arange(low, high + 1, device=device) for low, high in box]
        lags = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)
        with torch.autocast(device.type, enabled=False):
            table = LagTable(self.generate(lags), box, self.columns)
        self.known[:] = [table]
        return table


def _power_of_two(number: int) -> int:
    """The next power of two, for numbers above zero."""
    return 1 << (number - 1).bit_length() if number > 0 else number


class RelativeEncoding(PositionalEncoding):
    """What SIREN and Transformer-XL share: all but the generator of a lag's encoding.

    Each layer has its own generator and its own u and v.
    """

    sites = frozenset({Site.LOGIT})
    relative = "exact"

    def __init__(self, *args: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sizes = self.num_layers, self.num_heads, self.width
        self.content_bias = nn.Parameter(torch.zeros(sizes))
        self.position_bias = nn.Parameter(torch.zeros(sizes))

    @abstractmethod
    def encodings(self, lags: Tensor, layer: int) -> Tensor:
        """A layer's P, in fp32: whole lags [N, P] -> [N, D]."""

    def kernel(self, lags: Tensor, layer: int | None = None) -> Tensor:
        """P of the lags m − n, times the scale of logits: what q_d + v_d meets: -> [H, K, N].

        Its norm at a lag is the standard deviation of the second term of a logit, over queries of
        independent entries of variance 1.
        """
        encodings = self.encodings(-lags.reshape(-1, self.num_dims), layer or 0)  # key minus query
        return encodings.unflatten(-1, (self.num_heads, -1)).movedim(0, -1) * self.logit_scale

    def logit_bias(self, lags: Tensor, layer: int | None = None) -> Tensor:
        """The fourth term of a logit, v·P, times their scale: -> [H, 1, N]."""
        return self.position_bias[layer or 0][:, None] @ self.kernel(lags, layer)

    def forward(
        self, positions: Tensor, *, noise: NoiseKey, state: Any = None
    ) -> tuple[Sequence[LayerCode], Any]:
        self.read(positions)  # all of them, as a span may read others
        known: list[list[LagTable]] = state or [[] for _ in range(self.num_layers)]
        codes = [
            RelativeCode(
                positions,
                self.columns,
                partial(self._queries, layer=layer),
                partial(self._by_head, layer=layer),
                known[layer],
            )
            for layer in range(self.num_layers)
        ]
        return codes, known

    def _queries(self, q: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Q + u and q + v."""
        u, v = self.content_bias[layer], self.position_bias[layer]
        return q + u.to(q.dtype), q + v.to(q.dtype)

    def _by_head(self, lags: Tensor, layer: int) -> Tensor:
        return self.encodings(lags, layer).unflatten(-1, (self.num_heads, -1)).transpose(0, 1)
