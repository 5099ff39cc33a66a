"""Attention weights of a model, for any tokens and for sequences that repeat one token."""

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
    """Return attention weights, with which layers average the values: [layers, B, H, L, L].

    The last two axes are query and key. Time and memory are quadratic in length; training and
    generation never compute these weights.

    Args:
        model: in evaluation mode.
        tokens: [B, L].
        layers: numbers of the layers, from 0.
        positions, noise: as in `Transformer.hidden`.
    """
    attentions = [module for module in model.layers.modules() if isinstance(module, Attention)]
    weights: dict[int, Tensor] = {}

    def keep(layer: int, attention: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        # The output is linear in the values: with an identity matrix as values, it is the weights.
        q, k, _, *rest = args
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
    """Return mean attention weights over sequences, each of which repeats one token.

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
        weights = attention_weights(model, tokens, layers=layers, positions=positions, noise=key)
        weights = weights / weights.diagonal(dim1=-2, dim2=-1)[..., None]
        total = total + (weights / weights.amax((-2, -1), keepdim=True))[:, 0] / len(token_ids)
    return total
