"""The outputs of all layers of a model."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from musicgen.models.transformer import Transformer


def layer_outputs(model: Transformer, tokens: Tensor, **inputs: Any) -> list[Tensor]:
    """Return the output of each layer, from the first to the last: [B, L, D] each.

    A class token of the head comes first, as an additional token.

    Args:
        tokens: ids. [B, L]
        inputs: `positions`, `key_mask` and `noise`, see `Transformer.hidden`.
    """
    outputs: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda layer, arguments, output: outputs.append(output[0]))
        for layer in model.layers
    ]
    try:
        model.hidden(tokens, **inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs
