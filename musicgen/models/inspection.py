"""What a model computes inside: attention weights, and functions of the lag."""

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
from musicgen.random import NoiseKey


def identical_token_weights(
    model: Transformer,
    token_ids: Sequence[int],
    length: int,
    noise: NoiseKey,
    *,
    layers: Sequence[int],
) -> Tensor:
    """Return mean attention weights over sequences that repeat one token each.

    Only positions distinguish queries and keys (Wang et al. 2021, identical-word probing; Liutkus
    et al. 2021, supplement D.3). As there, each token has its own draw of the encoding's noise. All
    coordinates of a position are token indices. Before the mean, the weights of a query are divided
    by its weight on its own token, and those of a sequence by their largest one.

    Args:
        model: on the CPU, in evaluation mode, in fp64 for exact ties of weights.
        token_ids: the repeated tokens.
        length: L, tokens of each sequence.
        noise: key of the draws; each draw folds in the token's id.
        layers: numbers of the layers, from 0.

    Returns:
        [layers, H, length, length].
    """
    positions = torch.arange(length)[None, :, None].expand(-1, -1, model.num_position_columns)
    total: Any = 0
    for token in token_ids:
        tokens, key = torch.full((1, length), token), noise.fold(token)
        weights = model.attentions(tokens, layers=layers, positions=positions, noise=key)
        weights = weights / weights.diagonal(dim1=-2, dim2=-1)[..., None]
        total = total + (weights / weights.amax((-2, -1), keepdim=True))[:, 0] / len(token_ids)
    return total


class PositionKernel(NamedTuple):
    """A function of the lag in each layer and head of a model."""

    name: str  # name of the positional encoding, `decay` or `span`
    relative: str  # whether it is the same at all positions: `exact`, `expected` or `no`
    values: NDArray[np.float32]  # [layers, H, K', N]; axes with equal values have size 1
    profile: NDArray[np.float32]  # mean over K', root mean square at `Site.LOGIT`: [layers, H, N]


def kernel_axes(model: Transformer) -> list[int]:
    """Return the columns of positions for which the model has a function of the lag.

    Raises:
        UserError: it has no such function.
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
    """Return the functions of the lag of a model, per layer and head.

    - SPE: the expected P_d, with the gate of the layer.
    - LRPE, RoPE, PermuteFormer: the diagonal of W_τ.
    - SIREN, Transformer-XL: P_τ, and the bias v·P_τ, scaled like the logits. ALiBi: its bias only.
    - Sinusoidal: the products of two encodings.
    - Span: its Gaussian, 0 outside of the window. Decay: γ^|τ|.

    Args:
        model: in evaluation mode.
        lags: query position minus key position [N].
        axis: column of positions that the lags are in; lags in other columns are 0. Heads that
            do not read this column are constant.
    """
    steps = torch.from_numpy(lags).to(next(model.parameters()).device)
    signless = list[Any](model.layers)[0].attention.site == Site.LOGIT
    kernels = []
    for name, axes, relative, functions in _functions(model):
        if axis not in axes:
            continue
        all_lags = steps.new_zeros(len(steps), len(axes))
        all_lags[:, axes.index(axis)] = steps
        # In chunks of lags, as each lag may need a whole matrix.
        layers = [torch.cat([f(x) for x in all_lags.split(256)], -1) for f in functions]
        values = torch.stack(layers).float()
        profile = values.mean(-2)
        if signless and name == model.position.name:
            profile = values.square().mean(-2).sqrt()
        kernels.append(PositionKernel(name, relative, values.cpu().numpy(), profile.cpu().numpy()))
    return kernels


Function = Callable[[Tensor], Tensor]


def _functions(model: Transformer) -> Iterator[tuple[str, Sequence[int], str, list[Function]]]:
    """Yield the functions of the lag of a model: name, axes, `relative`, and one per layer.

    They map lags [N, number of axes] to [H, K', N]. A function that all layers share is given once.
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
