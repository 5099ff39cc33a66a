"""The runs that a measure compares, and names for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from musicgen import load
from musicgen.console import log, warn
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.training_data import open_training_data
from musicgen.generation.model import MusicModel
from musicgen.run_folders import OVERRIDES, stored_arguments

SAME_PIECES = "compare runs with the same held-out pieces"


class RunName(NamedTuple):
    """The name of a run and the name of its group. Runs of a group differ only in their seeds."""

    group: str
    name: str


class Run(NamedTuple):
    """A run with its corpus."""

    name: str
    model: MusicModel
    data: EncodedCorpus
    initial: MusicModel | None  # the model that training started from, if it is known

    def indices(self, names: Sequence[str]) -> list[int]:
        """Return the indices of pieces in the cache of the corpus, by their names."""
        return [self.data.cache.names.index(name) for name in names]


def open_runs(inputs: Inputs) -> list[Run]:
    """Return the runs to compare, with their corpora and the models that they started from."""
    models = load_runs(inputs, same_tokens=False)
    return [
        Run(each.name, model, open_training_data(model, inputs.root), initial_model(model))
        for each, model in zip(name_runs(models), models, strict=True)
    ]


def load_runs(inputs: Inputs, *, same_tokens: bool = True) -> list[MusicModel]:
    """Return the models of the runs to compare.

    Args:
        same_tokens: require the same vocabulary, and the same pieces in each split.

    Raises:
        UserError: a run has another corpus than the first one, or a run is given twice.
    """
    models: list[MusicModel] = []
    for path in inputs.checkpoints:
        model = load(path).to(inputs.device)
        log(model.content.describe(model.path))
        if model.path.resolve() in [other.path.resolve() for other in models]:
            raise UserError(f"runs: {path} is given twice; give each run once")
        models.append(model)
    configs = [model.content.config for model in models]
    # Published models have no root.
    compare_roots = inputs.root is None and all("root" in config["data"] for config in configs)
    first_corpus: list[Any] | None = None
    for model, config in zip(models, configs, strict=True):
        root = config["data"]["root"] if compare_roots else None
        corpus: list[Any] = [{**config["data"], "root": root}]
        if same_tokens:
            corpus.append(model.content.vocabulary_hash)
            for name in ("val_fraction", "test_fraction", "chords"):
                corpus.append(config["loader"].get(name))
        first_corpus = first_corpus or corpus
        if corpus != first_corpus:
            raise UserError(
                f"runs: {model.path} was trained with another vocabulary, corpus or split than "
                f"{models[0].path}; {SAME_PIECES}"
            )
    for notice in unequal_steps(models):
        warn(notice)
    return models


def unequal_steps(models: Sequence[MusicModel]) -> list[str]:
    """Return a notice if `minutes=` ended runs after different numbers of steps, or nothing."""
    steps = {model.content.steps for model in models}
    if len(steps) == 1 or not any(model.content.config.get("minutes") for model in models):
        return []
    names = zip(name_runs(models), models, strict=True)
    each = ", ".join(f"{name.name} {model.content.steps:,}" for name, model in names)
    return [
        f"minutes= ends a run by the clock, so the compared models have taken different numbers of "
        f"steps: {each}; for equal steps, train them with minutes=null trainer.max_steps=N"
    ]


def initial_model(model: MusicModel) -> MusicModel | None:
    """Return the model that a run started from; None if it is unknown or has other tokens."""
    init = model.content.config.get("init")
    if init is None:
        return None
    try:
        initial = load(init)
        if initial.content.vocabulary_hash != model.content.vocabulary_hash:
            raise UserError(f"{init} has another vocabulary")
    except UserError as error:
        warn(f"no comparison with the initial weights: {error}")
        return None
    return initial.to(next(model.model.parameters()).device.type)


def name_runs(models: Sequence[MusicModel]) -> list[RunName]:
    """Return the names of the runs and of their groups.

    A group is named by the arguments in which runs differ, such as `position=rope`, or
    `position=default` where the argument was not given. Its runs differ in seed and logger only.
    Other runs with the same arguments, such as two checkpoints of a run, are named by their
    folders.
    """
    names = []
    labels = _argument_labels(models)
    for model, label, folder in zip(models, labels, short_paths(models), strict=True):
        group = [m.content for m, other in zip(models, labels, strict=True) if other == label]
        if len(group) == 1:
            name = label or (folder if len(models) > 1 else "model")
            names.append(RunName(name, name))
            continue
        seeds = {content.config.get("seed") for content in group}
        same_identity = len({content.identity for content in group}) == 1
        if same_identity and None not in seeds and len(seeds) == len(group):
            name = label or "model"
            names.append(RunName(name, f"{name}, seed {model.content.config['seed']}"))
        else:
            names.append(RunName(folder, folder))
    return names


def _argument_labels(models: Sequence[MusicModel]) -> list[str]:
    """Return for each run the arguments in which runs differ, such as `position=rope`."""
    folders = [_run_folder(model.path) for model in models]
    if not all((folder / OVERRIDES).is_file() for folder in folders):  # published models have none
        return ["" for _ in models]
    arguments = []
    for folder in folders:
        pairs = [argument.partition("=") for argument in stored_arguments(folder)]
        arguments.append({key: value for key, _, value in pairs})
    keys = dict.fromkeys(key for each in arguments for key in each)
    different = [
        key
        for key in keys
        if key not in ("seed", "logger") and len({each.get(key) for each in arguments}) > 1
    ]
    return [
        ", ".join(f"{key}={each.get(key, 'default')}" for key in different) for each in arguments
    ]


def _run_folder(path: Path) -> Path:
    """Return the folder of the run of a checkpoint; other paths are unchanged."""
    return path.parent.parent if path.parent.name == "checkpoints" else path


def short_paths(models: Sequence[MusicModel]) -> list[str]:
    """Return the folders of runs without the parents that all of them share.

    If two runs are checkpoints in one folder, the paths of the files are returned.
    """
    paths = [_run_folder(model.path) for model in models]
    if len({*paths}) < len(models):
        paths = [model.path for model in models]
    parts = [[part for part in path.parts if part != "checkpoints"] for path in paths]
    while len(parts) > 1 and _share_first(parts):
        parts = [each[1:] for each in parts]
    return [str(Path(*each)) for each in parts]


def _share_first(parts: Sequence[Sequence[str]]) -> bool:
    """Return whether all paths begin with the same folder and have more parts."""
    return all(len(each) > 1 for each in parts) and len({each[0] for each in parts}) == 1
