"""A model as a folder for programs without torch: model.onnx, tokenizer.json and a README.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, equal

from musicgen.export.graph import step_graph
from musicgen.export.step import RecurrentStep
from musicgen.files import write_bytes, write_text
from musicgen.models import Transformer
from musicgen.random import NoiseKey
from musicgen.tokenization.base import Tokenizer

README = """\
# A symbolic-music model of musicgen as an ONNX graph

| file | content |
|---|---|
| `model.onnx` | one decoding step; its metadata has the state before the first token |
| `tokenizer.json` | the tokenizer ({tokenizer}): its settings, and the tokens by id |

A step takes a token of each sequence, its position and the state. It returns the logits, and each
changed tensor of the state as `new.NAME`. A prompt is fed token by token; a piece begins with the
ids {start}. Positions have the columns {coordinates}, counted from 0: `index` counts tokens, `time`
grid steps ({steps_per_beat} a beat), `bar` bars and `beat` grid steps in the bar. In Python:

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


def save_onnx(model: Transformer, tokenizer: Tokenizer, folder: Path, *, seed: int) -> None:
    """Write a folder with a model's decoding step as a graph, its tokenizer and a README.

    Args:
        model: in evaluation mode.
        seed: of the noise of stochastic positional encodings, which the graph holds.

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
        coordinates=", ".join(f"`{name}`" for name in model.coordinate_names),
        steps_per_beat=tokenizer.steps_per_beat,
    )
    write_text(folder / "README.md", text)


def _described(tensor: Tensor) -> dict[str, Any]:
    """Return the dtype, shape and values of a tensor: one number if all its elements are equal."""
    first = tensor.flatten()[0]
    value = first.item() if equal(tensor, first.expand_as(tensor)) else tensor.tolist()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": [*tensor.shape], "value": value}
