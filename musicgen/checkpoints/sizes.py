"""Sizes in a foreign configuration, compared with its weights before a model takes memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from musicgen.adapters import Adapter
from musicgen.errors import UserError
from musicgen.models import Transformer

_SMALL = 2**20  # a size that any machine can hold


def check_sizes(
    config: Mapping[str, Any],
    weights: Mapping[str, Any],
    build_model: Callable[[], Transformer],
    adapter: Adapter | None = None,
) -> None:
    """Raise `UserError` unless the model of a configuration has the sizes of the weights.

    It is built on torch's meta device, whose tensors have shapes but no memory.

    Args:
        config: of the model.
        weights: of its state, by name.
        adapter: whose weights are among them; the sizes of one that does not merge follow from the
            model's.
    """
    refusal = UserError("its weights do not fit its configuration; use another")
    # A view may be of any size, such as one number expanded to a matrix.
    if not all(isinstance(t, Tensor) and _is_stored(t) for t in weights.values()):
        raise refusal
    shapes = {name: list(tensor.shape) for name, tensor in weights.items()}
    sizes = [config, None if adapter is None else vars(adapter)]
    layers = {name.split(".")[1] for name in shapes if name.startswith("layers.")}
    if len(layers) != config.get("num_layers") or not holds(sizes, shapes.values()):
        raise refusal
    with torch.device("meta"):
        model = build_model()
        if adapter is not None and adapter.merges:
            adapter.attach(model)
    if adapter is not None and not adapter.merges:
        own = adapter.own(weights)
        shapes = {name: shape for name, shape in shapes.items() if name not in own}
    if {name: list(tensor.shape) for name, tensor in model.state_dict().items()} != shapes:
        raise refusal


def holds(config: Any, shapes: Iterable[Sequence[int]]) -> bool:
    """Return whether no size in a configuration is beyond what weights of the shapes could need."""
    num_weights = sum(math.prod(shape) for shape in shapes)
    return all(size <= max(num_weights, _SMALL) for size in _integers(config))


def _is_stored(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _integers(config: Any) -> Iterator[int]:
    if isinstance(config, Mapping):
        config = list(config.values())
    if isinstance(config, list):
        for value in config:
            yield from _integers(value)
    elif isinstance(config, int):
        yield config
