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
    """Return a step as a graph.

    Its inputs are tokens [B], positions [B, P], the state and `RecurrentStep.settings`; its outputs
    the logits [B, V] and the changed state. The tensors of the state are named as in
    `ModelState.tensors`; those after the step have the prefix `NEW`. B and the number of a ring's
    slots may be any number. Weights are named as the model's parameters, with `model.` before them.

    Args:
        fold: replace what depends on weights alone by its value; else all weights keep their names.

    Raises:
        UserError: the packages of the extra `onnx` are missing.
    """
    check_packages()
    two = torch.tensor([0, 0])  # two sequences: of one, torch would make a constant
    state = step.template.select(two).tensors()
    settings = {name: tensor[two] for name, tensor in step.settings.items()}
    positions = torch.zeros(2, step.model.num_position_columns, dtype=torch.long)
    batch, slots = {0: torch.export.Dim("batch")}, torch.export.Dim("slots", min=3)
    of_state = {k: batch | ({SLOTS[k]: slots} if k in SLOTS else {}) for k in state}
    with torch.no_grad(), _quiet():
        changed = step(two, positions, state, settings)[1]
        program = torch.export.export(
            step,
            (two, positions, state, settings),
            dynamic_shapes=(batch, batch, of_state, dict.fromkeys(settings, batch)),
        )
        graph = torch.onnx.export(
            program,
            dynamo=True,
            optimize=fold,
            verbose=False,
            input_names=["tokens", "positions", *state, *settings],
            output_names=["logits", *(NEW + name for name in changed)],
        )
    assert graph is not None
    proto = graph.model_proto  # made anew at each call
    own = proto.graph
    # Remove torch's notes on each line of code, which have paths of this machine.
    for part in (proto, own, *own.node, *own.value_info, *own.input, *own.output, *own.initializer):
        del part.metadata_props[:]
    return proto


def check_packages() -> None:
    """Raise a UserError if the packages of the extra `onnx` are missing."""
    if find_spec("onnxscript") is None:  # which needs onnx
        raise UserError("ONNX graphs need packages: pip install -e '.[onnx]'")


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warnings about packages and shapes that no step has."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)
