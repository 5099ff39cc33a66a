"""A user's errors in one line, with the name that was meant; others keep their traceback."""

from __future__ import annotations

import difflib
import errno
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import (
    ConfigCompositionException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf

from musicgen.cli.arguments import override_key
from musicgen.console import log, warn
from musicgen.errors import ParameterError, UserError
from musicgen.package_data import CONF, choices

USER_ERROR, INTERRUPTED = 2, 130  # statuses at exit
_SWEEP = {"-m", "--multirun"}
_FULL_KEY = re.compile(r"^full_key: (\S+)$", re.M)  # in messages of Hydra
_UNKNOWN_KEY = re.compile(r"Could not override '(\S+)'")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line on a user's error (status 2) and on Ctrl-C (130)."""
    try:
        yield
    except KeyboardInterrupt:
        warn("interrupted")
        sys.exit(INTERRUPTED)
    except Exception as error:
        line = describe(error)
        if line is None:
            if isinstance(error, InstantiationException) and error.__cause__ is not None:
                raise error.__cause__ from None  # Hydra would hide its traceback
            raise
        log(f"error: {line}", "red")
        sys.exit(USER_ERROR)


def describe(error: BaseException) -> str | None:
    """Return a user's error in one line; None for other exceptions.

    A parameter that a class refuses is named by its key in the configuration.
    """
    section = ""
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        key = _FULL_KEY.search(str(error))
        section, error = f"{key[1]}." if key else "", error.__cause__
    if isinstance(error, ParameterError):
        return f"{section}{error}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; free some space, and run the same command again"
    if isinstance(error, re.error):  # a setting, such as data.group
        return f"{error.pattern!s}: not a regular expression ({error})"
    if isinstance(error, UserError | ConfigCompositionException | OverrideParseException):
        return " ".join(str(error).split())
    return None


def check_composition(config_name: str, arguments: Sequence[str]) -> None:
    """Compose a configuration before Hydra does, which prints its errors over several lines.

    Raises:
        UserError: a setting or a choice does not exist, or a value is missing.
        HydraException: the arguments are not in Hydra's grammar.
    """
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    if set(arguments) - {*overrides, *_SWEEP}:
        return  # other flags, such as --config-dir, which may lead elsewhere
    parsed = OverridesParser.create().parse_overrides(overrides)
    sweeps = [override for override in parsed if override.is_sweep_override()]
    tried = [str(override.input_line) for override in parsed if override not in sweeps]
    swept = [_values(override) for override in sweeps if override.is_discrete_sweep()]
    cfg = _compose(config_name, [*tried, *(values[0] for values in swept)])
    for values in swept:
        if (CONF / override_key(values[0])).is_dir():  # of a group's choices, each one
            for value in values[1:]:
                _compose(config_name, [*tried, value])
    if sweeps and not _SWEEP & set(arguments) and cfg.hydra.mode != RunMode.MULTIRUN:
        _compose(config_name, overrides)  # raises
    missing = [key for key, value in _settings(cfg).items() if value == MISSING]
    if missing:
        raise UserError(f"{missing[0]} is missing; give {missing[0]}=VALUE")
    str(cfg.hydra.run.dir)  # whose resolver may refuse


def _values(sweep: Override) -> list[str]:
    """Return a sweep as overrides of one value each."""
    return [f"{sweep.get_key_element()}={value}" for value in sweep.sweep_string_iterator()]


def _compose(config_name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a configuration; if a name does not exist, raise `UserError` with those that do."""
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            return hydra.compose(config_name, list(overrides), return_hydra_config=True)
    except MissingConfigException as error:
        group, _, name = str(error.missing_cfg_file).partition("/")
        if group == "hydra":
            raise UserError(
                f"{error.missing_cfg_file}: not installed; run: "
                "pip install 'musicgen-symbolic[optuna,slurm]'"
            ) from None
        raise UserError(f"{group}={name}: expected one of {', '.join(choices(group))}") from None
    except ConfigCompositionException as error:
        if unknown := _UNKNOWN_KEY.search(str(error)):
            others = [text for text in overrides if text.partition("=")[0] != unknown[1]]
            cfg = _compose(config_name, others)
            keys = [*_settings(cfg), *cfg.hydra.runtime.choices]
            if near := similar(unknown[1], keys):
                meant = " or ".join(near)
                raise UserError(f"{unknown[1]}: no such setting; did you mean {meant}?") from None
        raise


def similar(name: str, keys: Sequence[str]) -> list[str]:
    """Return the keys that end like `name`, else those that are spelt most alike."""
    ends = {key: key.rpartition(".")[2] for key in keys}
    end = name.rpartition(".")[2]
    if close := [end] if end in ends.values() else difflib.get_close_matches(name, keys, 1):
        return [key for key in keys if close[0] in (key, ends[key])]
    close = difflib.get_close_matches(end, ends.values(), 1)
    return [key for key in keys if ends[key] in close]


def _settings(cfg: DictConfig) -> dict[str, Any]:
    """Return the values of a configuration by their keys on the command line, but Hydra's."""
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    del plain["hydra"]
    return dict(_leaves(plain, ""))


def _leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
