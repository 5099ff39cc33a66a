"""A model as a folder for programs without torch: graph, tokenizer, and a manifest of both.

`manifest.json` says all that such a program needs; see `docs/export.md`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from musicgen.checkpoints.card import CARD, CardFacts
from musicgen.checkpoints.content import CheckpointContent
from musicgen.checkpoints.folders import TOKENIZER, write_card
from musicgen.export.graph import NEW, step_graph
from musicgen.export.step import RINGS, RecurrentStep
from musicgen.export.weights import DTYPES, store_weights
from musicgen.files import write_bytes
from musicgen.models import Transformer
from musicgen.random import NoiseKey
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.vocabulary import save_json
from musicgen.validation import check_choice

if TYPE_CHECKING:
    import onnx

GRAPH, MANIFEST = "model.onnx", "manifest.json"


def write_onnx_folder(
    model: Transformer,
    tokenizer: Tokenizer,
    content: CheckpointContent,
    folder: Path,
    *,
    dtype: str,
    seed: int,
    sampling: Mapping[str, Any],
    facts: CardFacts | None,
) -> None:
    """Write a model's decoding step as a graph, with what a program needs to compose with it.

    Args:
        model: in evaluation mode.
        dtype: of the stored weights: float32, float16 or int8; computations are in fp32.
        seed: of the noise of stochastic positional encodings.
        sampling: settings of `SamplingParams` that suit the model.
        facts: what the card says beside the checkpoint.

    Raises:
        UserError: the model cannot be exported, or the extra `onnx` is missing.
    """
    check_choice("dtype", dtype, DTYPES)
    step = RecurrentStep(model, NoiseKey((seed,)))
    graph = step_graph(step)
    store_weights(graph, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / GRAPH, graph.SerializeToString())
    tokenizer.save(folder / TOKENIZER)
    write_card(content, model.state_dict(), folder, facts)
    manifest = {
        "format_version": 1,
        "dtype": dtype,
        "card": CARD,
        "sha256": {name: _sha256(folder / name) for name in (GRAPH, TOKENIZER, CARD)},
        "vocabulary_size": len(tokenizer.vocabulary),
        "training_length": content.config["loader"]["length"],
        "sampling": dict(sampling),
        "seed": seed,
        **_signature(step, graph),
        **_music(model, tokenizer),
    }
    save_json(manifest, folder / MANIFEST)  # the last file: with it, the folder is complete


def _signature(step: RecurrentStep, graph: onnx.ModelProto) -> dict[str, Any]:
    """Describe inputs and outputs, with the first value of each tensor of the state."""
    state = step.template.tensors()
    made = {each.name for each in graph.graph.output}
    inputs: list[dict[str, Any]] = [
        {"name": "tokens", "dtype": "int64", "shape": ["batch"]},
        {
            "name": "positions",
            "dtype": "int64",
            "shape": ["batch", step.model.num_position_columns],
        },
    ]
    outputs = [
        {
            "name": "logits",
            "dtype": "float32",
            "shape": ["batch", step.model.embedding.num_embeddings],
        }
    ]
    for name, tensor in state.items():
        each = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": ["batch", *tensor.shape[1:]],
        }
        inputs.append({"name": name, **each, "initial": _initial(tensor[0])})
        if name in RINGS:
            source, axis = RINGS[name]
            inputs[-1]["written"] = {"from": source, "axis": axis}
        if NEW + name in made:
            outputs.append({"name": NEW + name, **each, "becomes": name})
    return {"inputs": inputs, "outputs": outputs}


def _initial(row: Tensor) -> Any:
    """Return the number that fills a row, or else its numbers as nested lists."""
    first = row.flatten()[0]
    return first.item() if torch.equal(row, first.expand_as(row)) else row.tolist()


def _music(model: Transformer, tokenizer: Tokenizer) -> dict[str, Any]:
    """Describe tokens, their coordinates and the grammar."""
    return {
        "tokenizer": tokenizer.name,
        "families": {name: [ids.start, ids.stop] for name, ids in tokenizer.families.items()},
        "pad": tokenizer.vocabulary.pad_id,
        "start_tokens": tokenizer.start_tokens().tolist(),
        "steps_per_beat": tokenizer.steps_per_beat,
        "coordinates": list(model.coordinate_names),
        "coordinates_of_tokens": {
            name: values.tolist()
            for name, values in tokenizer.changes.items()
            if name in model.coordinate_names
        },
        "grammar": tokenizer.grammar().tables(),
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
