"""The FLOPs of a training step by formula, and of a device, whose quotient is the MFU."""

from typing import Any

import torch

from musicgen.attention import LinearAttention
from musicgen.models import Transformer

# Dense bf16 products, in FLOPs a second, by a part of the device's name (makers' data sheets).
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}


def model_flops(model: Transformer, batch_size: int, length: int) -> float:
    """Return the FLOPs of a training step's matrix products, forward and backward.

    6 for each weight of a matrix and token (Kaplan et al. 2020), and 3 times those of attention:
    with H heads and values of width V, linear attention takes 4·M·V for each token and head, and
    FAVOR+ 2·E·M for its features; causal softmax attention takes 2·K·L.
    """
    matrices = sum(p.numel() for p in model.layers.parameters() if p.dim() == 2)
    matrices += sum(p.numel() for p in model.head.parameters() if p.dim() == 2)
    per_token = 6.0 * matrices
    for layer in list[Any](model.layers):
        attention, width = layer.attention, layer.out.in_features // layer.num_heads
        if isinstance(attention, LinearAttention):
            features = 4 * attention.feature_dim * width
            directions = attention.feature_map.directions
            features += 0 if directions is None else 4 * directions.numel()
        else:
            features = 2 * length * width
        per_token += 3 * layer.num_heads * features
    return per_token * batch_size * length


def peak_flops(device: torch.device | str) -> float | None:
    """Return the peak of a device in bf16, in FLOPs a second; None if it is unknown."""
    if torch.device(device).type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS.items() if part in name), None)
