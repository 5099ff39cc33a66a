"""Functions of the lag in a model: positional kernels, spans and decays as arrays."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.errors import UserError
from musicgen.models.transformer import Transformer
from musicgen.position import Site

_EFFECTS = {
    Site.EMBEDDING: "product of two encodings, by frequency",
    Site.QUERY_KEY: "factor on the product of query and key, by dimension",
    Site.FEATURE: "factor on the product of features, by dimension",
    Site.LOGIT: "factor on the query, a term of the logit, by dimension",
}


class PositionKernel(NamedTuple):
    """A function of the lag in the layers of a model."""

    name: str  # the encoding's name, `decay` or `span`
    effect: str  # on attention, in words
    relative: str  # whether it is the same at all positions: `exact`, `expected` or `no`
    values: NDArray[np.float32]  # [layers, H, K', N]; size 1 for axes along which they are equal
    summary: str  # of the dimensions: mean, or root mean square where signs have no meaning
    profile: NDArray[np.float32]  # the values' summary: [layers, H, N]


def kernel_axes(model: Transformer) -> list[int]:
    """Return the position coordinates on which the model has functions of the lag.

    Raises:
        UserError: it has none.
    """
    axes = {axis for source in _sources(model) for axis in source.axes}
    if not axes:
        raise UserError(
            f"position={model.position.name} has no kernel (a function of the lag), and the model "
            "has no span and no decay; use a model with a relative encoding such as "
            "position=sine_spe or rope, with span=gaussian, or with attention.decay=head"
        )
    return sorted(axes)


@torch.inference_mode()
def position_kernels(
    model: Transformer, lags: NDArray[np.int64], axis: int = 0
) -> list[PositionKernel]:
    """Compute a model's functions of the lag for each layer and head.

    - SPE: the expected P_d, with the layer's gate.
    - LRPE, RoPE, PermuteFormer: the diagonal of W_τ.
    - SIREN, Transformer-XL: P_τ, and the bias v·P_τ, scaled like the logits.
    - Sinusoidal: the products of two encodings.
    - Span: its Gaussian, 0 outside of the window. Decay: γ^|τ|.

    Args:
        lags: query position minus key position: [N].
        axis: the coordinate of the lags, as a column of positions; lags of other coordinates are 0.
            Heads that do not read it are constant.
    """
    steps = torch.from_numpy(lags).to(next(model.parameters()).device)
    kernels = []
    for source in _sources(model):
        if axis not in source.axes:
            continue
        all_lags = steps.new_zeros(len(steps), len(source.axes))
        all_lags[:, source.axes.index(axis)] = steps
        # In chunks of lags, as each lag may need a matrix.
        layers = [
            torch.cat([source.function(chunk, layer) for chunk in all_lags.split(256)], -1)
            for layer in range(1 if source.shared else len(model.layers))
        ]
        values = torch.stack(layers).float()
        if source.signed:
            summary, profile = "mean", values.mean(-2)
        else:
            summary, profile = "root mean square", values.square().mean(-2).sqrt()
        arrays = values.cpu().numpy(), summary, profile.cpu().numpy()
        kernels.append(PositionKernel(source.name, source.effect, source.relative, *arrays))
    return kernels


class _Source(NamedTuple):
    """A part of the model that may have a function of the lag; the fields are those of the result.

    `function` maps lags [N, len(axes)] of the coordinates `axes`, and a layer, to [H, K', N] or,
    where the model has no such part, to None.
    """

    name: str
    function: Callable[[Tensor, int], Any]
    axes: Sequence[int] = (0,)
    effect: str = "factor on attention weights, by head"
    relative: str = "exact"
    shared: bool = False  # by all layers
    signed: bool = True


def _sources(model: Transformer) -> list[_Source]:
    """Return the parts of the model that have a function of the lag."""
    position, layers = model.position, list[Any](model.layers)
    name, site, span = position.name, layers[0].attention.site, layers[0].span
    axes = position.columns
    # Encodings take the lags of one coordinate as [N].
    sources = [
        _Source(
            name,
            lambda lags, layer: position.kernel(lags.squeeze(1), layer),
            axes,
            _EFFECTS[site],
            position.relative,
            shared=position.shares_kernel,
            signed=site != Site.LOGIT,
        ),
        _Source(
            f"{name} bias",
            lambda lags, layer: position.logit_bias(lags.squeeze(1), layer),
            axes,
            "added to the logits of all queries",
            position.relative,
        ),
        _Source("decay", lambda lags, layer: _decay(layers[layer].attention.log_decay, lags)),
        _Source(
            "span",
            lambda lags, layer: layers[layer].span.weight(lags)[None, None],
            range(0 if span is None else span.num_dims),
            "Gaussian of the lag, 0 for keys outside the window",
        ),
        _Source(
            f"{name} decay",
            lambda lags, _: _decay(position.log_decay() if model.causal else None, lags),
            shared=True,
        ),
    ]
    zero = torch.zeros(1, 1, device=next(model.parameters()).device)
    return [s for s in sources if s.axes and s.function(zero.expand(1, len(s.axes)), 0) is not None]


def _decay(log_decay: Tensor | None, lags: Tensor) -> Tensor | None:
    if log_decay is None:
        return None
    return (log_decay[:, None] * lags[:, 0].abs()).exp()[:, None]  # [H, 1, N]
