"""What measures read: the settings that all of them share, runs, and the corpora of runs.

A measure is a function `measure(inputs, out, **settings) -> list[TableRow]`. It returns the rows of
its table, and may write plots and other tables to the folder `out`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hydra.utils import get_class

from musicgen import load
from musicgen.checkpoints import check_targets
from musicgen.console import log, warn
from musicgen.data.corpora import SPLITS, ComposedCorpus, Corpus
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.generation.model import MusicModel
from musicgen.midi import Score
from musicgen.run_folders import OVERRIDES, stored_arguments
from musicgen.validation import check_choice, check_int, check_seed

SAME_PIECES = "compare runs with the same held-out pieces"

# Settings in which runs of a group may differ.
_SAME_RUN = {"seed", "logger", "run_name", "num_workers", "prepare_workers", "cache_dir"}

# Default folders, for models whose folders do not exist on this machine.
_COMPOSED, _CACHE = "data/composed", "data/cache"


@dataclass(frozen=True)
class Inputs:
    """The shared settings of `conf/evaluate.yaml`, where they are explained; `root` is `data.root`.

    Raises:
        ParameterError: a setting is invalid.
    """

    checkpoint: str
    split: str
    device: str
    seed: int
    generated: str | None = None
    references: str | Sequence[str] | None = None
    compare: Sequence[str] | None = None
    runs: Sequence[str] | None = None
    root: str | None = None
    max_pieces: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("compare", self.compare), ("runs", self.runs)):
            is_list = value is None or (isinstance(value, Sequence) and not isinstance(value, str))
            if not is_list or not all(isinstance(each, str) for each in value or ()):
                expected = 'expected a list of different folders: [A,B]; ["5"] if it is a number'
                raise ParameterError(name, value, expected)
        check_choice("split", self.split, SPLITS)
        check_int("max_pieces", self.max_pieces, none_means="all")
        check_seed("seed", self.seed)

    @property
    def checkpoints(self) -> list[str]:
        """The paths of `runs`, or the path of `checkpoint` without them."""
        return list(self.runs or [self.checkpoint])


class Run(NamedTuple):
    """A run with its corpus."""

    name: str
    group: str  # its name; runs of one group differ in nothing but their seeds
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
        Run(name, group, model, open_training_data(model, inputs.root), initial_model(model))
        for (group, name), model in zip(name_runs(models), models, strict=True)
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
    corpora: list[list[Any]] = []
    for model, config in zip(models, configs, strict=True):
        root = config["data"]["root"] if compare_roots else None
        corpora.append([{**config["data"], "root": root}])
        if same_tokens:
            names = "val_fraction", "test_fraction", "chords"
            settings = [config["loader"].get(name) for name in names]
            corpora[-1] += [model.content.vocabulary_hash, *settings]
        if corpora[-1] != corpora[0]:
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
    each = ", ".join(f"{name} {model.content.steps:,}" for (_, name), model in names)
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


def name_runs(models: Sequence[MusicModel]) -> list[tuple[str, str]]:
    """Return the group and the name of each run.

    A group is named by the arguments in which runs differ, such as `position=rope`, or
    `position=default` where the argument was not given. Its runs differ in `_SAME_RUN` only.
    Other runs with the same arguments, such as two checkpoints of a run, are named by their
    folders.
    """
    names = []
    labels = _argument_labels(models)
    for model, label, folder in zip(models, labels, short_paths(models), strict=True):
        group = [m.content for m, other in zip(models, labels, strict=True) if other == label]
        seeds = {content.config.get("seed") for content in group}
        same_identity = len({content.identity for content in group}) == 1
        if len(group) == 1:
            name = label or (folder if len(models) > 1 else "model")
            names.append((name, name))
        elif same_identity and None not in seeds and len(seeds) == len(group):
            name = label or "model"
            names.append((name, f"{name}, seed {model.content.config['seed']}"))
        else:
            names.append((folder, folder))
    return names


def _argument_labels(models: Sequence[MusicModel]) -> list[str]:
    """Return the arguments in which runs differ, per run, such as `position=rope`."""
    folders = [_run_folder(model.path) for model in models]
    if not all((folder / OVERRIDES).is_file() for folder in folders):  # published models have none
        return ["" for _ in models]
    arguments = []
    for folder in folders:
        pairs = [argument.partition("=") for argument in stored_arguments(folder)]
        arguments.append({key: value for key, _, value in pairs})
    different = [
        key
        for key in dict.fromkeys(key for each in arguments for key in each)
        if key.lstrip("+").rpartition(".")[2] not in _SAME_RUN
        and len({each.get(key) for each in arguments}) > 1
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
    while len(parts) > 1 and all(len(x) > 1 and x[0] == parts[0][0] for x in parts):
        parts = [each[1:] for each in parts]
    return [str(Path(*each)) for each in parts]


def open_training_data(model: MusicModel, root: str | Path | None = None) -> EncodedCorpus:
    """Return the corpus that a model was trained on, encoded by its tokenizer.

    The checkpoint may come from an untrusted source. Therefore only folders below the current one
    are created.

    Args:
        root: folder of the corpus, if it was moved.

    Raises:
        UserError: the folder is missing, or the checkpoint names no corpus of this package.
    """
    config = model.content.config
    if not all(isinstance(config.get(name), Mapping) for name in ("data", "loader")):
        raise UserError(
            f"{model.path}: the checkpoint does not say on which corpus it was trained; use "
            "another checkpoint"
        )
    settings, loader = dict(config["data"]), dict(config["loader"])
    check_targets(settings, (Corpus,))
    corpus_class: type[Corpus] = get_class(settings["_target_"])
    composed = issubclass(corpus_class, ComposedCorpus)
    if composed:
        settings.setdefault("root", _COMPOSED)  # published models have no paths
    if root is not None and not corpus_class.in_package:
        if not composed and not Path(root).expanduser().exists():
            raise ParameterError("data.root", root, "expected a folder that contains the corpus")
        settings["root"] = str(root)
    elif composed:
        _check_composed(Path(settings["root"]))
    elif "root" not in settings and not corpus_class.in_package:
        expected = "expected the folder of the corpus, which a published model does not contain"
        raise ParameterError("data.root", "null", expected)
    cache = Path(loader.get("cache_dir", _CACHE))
    if not _may_write(cache, f"{model.tokenizer.name}-*"):
        cache = Path(_CACHE)
    if "corpora" in settings:  # of a songbook
        settings["corpora"] = {
            name: _open_part(name, part, Path(settings["root"]))
            for name, part in settings["corpora"].items()
        }
    with parameter_of("data"):
        corpus = _build_corpus(settings)
    here = {"cache_dir": cache, "prepare_workers": None}
    return EncodedCorpus.of(corpus, model.tokenizer, loader | here)


def _open_part(name: str, settings: Mapping[str, Any], folder: Path) -> Corpus:
    """Return one of the corpora of the songbook in a folder, by its name there."""
    is_composed = issubclass(get_class(settings["_target_"]), ComposedCorpus)
    # A published model has no paths, but the address of the repository to clone.
    root = settings.get("source", "composed" if is_composed else name).rpartition("/")[2]
    settings = {"root": root, **settings}
    if is_composed:
        _check_composed(folder / settings["root"])
    return _build_corpus(settings)


def _build_corpus(settings: dict[str, Any]) -> Corpus:
    """Return a corpus from settings that may come from an untrusted source.

    Raises:
        ParameterError: `exclude` is a file.
    """
    if isinstance(settings.get("exclude"), str):
        expected = "expected names of pieces, as no file is read that a checkpoint names"
        raise ParameterError("exclude", settings["exclude"], expected)
    corpus_class: type[Corpus] = get_class(settings.pop("_target_"))
    return corpus_class(**settings)


def _check_composed(folder: Path) -> None:
    """Raise `UserError` if a corpus must not be composed in a folder."""
    if not _may_write(folder):
        raise UserError(
            f"the corpus of the model was composed in {folder}, which does not exist here; give a "
            "folder below the current one, in which it is composed again, such as data.root=data"
        )


def _may_write(folder: Path, content: str = "*") -> bool:
    """Return whether a folder is below the current one, or has files that match a pattern."""
    here, folder = Path.cwd().resolve(), folder.expanduser()
    return (here / folder).resolve().is_relative_to(here) or any(folder.glob(content))


def piece_readers(data: EncodedCorpus, pieces: Sequence[int]) -> dict[str, Callable[[], Score]]:
    """Return functions that read the scores of pieces, by name.

    Args:
        pieces: indices in the cache.
    """
    names, by_name = data.cache.names, {piece.name: piece for piece in data.corpus.pieces()}
    return {names[i]: partial(data.corpus.read_piece, by_name[names[i]]) for i in pieces}
