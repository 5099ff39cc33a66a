"""What layers compute inside a forward pass, recorded by hooks."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from musicgen.attention import Attention


def hidden_states(model: Any, tokens: Tensor, **inputs: Any) -> list[Tensor]:
    """Return the input of the first layer of a Transformer, then the output of each layer.

    Args:
        tokens, inputs: as in `Transformer.hidden`.
    """
    states: list[Tensor] = []
    hooks = [model.layers[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))]
    hooks += [
        layer.register_forward_hook(lambda layer, arguments, output: states.append(output[0]))
        for layer in model.layers
    ]
    try:
        model.hidden(tokens, **inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return states


@torch.no_grad()
def attention_matrices(
    model: Any, tokens: Tensor, *, layers: Sequence[int], **inputs: Any
) -> Tensor:
    """Return the matrices A of some layers, whose heads return A V of values V.

    Each row is a distribution over keys, with two exceptions, both of encodings at `Site.FEATURE`:
    entries may be negative where the encoding makes features negative (rotations, Householder and
    Fourier bases), and with the normaliser `unencoded` the sum of a row may differ from 1.

    Args:
        model: a Transformer, in evaluation mode.
        tokens: [B, L].
        layers: numbers of the layers, from 0.
        inputs: `positions`, `key_mask` and `noise`, see `Transformer.hidden`.

    Returns:
        [layers, B, H, L, L]; the last two axes are query and key. Time and memory are quadratic in
        length; training and generation never compute these matrices.
    """
    attentions = [module for module in model.layers.modules() if isinstance(module, Attention)]
    matrices: dict[int, Tensor] = {}

    def keep(layer: int, attention: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        # The output is linear in the values: with an identity matrix as values, it is the matrix.
        q, k, _, *rest = args
        values = torch.eye(k.shape[1], dtype=q.dtype, device=q.device)[:, None]
        values = values.repeat(len(q), 1, k.shape[2], 1)
        out, _ = attention.forward(q, k, values, *rest, **options)
        matrices[layer] = out.permute(0, 2, 1, 3)

    hooks = [
        attentions[i].register_forward_pre_hook(partial(keep, i), with_kwargs=True) for i in layers
    ]
    try:
        model.hidden(tokens, **inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([matrices[i] for i in layers])
