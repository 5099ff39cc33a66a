"""`resume=RUN`: the arguments of the run, which its folder stores, before those that are new."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import OmegaConf

from musicgen.cli.arguments import override_key, quoted
from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.package_data import CONF
from musicgen.run_folders import LAST, OVERRIDES, find_run

# Where classes to train with are defined, beside those that conf/ names.
_LIBRARIES = (
    *("torch.optim", "torch.optim.lr_scheduler"),
    *("pytorch_lightning.callbacks", "pytorch_lightning.loggers"),
)


def resumed_arguments(arguments: Sequence[str]) -> list[str]:
    """Replace `resume=RUN` by the run's own arguments, its folder and its last checkpoint.

    A run that was stopped before its first checkpoint starts again.
    """
    given = {override_key(argument): argument.partition("=")[2] for argument in arguments}
    name = given.pop("resume", "").strip("'\"")
    if name in ("", "null"):
        return list(arguments)
    if {"-m", "--multirun", "hparams_search"} & given.keys():
        raise UserError(
            "resume continues one run; a sweep goes on by its own command with "
            "hydra.sweep.dir=FOLDER"
        )
    if given.get("init", "null") not in ("", "null"):
        raise UserError(
            "give either resume, which continues a run, or init, which begins a new one from the "
            "weights of another"
        )
    folder = find_run(name)
    # The run may have been moved since; and what its weights began from is no longer needed.
    begun = (folder / LAST).is_file()
    left_out = {*given, "paths.output_dir", *(["init"] if begun else [])}
    return [
        *stored_overrides(folder / OVERRIDES, left_out),
        *(argument for argument in arguments if override_key(argument) != "resume"),
        *([f"resume={quoted(str(folder / LAST))}"] if begun else []),
        f"hydra.run.dir={quoted(str(folder))}",
    ]


def save_overrides(folder: Path) -> None:
    """Write the command line's overrides for `resume=`."""
    if HydraConfig.initialized():
        write_text(folder / OVERRIDES, OmegaConf.to_yaml(given_overrides()))


def given_overrides() -> list[str]:
    """Return the job's overrides, the last one of each setting, that make a run of its own."""
    given = {override_key(override): override for override in HydraConfig.get().overrides.task}
    return [override for key, override in given.items() if key not in ("resume", "hparams_search")]


def stored_overrides(path: Path, left_out: Collection[str]) -> list[str]:
    """Read the overrides that `save_overrides` wrote, except those whose keys are left out.

    They run no code but musicgen's: they call no resolver, set nothing of Hydra's, and name only
    classes that conf/ names too, or optimizers, schedules, callbacks and loggers.

    Raises:
        UserError: the file is missing, or holds an override that is refused.
    """
    try:
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(
            f"{path}: the run's arguments cannot be read ({error}); copy runs with their hidden "
            "folders"
        ) from None
    overrides = [text for text in map(str, stored or []) if override_key(text) not in left_out]
    for text in overrides:
        key, _, value = text.lstrip("+~").partition("=")
        elsewhere = (CONF / key).is_dir() and ".." in value
        if elsewhere or "${" in text or key.startswith(("hydra", "resume", "-")):
            raise _refusal(path, text)
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            config = OmegaConf.to_container(hydra.compose("train", overrides), resolve=False)
    except HydraException as error:
        raise _refusal(path, " ".join(str(error).split())) from None
    for target in _targets(config):
        if not _is_known(target):
            raise _refusal(path, target)
    return overrides


def _refusal(path: Path, what: str) -> UserError:
    return UserError(
        f"{path}: {what!r} is refused, as it may run code that is not musicgen's, or is not known "
        "to this version; if you trust it, repeat it on the command line"
    )


def _targets(config: Any) -> Iterator[str]:
    """Yield each `_target_` of a configuration."""
    if isinstance(config, Mapping):
        if "_target_" in config:
            yield str(config["_target_"])
        config = list(config.values())
    if isinstance(config, list):
        for value in config:
            yield from _targets(value)


def _is_known(target: str) -> bool:
    module, _, name = target.rpartition(".")
    if module in _LIBRARIES and name[:1].isupper():
        return True
    lines = (line for path in CONF.rglob("*.yaml") for line in path.read_text("utf-8").splitlines())
    return f"_target_: {target}" in {line.partition(" #")[0].strip() for line in lines}
