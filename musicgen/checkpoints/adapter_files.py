"""Files of an adapter alone: a few hundred kilobytes, to be used with the model they belong to."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from musicgen.adapters import Adapter
from musicgen.checkpoints.building import build
from musicgen.checkpoints.content import CONTENT_KEY, CheckpointContent
from musicgen.checkpoints.folders import holds_sizes, open_safetensors, write_safetensors
from musicgen.checkpoints.reading import errors_name, read_checkpoint
from musicgen.errors import UserError
from musicgen.models import Transformer

_PROBE, _PROBE_SIZE = "base.probe", 32


def write_adapter(checkpoint: Path, path: Path) -> None:
    """Write the adapter of a run's checkpoint as a file of its own."""
    read = read_checkpoint(checkpoint)
    content = CheckpointContent.from_plain(read)
    adapter: Adapter = build(content.adapter, Adapter)
    weights = {name.removeprefix("model."): t for name, t in read["state_dict"].items()}
    description = {
        "adapter": content.adapter,
        "vocabulary_hash": content.vocabulary_hash,
        "sampling": content.sampling,
    }
    write_safetensors({**adapter.own(weights), _PROBE: _probe(weights)}, path, description)


def apply_adapter(
    model: Transformer, content: CheckpointContent, path: Path, kind: str | None = None
) -> tuple[Transformer, CheckpointContent]:
    """Return a copy of a model with the adapter of a file, and the content of both.

    Args:
        kind: what the file must hold, `lora` or `style`; None takes either.

    Raises:
        UserError: the file is no such adapter, or belongs to another model.
    """
    with errors_name(path), open_safetensors(path) as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        try:
            description = json.loads((file.metadata() or {})[CONTENT_KEY])
            config, vocabulary = description["adapter"], description["vocabulary_hash"]
        except (KeyError, TypeError, ValueError):
            raise UserError("not an adapter; give a file that train.py adapter= wrote") from None
        probe = weights.pop(_PROBE, torch.empty(0))
        known = _probe(model.state_dict())
        if vocabulary != content.vocabulary_hash or probe.shape != known.shape:
            raise UserError("it was trained for a model with another vocabulary; give that model")
        if not torch.allclose(probe, known.cpu(), rtol=0.02, atol=1e-3):  # of half precision too
            raise UserError("it was trained for other weights; give the model it began with")
        if not holds_sizes(config, weights):
            raise UserError("its weights do not fit its settings; use another copy")
        adapter: Adapter = build(config, Adapter)
        if kind not in (None, adapter.name):
            raise UserError(f"it holds an adapter of the kind {adapter.name}, not {kind}")
        model = copy.deepcopy(model)
        adapter.attach(model)
        fill_adapter(model, adapter, weights)
    sampling = description.get("sampling") or content.sampling
    kept = content.adapter if adapter.merges else config
    return model.eval(), replace(content, adapter=kept, sampling=sampling)


def fill_adapter(model: Transformer, adapter: Adapter, weights: Mapping[str, Tensor]) -> None:
    """Load an adapter's own weights into a model that it is attached to, and finish it."""
    try:
        unknown = model.load_state_dict(dict(weights), strict=False)
        complete = not unknown.unexpected_keys and not adapter.own(
            dict.fromkeys(unknown.missing_keys, torch.empty(0))
        )
    except RuntimeError:
        complete = False
    if not complete:
        raise UserError("its weights do not fit the model; give the model it began with")
    adapter.finish(model)


def _probe(weights: Mapping[str, Tensor]) -> Tensor:
    """Return some weights of a model, by which it is known again."""
    values = weights["embedding.weight"].flatten()
    return values[:: max(1, len(values) // _PROBE_SIZE)][:_PROBE_SIZE].float().clone()
