"""Files of an adapter alone: a few hundred kilobytes, to be used with the model they belong to."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from musicgen.adapters import Adapter
from musicgen.checkpoints.building import build, holds
from musicgen.checkpoints.content import CheckpointContent
from musicgen.checkpoints.folders import checksum, read_safetensors, write_safetensors
from musicgen.checkpoints.reading import read_checkpoint
from musicgen.errors import UserError, errors_name
from musicgen.models import Transformer

_PROBE, _PROBE_SIZE = "base.probe", 32
_ROUNDING = 0.004  # twice the largest relative error of bfloat16


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
    own = adapter.own(weights)
    probe = _probe(adapter.base(weights), adapter.changed(own))
    stored = {**own, _PROBE: probe}
    sha256 = checksum(stored, description)
    write_safetensors(stored, path, {**description, "sha256": sha256})


def apply_adapter(
    model: Transformer, content: CheckpointContent, path: Path, kind: str | None = None
) -> tuple[Transformer, CheckpointContent]:
    """Return a copy of a model with the adapter of a file, and the content of both.

    Args:
        kind: what the file must hold, `lora`, `prefix_state` or `copy`; None takes any.

    Raises:
        UserError: the file is no such adapter, or belongs to another model.
    """
    weights, description = read_safetensors(path)
    with errors_name(path):
        if not isinstance(description, dict) or "sha256" not in description:
            raise UserError("not an adapter; give a file that train.py adapter= wrote")
        if description.pop("sha256") != checksum(weights, description):
            raise UserError("a damaged adapter; use another copy")
        if not isinstance(description["sampling"] or {}, dict):
            raise UserError("its sampling is no table of settings; use another copy")
        config, vocabulary = description["adapter"], description["vocabulary_hash"]
        probe = weights.pop(_PROBE)
        if vocabulary != content.vocabulary_hash:
            raise UserError("it was trained for a model with another vocabulary; give that model")
        if not holds(config, [tensor.shape for tensor in weights.values()]):
            raise UserError("its weights do not fit its settings; use another copy")
        adapter: Adapter = build(config, Adapter)
        known = _probe(model.state_dict(), adapter.changed(weights)).cpu()
        # Half precision rounds them.
        if probe.shape != known.shape or (probe - known).norm() > _ROUNDING * known.norm():
            raise UserError(
                "it was trained for other weights, or is merged into these already; give the model "
                "it began with"
            )
        if kind not in (None, adapter.name):
            raise UserError(f"it holds an adapter of the kind {adapter.name}, not {kind}")
        model = copy.deepcopy(model)
        adapter.attach(model)
        own = adapter.own(model.state_dict())
        floats = all(tensor.is_floating_point() for tensor in weights.values())
        shapes, expected = ({n: t.shape for n, t in each.items()} for each in (weights, own))
        if shapes != expected or not floats:
            raise UserError("its weights do not fit the model; give the model it began with")
        model.load_state_dict(weights, strict=False)
        adapter.finish(model)
    sampling = {**(content.sampling or {}), **(description["sampling"] or {})} or None
    content = replace(content, adapter=config, sampling=sampling).merge(adapter)
    return model.eval(), content


def _probe(weights: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    """Return some of the named weights of a model and of its embedding, to know it again."""
    values = [weights[name].flatten() for name in ("embedding.weight", *names) if name in weights]
    some = [each[:: max(1, len(each) // _PROBE_SIZE)][:_PROBE_SIZE].float() for each in values]
    return torch.cat(some)
