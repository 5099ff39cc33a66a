"""What a trained model does with the lag: its encoding, spans and decays, as arrays to measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.attention import LinearAttention
from musicgen.errors import UserError
from musicgen.models import Transformer
from musicgen.models.transformer import Layer
from musicgen.position import Site


class LagKernel(NamedTuple):
    """What depends on the lag alone in the layers of a model.

    Attributes:
        name: a word or two.
        meaning: what it does with the lag.
        relative: whether it is the same at all positions: `exact`, `expected` or `no`.
        values: [layers, H, K', N], with sizes of 1 for what layers, heads or dimensions share.
        summary: what the profile is of the dimensions: the mean or, where their signs mean nothing,
            the root mean square.
        profile: [layers, H, N].
    """

    name: str
    meaning: str
    relative: str
    values: NDArray[np.float32]
    summary: str
    profile: NDArray[np.float32]


def kernel_axes(model: Transformer) -> list[int]:
    """The coordinates along which `position_kernels` has something to show.

    Raises:
        UserError: there is nothing.
    """
    axes = {axis for source in _sources(model) for axis in source.axes}
    if not axes:
        raise UserError(
            f"position={model.position.name} has no kernel, that is, no function of the lag alone, "
            "and the model has no span and no decay. Measure a model with a relative encoding, "
            "such as position=sine_spe or rope, with span=gaussian, or with "
            "model.attention.decay=learned"
        )
    return sorted(axes)


@torch.inference_mode()
def position_kernels(model: Transformer, lags: NDArray[np.int64], axis: int = 0) -> list[LagKernel]:
    """What a model's positional encoding, spans and decays do with a lag, in each layer and head.

    SPE: the expected P_d, through the layer's gate. LRPE, RoPE, PermuteFormer: the diagonal of W_τ.
    SIREN and Transformer-XL: P_τ, and the bias v·P_τ, at the scale of logits. Sinusoidal: the
    products of two encodings. Span: its Gaussian, 0 outside of the window. Decay: γ^|τ|.

    Args:
        lags: position of the query less that of the key, in whole positions: [N].
        axis: the coordinate they are of; lags of all others are 0.
    """
    steps = torch.from_numpy(lags).to(next(model.parameters()).device)
    kernels = []
    for source in _sources(model):
        if axis not in source.axes:
            continue
        at = steps.new_zeros(len(steps), len(source.axes))
        at[:, source.axes.index(axis)] = steps
        # In parts, as there may be a matrix behind each lag.
        of_layers = [
            torch.cat(cast("list[Tensor]", [source.kernel(x, layer) for x in at.split(256)]), -1)
            for layer in range(1 if source.shared else len(model.layers))
        ]
        values = torch.stack(of_layers).float()
        summary = "mean" if source.signed else "root mean square"
        profile = values.mean(-2) if source.signed else values.square().mean(-2).sqrt()
        kernels.append(
            LagKernel(
                source.name,
                source.meaning,
                source.relative,
                values.cpu().numpy(),
                summary,
                profile.cpu().numpy(),
            )
        )
    return kernels


class _Source(NamedTuple):
    """Where a `LagKernel` may come from."""

    name: str
    meaning: str
    relative: str
    axes: range  # the coordinates that lags are taken of
    kernel: Callable[[Tensor, int], Tensor | None]  # lags [N, len(axes)], layer -> [H, K', N]
    shared: bool = False  # by all layers
    signed: bool = True


_MEANINGS = {
    Site.EMBEDDING: "product of two encodings, by frequency",
    Site.QUERY_KEY: "factor on the product of query and key, by dimension",
    Site.FEATURE: "factor on the product of features, by dimension",
    Site.LOGIT: "factor on the query, a term of the logit, by dimension",
}


def _sources(model: Transformer) -> list[_Source]:
    position, layers = model.position, cast("list[Layer]", list(model.layers))
    site, span = layers[0].kernel.site, layers[0].span
    axes = range(position.columns.start, position.columns.stop)

    def encoding(
        function: Callable[[Tensor, int], Tensor | None],
    ) -> Callable[[Tensor, int], Tensor | None]:
        """Lags of one coordinate are [N] to an encoding."""
        return lambda lags, layer: function(lags if len(axes) > 1 else lags[:, 0], layer)

    def decay_of_encoding(lags: Tensor, layer: int) -> Tensor | None:
        return _decay(position.log_decay(), lags)

    def decay(lags: Tensor, layer: int) -> Tensor | None:
        kernel = layers[layer].kernel
        return _decay(kernel.log_decay if isinstance(kernel, LinearAttention) else None, lags)

    def weight(lags: Tensor, layer: int) -> Tensor | None:
        own = layers[layer].span
        return None if own is None else own.weight(lags)[None, None]

    relative, on_weights = position.relative, "factor on attention weights, by head"
    candidates = [
        _Source(
            position.name,
            _MEANINGS[site],
            relative,
            axes,
            encoding(position.kernel),
            position.shares_kernel,
            signed=site != Site.LOGIT,
        ),
        _Source(
            f"{position.name} bias",
            "added to the logits of any query",
            relative,
            axes,
            encoding(position.logit_bias),
        ),
        _Source("decay", on_weights, "exact", range(1), decay),
        _Source(
            "span",
            "Gaussian of the lag, 0 where a key is not seen",
            "exact",
            range(0 if span is None else span.num_dims),
            weight,
        ),
    ]
    if model.causal:  # else it is not applied
        name = f"{position.name} decay"
        candidates.append(_Source(name, on_weights, "exact", range(1), decay_of_encoding, True))
    origin = torch.zeros(1, 1, device=next(model.parameters()).device)
    return [s for s in candidates if s.kernel(origin.expand(1, len(s.axes)), 0) is not None]


def _decay(log_decay: Tensor | None, lags: Tensor) -> Tensor | None:
    if log_decay is None:
        return None
    return (log_decay[:, None] * lags[:, 0].abs()).exp()[:, None]  # [H, 1, N]
