"""One decoding step of a model, as a function of tensors alone, an ONNX graph, and a folder."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from musicgen.errors import UserError
from musicgen.files import write_bytes, write_text
from musicgen.models import ModelState, Transformer
from musicgen.models.copy_attention import EMPTY, CopySettings, CopyState
from musicgen.random import NoiseKey
from musicgen.tokenization.base import Tokenizer

if TYPE_CHECKING:
    import onnx

NEW = "new."
"""Prefix of the name of a state's tensor after the step."""

NO_SCALE = -1e30
"""The logarithm of a scale before the first token, in place of −∞, which JSON lacks."""

RINGS = {
    "copied.keys": ("copied.last_key", 2),
    "copied.bars": ("copied.last_bar", 1),
    "copied.successors": ("tokens", 1),
}
"""The rings of a state, with W slots each. A step only reads them: before it, the caller writes an
input into slot number length mod W. Per ring: the name of the input, and the axis of the slots."""

SLOTS = {name: axis for name, (_, axis) in RINGS.items()} | {"copied.matches": 1}
"""The axis of the slots in all tensors of a state that have one element per slot."""

README = """\
# A symbolic-music model of musicgen as an ONNX graph

| file | content |
|---|---|
| `model.onnx` | one decoding step; its metadata has the state before the first token |
| `tokenizer.json` | the tokenizer ({tokenizer}): its settings, and the tokens by id |

A step takes a token of each sequence, its position and the state. It returns the logits, and each
changed tensor of the state as `new.NAME`. A prompt is fed token by token; a piece begins with the
ids {start}. Positions have the columns {coordinates}. In Python:

```python
import json

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
first = json.loads(session.get_modelmeta().custom_metadata_map["state"])
state = {{
    name: np.broadcast_to(np.array(each["value"], each["dtype"]), each["shape"])
    for name, each in first.items()
}}
outputs = [output.name for output in session.get_outputs()]


def step(token, position):
    \"\"\"Return the logits [V] after one more token of a single sequence.\"\"\"
    inputs = {{"tokens": np.array([token]), "positions": np.array([position]), **state}}
    found = dict(zip(outputs, session.run(outputs, inputs)))
    state.update({{k.removeprefix("new."): x for k, x in found.items() if k != "logits"}})
    return found["logits"][0]
```
"""


COORDINATES = {
    "index": "number of tokens before it",
    "time": "grid steps before it, {steps_per_beat} a beat",
    "bar": "bars before its own",
    "beat": "grid steps from the bar line",
    "pitch": "MIDI pitch of the latest note; 0 before the first",
    "chord": "number of the latest chord, see `musicgen.tokenization.chords`; 0 before the first",
    "key": "number of the latest token of keys, from 1 in their order; 0 before the first",
}
"""What the README says of each coordinate of a token."""


class _ReadRing(CopyState):
    """A copy head's state whose ring has the token of this step already: its caller wrote it."""

    def write(self, tokens: Tensor, index: Tensor, *, overwrite: bool = True) -> CopyState:
        return self


class _CopiedRing(CopyState):
    """A copy head's state whose ring is copied at each step: a graph cannot change an array."""

    def write(self, tokens: Tensor, index: Tensor, *, overwrite: bool = True) -> CopyState:
        slots = torch.arange(self.bars.shape[1])
        here = slots == index[:, None] % (slots[-1:] + 1)  # [B, W]; by a tensor, which ONNX needs
        return self._replace(
            keys=torch.where(here[:, None, :, None], self.last_key[:, :, None], self.keys),
            bars=torch.where(here, self.last_bar[:, None], self.bars),
            successors=torch.where(here, tokens[:, None], self.successors),
        )


class RecurrentStep(nn.Module):
    """One decoding step, from tokens and a state to logits and the changed parts of the state.

    State and settings are dictionaries of tensors. The noise of a stochastic encoding is drawn
    once, into buffers of this module.

    Args:
        model: causal, in evaluation mode.
        key: of the positional encoding's random draws.
        writes_rings: the step writes its token into a copy head's ring and returns the ring; else
            the caller does so beforehand, which is faster, see `RINGS`.

    Attributes:
        template: the state of one sequence before its first token.
        settings: neutral `CopySettings` of a copy head for one sequence; `{}` without a copy head.

    Raises:
        UserError: the model's state grows with the number of tokens.
    """

    def __init__(self, model: Transformer, key: NoiseKey, *, writes_rings: bool = False) -> None:
        super().__init__()
        layer: Any = model.layers[0]
        if not layer.attention.has_fixed_state:
            raise UserError(
                f"attention={layer.attention.name} cannot be exported, as its state grows with "
                "each token; export a model of linear attention, such as attention=favor"
            )
        if not model.position.has_fixed_state:
            raise UserError(
                f"position={model.position.name} cannot be exported, as it draws more noise from "
                "token to token; export a model of another encoding, such as position=sine_spe"
            )
        self.model, self.key = model, key
        self.template = first_state(model, key)
        if (copied := self.template.copied) is not None:
            ring = _CopiedRing if writes_rings else _ReadRing
            self.template = replace(self.template, copied=ring(*copied))
        head = model.copy_head
        of_copies = {} if head is None else head.settings(1)._asdict()
        self.settings = {f"copy.{name}": tensor for name, tensor in of_copies.items()}
        self.noise = nn.Module()
        drawn = [x for x in tree_leaves(self.template.position) if isinstance(x, Tensor)]
        for i, tensor in enumerate(drawn):
            self.noise.register_buffer(str(i), tensor)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        state: dict[str, Tensor],
        settings: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return logits [B, V] and the changed tensors of the state.

        Args:
            tokens: ids. [B]
            positions: [B, P]
            state: of B sequences, named as in `ModelState.tensors`.
            settings: of B sequences, named as in `settings`.
        """
        drawn = self.noise.buffers()
        noise = tree_map_only(Tensor, lambda _: next(drawn), self.template.position)
        logits, after = self.model.forward_with_state(
            tokens[:, None],
            positions=positions[:, None],
            noise=self.key,
            state=replace(self.template.replaced(state), position=noise),
            copy_settings=CopySettings(*settings.values()) if settings else None,
        )
        return logits[:, 0], {k: x for k, x in after.tensors().items() if x is not state[k]}


@torch.no_grad()
def first_state(model: Transformer, key: NoiseKey) -> ModelState:
    """Return the state of one sequence before its first token: no sums, no tokens."""
    device = next(model.parameters()).device
    positions = torch.zeros(1, 1, model.num_position_columns, dtype=torch.long, device=device)
    tokens = positions[:, :, 0]
    _, after = model.forward_with_state(tokens, positions=positions, noise=key)
    begin = {"log_scale": NO_SCALE, "bars": EMPTY, "last_bar": EMPTY}
    return after.replaced(
        {
            name: torch.full_like(tensor, begin.get(name.rpartition(".")[2], 0))
            for name, tensor in after.tensors().items()
        }
    )


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
    # Remove torch's notes on the lines of code, as they have paths of this machine.
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


def save_onnx(model: Transformer, tokenizer: Tokenizer, folder: Path, *, seed: int) -> None:
    """Write a folder with a model's decoding step as a graph, its tokenizer and a README.

    Args:
        model: in evaluation mode.
        seed: seed of the noise of stochastic positional encodings; the graph contains the noise.

    Raises:
        UserError: the model cannot be exported, or packages of the extra `onnx` are missing.
    """
    step = RecurrentStep(model, NoiseKey((seed,)), writes_rings=True)
    graph = step_graph(step)
    first = step.template.tensors() | step.settings
    state = {name: _described(tensor) for name, tensor in first.items()}
    graph.metadata_props.add(key="state", value=json.dumps(state))
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "model.onnx", graph.SerializeToString())
    tokenizer.save(folder / "tokenizer.json")
    text = README.format(
        tokenizer=tokenizer.name,
        start=tokenizer.start_tokens().tolist(),
        coordinates=", ".join(f"`{x}` ({COORDINATES[x]})" for x in model.coordinate_names).format(
            steps_per_beat=tokenizer.steps_per_beat
        ),
    )
    write_text(folder / "README.md", text)


def _described(tensor: Tensor) -> dict[str, Any]:
    """Return the dtype, shape and values of a tensor: one number if all its elements are equal."""
    first = tensor.flatten()[0]
    value = first.item() if torch.equal(tensor, first.expand_as(tensor)) else tensor.tolist()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": [*tensor.shape], "value": value}
