"""Attention matrices of a model: of a piece, and of copies of one token."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from musicgen.attention import Attention
from musicgen.models.transformer import Transformer
from musicgen.random import NoiseKey


@torch.no_grad()
def attention_weights(
    model: Transformer,
    tokens: Tensor,
    *,
    layers: Sequence[int],
    positions: Tensor | None = None,
    noise: NoiseKey | None = None,
) -> Tensor:
    """Compute the weights by which layers average the values: [layers, B, H, L, L], query, key.

    Time and memory are quadratic in length; training and generation never form these weights.

    Args:
        model: in evaluation mode.
        tokens: [B, L].
        layers: their numbers, from 0.
        positions, noise: the arguments of `Transformer.hidden`.
    """
    attentions = [module for module in model.layers.modules() if isinstance(module, Attention)]
    weights: dict[int, Tensor] = {}

    def keep(layer: int, attention: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        q, k, _, *rest = args  # the output is linear in the values: an identity shows the weights
        values = torch.eye(k.shape[1], dtype=q.dtype, device=q.device)[:, None]
        values = values.repeat(len(q), 1, k.shape[2], 1)
        out, _ = attention.forward(q, k, values, *rest, **options)
        weights[layer] = out.permute(0, 2, 1, 3)

    hooks = [
        attentions[i].register_forward_pre_hook(partial(keep, i), with_kwargs=True) for i in layers
    ]
    try:
        model.hidden(tokens, positions=positions, noise=noise)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([weights[i] for i in layers])


def identical_token_weights(
    model: Transformer,
    token_ids: Sequence[int],
    length: int,
    noise: NoiseKey,
    *,
    layers: Sequence[int],
) -> Tensor:
    """Compute the mean attention matrices over sequences that each repeat one token.

    Only positions tell queries and keys apart (Wang et al. 2021, identical-word probing; Liutkus
    et al. 2021, supplement D.3). Each token has a draw of the encoding's noise, as there. All
    coordinates of a position count tokens. Before the mean, weights are divided by that of the
    query's own token, so that a row's size plays no part, and by the largest of the sequence.

    Args:
        model: on the CPU, in evaluation mode, in fp64 for exact ties of weights.
        noise: key of the draws, each of which folds in the token's id.
        layers: their numbers, from 0.

    Returns:
        [layers, H, length, length].
    """
    positions = torch.arange(length)[None, :, None].expand(-1, -1, model.num_position_columns)
    total: Any = 0
    for token in token_ids:
        tokens, key = torch.full((1, length), token), noise.fold(token)
        weights = attention_weights(model, tokens, layers=layers, positions=positions, noise=key)
        weights = weights / weights.diagonal(dim1=-2, dim2=-1)[..., None]
        total = total + (weights / weights.amax((-2, -1), keepdim=True))[:, 0] / len(token_ids)
    return total
