"""A model's decoding step as an ONNX graph."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from musicgen.errors import UserError
from musicgen.export.step import SLOTS, RecurrentStep

if TYPE_CHECKING:
    import onnx

NEW = "new."
"""Prefix of the name of a state's tensor after the step."""


def step_graph(step: RecurrentStep, *, fold: bool = True) -> onnx.ModelProto:
    """Return a step as a graph: tokens [B], positions [B, P], state -> logits, what changes of it.

    Tensors of the state have the names of `ModelState.tensors`, those after the step a prefix; B is
    any number, and so is that of the slots of a ring. Weights have the names of the model's
    parameters, with `model.` before them.

    Args:
        fold: compute what depends on weights alone; else all weights stay as they are named.

    Raises:
        UserError: the packages of the extra `onnx` are missing.
    """
    check_packages()
    two = torch.tensor([0, 0])  # rows; of one, torch would make a constant
    state = step.template.select(two).tensors()
    positions = torch.zeros(2, step.model.num_position_columns, dtype=torch.long)
    rows, slots = {0: torch.export.Dim("batch")}, torch.export.Dim("slots", min=3)
    of_state = {k: rows | ({SLOTS[k]: slots} if k in SLOTS else {}) for k in state}
    with torch.no_grad(), _quiet():
        changed = step(two, positions, state)[1]
        program = torch.export.export(
            step,
            (two, positions, state),
            dynamic_shapes=(rows, rows, of_state),
        )
        graph = torch.onnx.export(
            program,
            dynamo=True,
            optimize=fold,
            verbose=False,
            input_names=["tokens", "positions", *state],
            output_names=["logits", *(NEW + name for name in changed)],
        )
    assert graph is not None
    proto = graph.model_proto  # made anew at each call
    own = proto.graph
    # Without what torch says about each line of code, with paths of this machine.
    for part in (proto, own, *own.node, *own.value_info, *own.input, *own.output, *own.initializer):
        del part.metadata_props[:]
    return proto


def check_packages() -> None:
    """Raise a UserError if the packages of the extra `onnx` are missing."""
    if find_spec("onnxscript") is None:  # which needs onnx
        raise UserError("ONNX graphs need packages: pip install -e '.[onnx]'")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what torch says about packages and shapes that no step has."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)
