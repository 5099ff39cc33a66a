"""Command lines of train.py, generate.py and evaluate.py: the runs that each of them makes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from musicgen.checkpoints import run_identity
from musicgen.cli.arguments import is_override, quoted_paths
from musicgen.package_data import CONF


class Job(NamedTuple):
    """One run of a script."""

    script: str  # train, generate or evaluate
    overrides: tuple[str, ...]

    @property
    def seed(self) -> int | None:
        """The seed that the command gives, if it gives one."""
        seeds = [x.removeprefix("seed=") for x in self.overrides if x.startswith("seed=")]
        return int(seeds[-1]) if seeds else None

    @property
    def treatment(self) -> tuple[str, ...]:
        """The overrides but the seed: the same for the runs of a group."""
        return tuple(x for x in self.overrides if not x.startswith("seed="))

    @property
    def identity(self) -> str:
        """The identity of the training run that this makes."""
        return _identity(self.script, self.treatment)

    def compose(self) -> DictConfig:
        return _compose(self.script, self.overrides).copy()


def jobs(command: str) -> Iterator[Job]:
    """Yield the runs of a line `python SCRIPT.py [-m] OVERRIDES [&& …]`, each of a sweep's."""
    for part in command.split("&&"):
        interpreter, script, *arguments = shlex.split(part, comments=True)
        if interpreter != "python" or not script.endswith(".py"):
            raise ValueError(f"not a command of musicgen: {part}")
        yield from runs_of(script.removesuffix(".py"), arguments)


def runs_of(script: str, arguments: Sequence[str]) -> Iterator[Job]:
    """Yield the runs of a script: one, or with -m each of a sweep's."""
    given = [x for x in quoted_paths(arguments) if is_override(x)]
    overrides = OverridesParser.create().parse_overrides(given)
    choices = [
        list(x.sweep_string_iterator()) if x.is_sweep_override() else None for x in overrides
    ]
    if any(choices) and not {"-m", "--multirun"} & {*arguments}:
        raise ValueError(f"a sweep without -m: {' '.join(arguments)}")
    texts = [
        [text] if found is None else [f"{x.key_or_group}={value}" for value in found]
        for text, x, found in zip(given, overrides, choices, strict=True)
    ]
    for combination in product(*texts):
        yield Job(script, combination)


def treatments(command: str) -> list[list[Job]]:
    """Return the training runs of a command, those that differ in their seeds alone together."""
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs(command):
        if job.script == "train":
            groups.setdefault(job.treatment, []).append(job)
    return list(groups.values())


@cache
def _compose(script: str, overrides: Sequence[str]) -> Any:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(script, list(overrides))


@cache
def _identity(script: str, treatment: Sequence[str]) -> str:
    config = _compose(script, treatment).copy()
    config.paths.output_dir = "."  # which a run has, and does not count
    return run_identity(OmegaConf.to_container(config, resolve=True))
