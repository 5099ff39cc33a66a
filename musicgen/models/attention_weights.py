"""Attention matrices of a model: of a piece, and of copies of one token."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from musicgen.attention import Attention
from musicgen.attention.pair_weights import pair_weights
from musicgen.models.transformer import Transformer
from musicgen.random import NoiseKey


@torch.no_grad()
def attention_weights(
    model: Transformer,
    tokens: Tensor,
    *,
    form: str = "normalised",
    layers: Sequence[int] | None = None,
    positions: Tensor | None = None,
    noise: NoiseKey | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each layer's attention matrices [B, H, L, L] and their scale, one after the other.

    Their time and memory are quadratic in length. Training and generation never form them.

    Args:
        model: in evaluation mode.
        tokens: [B, L].
        form: see `pair_weights`, whose results these are.
        layers: to yield, from 0; None: all.
        positions, noise: as of `Transformer.hidden`.
    """
    inputs: dict[int, tuple[Any, ...]] = {}
    attentions = [module for module in model.layers.modules() if isinstance(module, Attention)]

    def keep(layer: int, _: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        q, k, _, code, mask = args
        inputs[layer] = q, k, code, mask, options["token_decay"]

    hooks = [
        attention.register_forward_pre_hook(partial(keep, i), with_kwargs=True)
        for i, attention in enumerate(attentions)
    ]
    try:
        model.hidden(tokens, positions=positions, noise=noise)
    finally:
        for hook in hooks:
            hook.remove()
    for layer in range(len(attentions)) if layers is None else layers:
        q, k, code, mask, token_decay = inputs[layer]
        yield pair_weights(attentions[layer], q, k, code, mask, form, token_decay=token_decay)


@torch.no_grad()
def identical_token_weights(
    model: Transformer,
    token_ids: Iterable[int],
    length: int,
    noise: NoiseKey,
    *,
    form: str = "features",
    layers: Sequence[int] | None = None,
) -> Tensor:
    """Compute the mean attention matrices over sequences that each repeat one token.

    Only positions tell queries and keys apart (Wang et al. 2021, identical-word probing; Liutkus
    et al. 2021, supplement D.3). Each token has a draw of the encoding's noise, as there; the mean
    matrix of an encoding that is relative in expectation depends on the lag alone the more, the
    more tokens there are. All coordinates of a position count tokens.

    Args:
        model: in evaluation mode, in fp64 for exact ties of weights.
        noise: key of the draws, each of which folds in the token's id.
        form, layers: as of `attention_weights`.

    Returns:
        [layers, H, length, length], up to a factor of each head.
    """
    device = next(model.parameters()).device
    positions = torch.arange(length, device=device)[None, :, None]
    positions = positions.expand(-1, -1, model.num_position_columns)
    totals: list[tuple[Tensor, Tensor]] = []
    count = 0
    for count, token in enumerate(token_ids, 1):  # noqa: B007, used after the loop
        tokens = torch.full((1, length), token, device=device)
        options: dict[str, Any] = {"form": form, "layers": layers, "positions": positions}
        found = attention_weights(model, tokens, **options, noise=noise.fold(token))
        for i, (weights, scale) in enumerate(found):
            if len(totals) <= i:
                totals.append((weights[0], scale[0]))
                continue
            total, before = totals[i]
            common = torch.maximum(before, scale[0])
            total *= (before - common).exp()[:, None, None]
            total += weights[0] * (scale[0] - common).exp()[:, None, None]
            totals[i] = total, common
    return torch.stack([total for total, _ in totals]).div_(count)
