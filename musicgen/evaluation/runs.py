"""The runs that a measure compares, and their names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from musicgen import load
from musicgen.console import log
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.generation.model import MusicModel
from musicgen.run_folders import OVERRIDES

SAME_PIECES = "compare runs with the same held-out pieces"


def load_runs(inputs: Inputs, *, same_tokens: bool = True) -> list[MusicModel]:
    """Return the models of the runs to compare.

    Args:
        same_tokens: whether they must have one vocabulary and the same pieces in each split.

    Raises:
        UserError: runs have other corpora than the first, or one is given twice.
    """
    runs: list[MusicModel] = []
    for path in inputs.checkpoints:
        run = load(path).to(inputs.device)
        log(run.content.describe(run.path))
        if run.path.resolve() in [each.path.resolve() for each in runs]:
            raise UserError(f"runs: {path} is given twice; give each run once")
        runs.append(run)
    configs = [run.content.config for run in runs]
    # Published models have no root.
    moved = inputs.root is not None or not all("root" in config["data"] for config in configs)
    kinds: list[list[Any]] = []
    for run, config in zip(runs, configs, strict=True):
        kinds.append([{**config["data"], "root": None if moved else config["data"]["root"]}])
        if same_tokens:
            loader = (config["loader"].get(x) for x in ("val_fraction", "test_fraction", "chords"))
            kinds[-1] += [run.content.vocabulary_hash, *loader]
        if kinds[-1] != kinds[0]:
            raise UserError(
                f"runs: {run.path} was trained with another vocabulary, corpus or split than "
                f"{runs[0].path}; {SAME_PIECES}"
            )
    return runs


def name_runs(runs: Sequence[MusicModel]) -> list[tuple[str, str]]:
    """Return the group of each run, and its own name.

    A group is named by the arguments that not all runs were trained with, such as `position=rope`,
    or `position=default` where it was not given; its runs differ in seed and logger alone. Other
    runs with the same arguments, such as two checkpoints of one run, are named by their folders.
    """
    files = [_folder(run.path) / OVERRIDES for run in runs]
    given: list[dict[str, str]] = [{} for _ in runs]
    if all(file.is_file() for file in files):  # published models have none
        given = [dict(str(x).partition("=")[::2] for x in OmegaConf.load(file)) for file in files]
    keys = dict.fromkeys(key for each in given for key in each if key not in ("seed", "logger"))
    differ = [key for key in keys if len({each.get(key) for each in given}) > 1]
    labels = [", ".join(f"{x}={each.get(x, 'default')}" for x in differ) for each in given]
    names = []
    for run, label, folder in zip(runs, labels, short_paths(runs), strict=True):
        members = [x.content for x, other in zip(runs, labels, strict=True) if other == label]
        seeds = {content.config.get("seed") for content in members}
        alike = None not in seeds and len({content.identity for content in members}) == 1
        if len(members) == 1:
            names.append((label or (folder if len(runs) > 1 else "model"),) * 2)
        elif alike and len(seeds) == len(members):
            group = label or "model"
            names.append((group, f"{group}, seed {run.content.config['seed']}"))
        else:
            names.append((folder, folder))
    return names


def _folder(path: Path) -> Path:
    """Return the folder of a run, given a checkpoint in it; other paths as they are."""
    return path.parent.parent if path.parent.name == "checkpoints" else path


def short_paths(runs: Sequence[MusicModel]) -> list[str]:
    """Return the runs' folders, or their files if two are of one folder, as far as they differ."""
    folders = [_folder(run.path) for run in runs]
    paths = folders if len({*folders}) == len(runs) else [run.path for run in runs]
    parts = [[part for part in path.parts if part != "checkpoints"] for path in paths]
    while len(parts) > 1 and all(len(p) > 1 and p[0] == parts[0][0] for p in parts):
        parts = [p[1:] for p in parts]
    return [str(Path(*p)) for p in parts]
