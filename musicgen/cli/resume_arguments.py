"""`resume=RUN`: the arguments of the run, which its folder stores, before those that are new."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf

from musicgen.cli.arguments import override_key, quoted
from musicgen.cli.output import command
from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.package_data import CONF
from musicgen.run_folders import LAST, OVERRIDES, find_run

# Settings that name a file or folder to write to.
_WRITES = re.compile(r"(path|dir|folder|filename)$|^logger\.\w+\.(name|version)$|^data\.download$")


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
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"{path}: a link out of the run's folder, where it would write; remove it"
            )
    # The run may have been moved since; and what its weights began from is no longer needed.
    begun = (folder / LAST).is_file()
    left_out = {key.lstrip("+~") for key in given} | {"paths.output_dir"}
    if begun:
        left_out.add("init")
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
    overrides = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    given = {override_key(override): override for override in overrides}
    return [override for key, override in given.items() if key not in ("resume", "hparams_search")]


def resume_command(folder: Path) -> str:
    """Return the command that continues a run, with what `stored_overrides` refuses."""
    parsed = OverridesParser.create().parse_overrides(given_overrides())
    repeated = [str(override.input_line) for override in parsed if not _is_plain(override)]
    return f"{command('train')} resume={shlex.join([str(folder), *repeated])}"


def stored_overrides(path: Path, left_out: Collection[str]) -> list[str]:
    """Read the overrides that `save_overrides` wrote, except those whose keys are left out.

    Raises:
        UserError: the file is missing, or holds more than plain settings, see `_is_plain`.
    """
    try:
        texts = yaml.safe_load(path.read_text(encoding="utf-8")) or []
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("not a list of texts")
        parsed = OverridesParser.create().parse_overrides(texts)
    except (OSError, ValueError, yaml.YAMLError, OverrideParseException) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path}: the run's arguments cannot be read ({reason}); copy runs with their hidden "
            "folders"
        ) from None
    kept = [override for override in parsed if override.key_or_group not in left_out]
    for override in kept:
        if not _is_plain(override):
            raise UserError(
                f"{path}: {override.input_line!r} is refused, as it may run code or write "
                "elsewhere; if you trust it, repeat it on the command line"
            )
    return [str(override.input_line) for override in kept]


def _is_plain(override: Override) -> bool:
    """Return whether an override, maybe of a stranger's run, is safe.

    It is a choice that conf/ has, or a value that is neither an object nor a resolver's, and that
    names no place to write to.
    """
    key = override.key_or_group
    if override.is_sweep_override() or override.package or key.startswith(("hydra", "resume")):
        return False
    value = override.value()
    if (CONF / key).is_dir():
        choice = (CONF / key / f"{value}.yaml").resolve()
        return value is None or (choice.is_file() and choice.is_relative_to(CONF.resolve()))
    values = value if isinstance(value, list) else [value]
    return not (
        _WRITES.search(key)
        or any(name.startswith("_") for name in key.split("."))
        or any(isinstance(value, list | dict) or "${" in str(value) for value in values)
    )
