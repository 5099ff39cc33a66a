"""Functions of the lag in a model: positional kernels, spans and decays as arrays."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.errors import UserError
from musicgen.models.transformer import Transformer
from musicgen.position import Site


class PositionKernel(NamedTuple):
    """A function of the lag in the layers of a model."""

    name: str  # the encoding's name, `decay` or `span`
    relative: str  # whether it is the same at all positions: `exact`, `expected` or `no`
    values: NDArray[np.float32]  # [layers, H, K', N]; size 1 for axes along which they are equal
    profile: NDArray[np.float32]  # mean over K', root mean square at `Site.LOGIT`: [layers, H, N]


def kernel_axes(model: Transformer) -> list[int]:
    """Return the position coordinates on which the model has functions of the lag.

    Raises:
        UserError: it has none.
    """
    axes = {axis for _, columns, *_ in _functions(model) for axis in columns}
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
    signless = list[Any](model.layers)[0].attention.site == Site.LOGIT
    kernels = []
    for name, axes, relative, functions in _functions(model):
        if axis not in axes:
            continue
        all_lags = steps.new_zeros(len(steps), len(axes))
        all_lags[:, axes.index(axis)] = steps
        # In chunks of lags, as each lag may need a matrix.
        layers = [torch.cat([f(x) for x in all_lags.split(256)], -1) for f in functions]
        values = torch.stack(layers).float()
        profile = values.mean(-2)
        if signless and name == model.position.name:
            profile = values.square().mean(-2).sqrt()
        kernels.append(PositionKernel(name, relative, values.cpu().numpy(), profile.cpu().numpy()))
    return kernels


Function = Callable[[Tensor], Tensor]


def _functions(model: Transformer) -> Iterator[tuple[str, Sequence[int], str, list[Function]]]:
    """Yield name, axes and relativity of the model's functions of the lag, and one for each layer.

    They map lags [N, number of axes] to [H, K', N]; layers that share a function have one.
    """
    position, layers = model.position, list[Any](model.layers)
    axes, numbers = position.columns, range(1 if position.shares_kernel else len(layers))
    zero = torch.zeros(1, len(axes), device=next(model.parameters()).device)

    def by_layer(function: Callable[[Tensor, int], Tensor | None]) -> list[Any]:
        # Encodings take the lags of one coordinate as [N].
        return [lambda lags, i=i: function(lags.squeeze(1), i) for i in numbers]

    name = position.name
    for each, kernel in ((name, position.kernel), (f"{name} bias", position.logit_bias)):
        if axes and kernel(zero.squeeze(1), 0) is not None:
            yield each, axes, position.relative, by_layer(kernel)
    decays = [layer.attention.log_decay for layer in layers]
    if decays[0] is not None:
        yield "decay", (0,), "exact", [partial(_decay, decay) for decay in decays]
    if layers[0].span is not None:
        spans: list[Any] = [
            lambda lags, span=layer.span: span.weight(lags)[None, None] for layer in layers
        ]
        yield "span", range(layers[0].span.num_dims), "exact", spans
    if model.causal and (decay := position.log_decay()) is not None:
        yield f"{name} decay", (0,), "exact", [partial(_decay, decay)]


def _decay(log_decay: Tensor, lags: Tensor) -> Tensor:
    return (log_decay[:, None] * lags[:, 0].abs()).exp()[:, None]  # [H, 1, N]
