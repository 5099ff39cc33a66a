"""`resume=RUN`: the arguments of the run, which its folder stores, before those that are new."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException

from musicgen.cli.arguments import override_key, quoted
from musicgen.cli.output import command
from musicgen.console import warn
from musicgen.errors import UserError
from musicgen.package_data import CONF
from musicgen.run_folders import LAST, OVERRIDES, find_run

# Settings that name a place to read from or to write to.
_PLACES = re.compile(
    r"(path|dir|folder|filename|root)$|^init$|^logger\.\w+\.(name|version)$|^data\.download$"
)


def resumed_arguments(arguments: Sequence[str]) -> list[str]:
    """Replace `resume=RUN` by the run's own arguments, its folder and its last checkpoint.

    The folder may be a stranger's: places and objects are those of this machine's defaults and of
    the command line.
    """
    given = {override_key(argument): argument.partition("=")[2] for argument in arguments}
    name = given.pop("resume", "").strip("'\"")
    if name in ("", "null"):
        return list(arguments)
    if "hparams_search" in given or {"-m", "--multirun"} & set(arguments):
        raise UserError(
            "resume continues one run: give the folder of one of the sweep's jobs, without -m"
        )
    if given.get("init", "null") not in ("", "null"):
        raise UserError("give either resume, for a run that goes on, or init, for a new one")
    folder = find_run(name)
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{path}: a link out of the run's folder; remove it")
    stored = [each for each in stored_overrides(folder) if each.key_or_group not in given]
    if (places := _refused(stored)) and "hydra.run.dir" not in given:  # Lightning's processes
        warn(f"not taken from {folder}, give it again if it matters: {', '.join(places)}")
    return [
        *(str(each.input_line) for each in stored if _is_plain(each)),
        *(argument for argument in arguments if override_key(argument) != "resume"),
        f"resume={quoted(str(folder / LAST))}",
        f"hydra.run.dir={quoted(str(folder))}",
    ]


def stored_overrides(folder: Path) -> list[Override]:
    """Read the arguments that a run's folder stores."""
    path = folder / OVERRIDES
    try:
        texts = yaml.safe_load(path.read_text(encoding="utf-8")) or []
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("not a list of texts")
        return OverridesParser.create().parse_overrides(texts)
    except (OSError, ValueError, yaml.YAMLError, OverrideParseException) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: the run's arguments cannot be read: {reason}") from None


def given_overrides() -> list[str]:
    """Return the job's overrides, the last one of each setting, that make a run of its own."""
    overrides = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    given = {override_key(override): override for override in overrides}
    return [override for key, override in given.items() if key not in ("resume", "hparams_search")]


def resume_command(folder: Path) -> str:
    """Return the command that continues a run, with what is not taken from its folder."""
    repeated = _refused(OverridesParser.create().parse_overrides(given_overrides()))
    return f"{command('train')} resume={shlex.join([str(folder), *repeated])}"


def _refused(overrides: Sequence[Override]) -> list[str]:
    """Return what is not taken from a run's folder, but what a resumed run does without."""
    refused = [each for each in overrides if not _is_plain(each)]
    unused = ("init", "paths.output_dir")
    return [str(each.input_line) for each in refused if each.key_or_group not in unused]


def _is_plain(override: Override) -> bool:
    """Return whether an override is a choice that conf/ has, or a value that is no place or object.

    Objects, which may be of any class, are dictionaries; resolvers may read anything.
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
        _PLACES.search(key)
        or any(name.startswith("_") for name in key.split("."))
        or any(isinstance(value, list | dict) or "${" in str(value) for value in values)
    )
