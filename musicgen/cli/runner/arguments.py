"""Command-line arguments for Hydra: quoted paths, and `resume=` as the arguments of its run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from musicgen.cli.resume.stored_overrides import override_key, read_overrides
from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.package_data import CONF
from musicgen.run_folders import LAST, OVERRIDES, find_run

# Hydra's grammar rejects commas, brackets and ampersands, which file names and regular
# expressions contain: these values are quoted.
LITERAL_KEYS = frozenset(
    {
        *("prompt", "checkpoint", "out", "generated", "references"),
        *("init", "resume", "lora", "prefix_state"),
        *("data.root", "data.group", "data.cache_dir", "loader.cache_dir"),
        *("paths.data_dir", "paths.output_dir"),
    }
)


def prepare_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments for Hydra: flags first, paths quoted.

    `resume=` is replaced by the run's own overrides and folder. A run that was stopped before its
    first checkpoint starts again.
    """
    arguments = sorted(arguments, key=is_override)  # Hydra's parser wants flags first
    _check_flags(arguments)
    resume, rest = None, []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        group = argument.removeprefix("~").removesuffix("=null")
        if key == "resume" and equals:
            resume = None if value in ("", "null") else value
        elif key in LITERAL_KEYS and equals:
            rest.append(f"{key}={quote(value)}")
        elif group != argument and (CONF / group / "none.yaml").is_file():
            rest.append(f"{group}=none")
        else:
            rest.append(argument)
    if resume is None:
        return rest
    if {"-m", "--multirun"} & set(rest) or any(a.startswith("hparams_search=") for a in rest):
        raise UserError(
            "resume continues one run; a sweep goes on by its own command with "
            "hydra.sweep.dir=FOLDER"
        )
    folder = find_run(resume)
    given = {override_key(argument) for argument in rest if argument not in ("init=", "init=null")}
    if "init" in given:
        raise UserError(
            "give either resume, which continues a run, or init, which begins a new one from the "
            "weights of another"
        )
    overrides = folder / OVERRIDES
    if not overrides.is_file():
        raise UserError(
            f"resume={resume}: {overrides}, which stores the run's arguments, is missing; copy "
            "runs with their hidden folders"
        )
    last = folder / LAST
    # The run may have been moved since; and what its weights began from is no longer needed.
    dropped = given | {"paths.output_dir"} | ({"init"} if last.is_file() else set())
    resumed = [f"resume={quote(str(last))}"] if last.is_file() else []
    return [
        *read_overrides(overrides, dropped),
        *rest,
        *resumed,
        f"hydra.run.dir={quote(str(folder))}",
    ]


def is_override(argument: str) -> bool:
    """Return whether an argument is an override, not a flag of Hydra or its value."""
    return argument.startswith("~") or ("=" in argument and not argument.startswith("-"))


def _check_flags(arguments: Sequence[str]) -> None:
    """Refuse unknown flags in one line; Hydra's parser would print its usage."""
    _, unknown = get_args_parser().parse_known_args(list(arguments))
    if not unknown or not unknown[0].startswith("-"):
        return
    name, _, value = unknown[0].lstrip("-").partition("=")
    following = arguments[arguments.index(unknown[0]) + 1 :]
    if not value:
        value = following[0] if following and not is_override(following[0]) else "VALUE"
    raise UserError(f"{unknown[0]}: settings have no dashes; give {name}={value}")


def save_overrides(folder: Path) -> None:
    """Write the command line's overrides for `resume=`."""
    if HydraConfig.initialized():
        write_text(folder / OVERRIDES, OmegaConf.to_yaml(given_overrides()))


def given_overrides() -> list[str]:
    """Return the job's overrides, the last one of each setting, that make a run of its own."""
    given = {override_key(override): override for override in HydraConfig.get().overrides.task}
    return [override for key, override in given.items() if key not in ("resume", "hparams_search")]


def quote(value: str) -> str:
    """Quote a value for Hydra's grammar, unless it is null or quoted already."""
    if value in ("", "null") or (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
        return value
    # Inside quotes, only backslashes before a quote and interpolations need escaping.
    head = value.rstrip("\\")
    value = head.replace("'", "\\'") + "\\\\" * (len(value) - len(head))
    return "'" + value.replace("${", "\\${") + "'"
