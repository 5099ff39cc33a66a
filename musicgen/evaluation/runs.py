"""The runs that a measure compares, each with the numbers of realizations that are asked.

Runs of one setting, with different seeds, form a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from musicgen import load
from musicgen.checkpoints import CheckpointContent, decisive_settings
from musicgen.checkpoints.content import class_name
from musicgen.console import log
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.generation.model import MusicModel
from musicgen.position import SPE

SAME_PIECES = "compare runs with the same held-out pieces"


@dataclass(frozen=True)
class Compared:
    """A model to compare with others."""

    model: MusicModel
    checkpoint: str  # its path
    run: str  # the same for runs that differ in their seeds alone
    name: str  # of the run alone
    realizations: int | str | None  # SPE's R in evaluation, or `exact`; None without


def load_runs(inputs: Inputs, *, same_tokens: bool = True) -> list[MusicModel]:
    """Return the models of the runs to compare.

    Args:
        same_tokens: whether they must have one vocabulary and the same pieces in each split.

    Raises:
        UserError: runs have other corpora than the first, or one is given twice.
    """
    runs: list[MusicModel] = []
    for path in inputs.checkpoints:
        runs.append(load(path).to(inputs.device))
        log(runs[-1].content.describe(runs[-1].path))
        if runs[-1].path.resolve() in [run.path.resolve() for run in runs[:-1]]:
            raise UserError(f"runs: {path} is given twice; give each run once")
    corpora = [dict(run.content.config["data"]) for run in runs]
    if inputs.root is not None or not all("root" in x for x in corpora):  # as in published models
        corpora = [{**corpus, "root": None} for corpus in corpora]
    for path, run, corpus in zip(inputs.checkpoints, runs, corpora, strict=True):
        if corpus != corpora[0] or (same_tokens and _tokens(run) != _tokens(runs[0])):
            raise UserError(
                f"runs: {path} was trained with another vocabulary, corpus or split than "
                f"{inputs.checkpoints[0]}; {SAME_PIECES}"
            )
    return runs


def _tokens(run: MusicModel) -> list[Any]:
    """Return what decides the tokens of the held-out pieces, beside the corpus."""
    loader = run.content.config["loader"]
    settings = [loader.get(key) for key in ("val_fraction", "test_fraction", "chords")]
    return [run.content.vocabulary_hash, *settings]


def compared_models(inputs: Inputs, num_realizations: Any) -> list[Compared]:
    """Return the models to compare: each of `load_runs` with each number of realizations of SPE."""
    paths, runs = inputs.checkpoints, load_runs(inputs)
    numbers = num_realizations if isinstance(num_realizations, list) else [num_realizations]
    names = name_runs(paths, [run.content for run in runs])
    compared = []
    for path, run, name in zip(paths, runs, names, strict=True):
        for number in numbers:
            model = run
            if number != "trained":
                model = run.with_realizations(number, seed=inputs.seed)
            compared.append(Compared(model, path, *name, _realizations(model)))
    return compared


def _realizations(model: MusicModel) -> int | str | None:
    position = model.model.position
    return (position.num_realizations or "exact") if isinstance(position, SPE) else None


def name_runs(paths: Sequence[str], contents: Sequence[CheckpointContent]) -> list[tuple[str, str]]:
    """Name each run's group, by what differs in the settings of the groups, and the run itself.

    Runs of one identity are a group if their seeds differ. Those of one seed too, such as two
    checkpoints of one run, are named by their paths and not grouped.
    """
    identities = [content.identity or path for path, content in zip(paths, contents, strict=True)]
    seeds = [content.config.get("seed") for content in contents]
    # Published models have no more of their configuration than generation reads.
    configs = [{"model": content.model, **content.config} for content in contents]
    labels = _describe(dict(zip(identities, configs, strict=True)))
    names = []
    for identity, file, seed in zip(identities, shorten(paths), seeds, strict=True):
        members = [s for each, s in zip(identities, seeds, strict=True) if each == identity]
        group = labels[identity] or "model"
        if len(set(members)) < len(members):
            group = f"{labels[identity]}, {file}" if labels[identity] else file
            names.append((group, group))
        else:
            names.append((group, f"{group}, seed {seed}" if len(members) > 1 else group))
    return names


def _describe(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return labels that tell groups apart: by the encoding, if that will do."""
    settings = [decisive_settings(config) for config in groups.values()]
    models = [config["model"] for config in settings]
    labels: list[str] = []
    for nodes in ([model.get("position") for model in models], models, settings):
        labels = _differences(nodes)
        if len(set(labels)) == len(groups):
            break
    else:  # runs of another version of musicgen
        labels = [
            f"{label} {identity}".strip() for label, identity in zip(labels, groups, strict=True)
        ]
    return dict(zip(groups, labels, strict=True))


def _differences(nodes: Sequence[Any], key: str = "") -> list[str]:
    """Say in what each node differs from the others: the name of its class, or its settings."""
    if all(node == nodes[0] for node in nodes):
        return [""] * len(nodes)
    if not all(isinstance(node, Mapping) for node in nodes):
        return [f"{key}={class_name(node) or node}" for node in nodes]
    classes = [class_name(node) for node in nodes]
    parts: list[list[str]] = [[] if len(set(classes)) == 1 else [name] for name in classes]
    for name in dict.fromkeys(classes):
        members = [i for i, each in enumerate(classes) if each == name]
        for child in dict.fromkeys(k for i in members for k in nodes[i] if k != "_target_"):
            found = _differences([nodes[i].get(child) for i in members], child)
            for i, part in zip(members, found, strict=True):
                parts[i].append(part)
    return [", ".join(dict.fromkeys(filter(None, part))) for part in parts]


def shorten(paths: Sequence[str]) -> list[str]:
    """Leave out the folders at the beginning that all have, and `checkpoints`."""
    parts = [[p for p in Path(path).parts if p != "checkpoints"] for path in paths]
    while len(parts) > 1 and all(len(p) > 1 and p[0] == parts[0][0] for p in parts):
        parts = [p[1:] for p in parts]
    return [str(Path(*p)) for p in parts]
