"""The runs that a measure compares, each with the numbers of realizations that are asked.

Runs of one setting, with different seeds, form a group.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from musicgen import load
from musicgen.console import log
from musicgen.errors import UserError
from musicgen.evaluation.measure import Inputs
from musicgen.generation.model import MusicModel
from musicgen.position import SPE

# What a run's configuration holds beside its setting: its seeds, places, records and sampling.
_INCIDENTAL = {
    *("seed", "run_name", "tags", "train", "test", "resume", "logger", "paths", "sampling"),
    *("root", "cache_dir", "download", "num_workers", "prepare_workers"),
    *("dirpath", "path", "folder", "default_root_dir"),
    *("progress", "throughput", "resources", "memory", "learning_rate"),  # only report
    *("learned", "samples"),
    *("guard", "recompute", "compile"),  # do not change what is computed
}


@dataclass(frozen=True)
class Compared:
    """A model to compare with others.

    Attributes:
        checkpoint: its path.
        run: the same for runs that differ in their seeds alone.
        name: of the run alone.
        realizations, trained_realizations: SPE's R in evaluation and in training, or `exact`; None
            without.
    """

    model: MusicModel
    checkpoint: str
    run: str
    name: str
    realizations: int | str | None
    trained_realizations: int | str | None


def compared_models(inputs: Inputs, num_realizations: Any) -> list[Compared]:
    """Return the models to compare: each run with each number of realizations.

    Args:
        num_realizations: SPE's R: `trained`, a number, None (the exact limit), or a list of these.

    Raises:
        UserError: runs have other held-out pieces than the first, or one is given twice.
    """
    paths = checkpoints(inputs)
    numbers = num_realizations if isinstance(num_realizations, list) else [num_realizations]
    if len(set(paths)) < len(paths):
        raise UserError(f"runs: {max(paths, key=paths.count)} is given twice; give each run once")
    runs: list[MusicModel] = []
    for path in paths:
        runs.append(load(path).to(inputs.device))
        log(runs[-1].content.describe(runs[-1].path))
        if _held_out(runs[-1], inputs) != _held_out(runs[0], inputs):
            raise UserError(
                f"runs: {path} was trained with another vocabulary, corpus or split than "
                f"{paths[0]}; compare runs with the same held-out pieces"
            )
    names = name_runs(paths, [run.content.config for run in runs])
    compared = []
    for path, run, name in zip(paths, runs, names, strict=True):
        for number in numbers:
            model = run
            if number != "trained":
                model = run.with_realizations(number, seed=inputs.seed)
            compared.append(Compared(model, path, *name, _realizations(model), _realizations(run)))
    return compared


def checkpoints(inputs: Inputs) -> list[str]:
    """Return the paths of `runs`, or that of `checkpoint`."""
    return list(inputs.runs or [inputs.checkpoint])


def _realizations(model: MusicModel) -> int | str | None:
    position = model.model.position
    return (position.num_realizations or "exact") if isinstance(position, SPE) else None


def _held_out(model: MusicModel, inputs: Inputs) -> list[Any]:
    """Return what decides the tokens of the held-out pieces."""
    corpus = dict(model.content.config["data"])
    loader = model.content.config["loader"]
    if inputs.root is not None:
        corpus["root"] = None  # that of all
    settings = [loader.get(key) for key in ("val_fraction", "test_fraction", "chords")]
    return [model.content.vocabulary_hash, corpus, *settings]


def name_runs(paths: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Name each run's group and the run itself, by what differs in their configurations.

    Runs whose settings are equal are a group if their seeds differ. Runs that have the same setting
    and seed, such as two checkpoints of one run, are named by their paths and not grouped.
    """
    if len(paths) == 1:
        return [("model", "model")]  # without the imports that defaults need
    settings = [without_incidental(config) for config in configs]
    labels = _describe(settings)
    files = _shorten(paths)
    seeds = [str(config.get("seed")) for config in configs]
    names = []
    for label, file, seed in zip(labels, files, seeds, strict=True):
        others = [s for each, s in zip(labels, seeds, strict=True) if each == label]
        group = label or "model"
        if len(set(others)) < len(others):
            group = f"{label}, {file}" if label else file
            names.append((group, group))
        else:
            names.append((group, f"{group}, seed {seed}" if len(others) > 1 else group))
    return names


def without_incidental(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's configuration without its seeds, places, records and sampling.

    Arguments that a run of an older version does not name have their defaults.
    """
    kept = _kept(_with_defaults(config))
    assert isinstance(kept, dict)
    return kept


def _kept(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    kept = {k: _kept(v) for k, v in node.items() if k not in _INCIDENTAL}
    return {k: v for k, v in kept.items() if v is not None}  # a version before it has no such key


def _with_defaults(node: Any) -> Any:
    """Add the arguments of musicgen's classes that a run of an older version did not name."""
    if isinstance(node, list):
        return [_with_defaults(child) for child in node]
    if not isinstance(node, Mapping):
        return node
    module, _, name = str(node.get("_target_")).rpartition(".")
    found = None
    if module.split(".")[0] == "musicgen":
        with contextlib.suppress(ImportError):
            found = getattr(importlib.import_module(module), name, None)
    defaults = {
        parameter.name: list(default) if isinstance(default, tuple) else default
        for parameter in (inspect.signature(found).parameters.values() if callable(found) else ())
        if isinstance(default := parameter.default, bool | int | float | str | tuple)
    }
    return {**defaults, **{key: _with_defaults(child) for key, child in node.items()}}


def _describe(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return labels that tell settings apart: by the encoding, if that will do."""
    wanted = len({json.dumps(setting, sort_keys=True) for setting in settings})
    models = [setting.get("model", {}) for setting in settings]
    labels: list[str] = []
    for nodes in ([model.get("position", {}) for model in models], models, settings):
        labels = _differences(nodes)
        if len(set(labels)) == wanted:
            break
    return labels


def _differences(nodes: Sequence[Any], key: str = "") -> list[str]:
    """Say in what each node differs from the others: the name of its class, or its settings."""
    if all(node == nodes[0] for node in nodes):
        return [""] * len(nodes)
    if not all(isinstance(node, Mapping) for node in nodes):
        return [f"{key}={_class_name(node) or node}" for node in nodes]
    classes = [_class_name(node) for node in nodes]
    parts: list[list[str]] = [[] if len(set(classes)) == 1 else [name] for name in classes]
    for name in dict.fromkeys(classes):
        members = [i for i, each in enumerate(classes) if each == name]
        for child in dict.fromkeys(k for i in members for k in nodes[i] if k != "_target_"):
            found = _differences([nodes[i].get(child) for i in members], child)
            for i, part in zip(members, found, strict=True):
                parts[i].append(part)
    return [", ".join(dict.fromkeys(filter(None, part))) for part in parts]


def _class_name(node: Any) -> str:
    return str(node.get("_target_", "")).rpartition(".")[2] if isinstance(node, Mapping) else ""


def _shorten(paths: Sequence[str]) -> list[str]:
    """Leave out the folders at the beginning that all have, and `checkpoints`."""
    parts = [[p for p in Path(path).parts if p != "checkpoints"] for path in paths]
    while len(parts) > 1 and all(len(p) > 1 and p[0] == parts[0][0] for p in parts):
        parts = [p[1:] for p in parts]
    return [str(Path(*p)) for p in parts]
