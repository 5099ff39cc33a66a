"""A user's errors in one line; others keep their traceback."""

from __future__ import annotations

import difflib
import errno
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import hydra
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue

from musicgen.cli.arguments import override_key
from musicgen.console import log, warn
from musicgen.errors import ParameterError, UserError
from musicgen.package_data import CONF, choices

USER_ERROR, INTERRUPTED = 2, 130  # statuses at exit
_FULL_KEY = re.compile(r"^ *full_key: (\S+)$", re.M)  # in messages of Hydra and OmegaConf
_UNKNOWN_KEY = re.compile(r"Could not override '(\S+)'")


@contextmanager
def one_line_errors(config_name: str) -> Iterator[None]:
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
        if unknown := _UNKNOWN_KEY.search(line):
            near = similar(unknown[1], config_name, sys.argv[1:])
            line = f"{unknown[1]}: no such setting; did you mean {near}?" if near else line
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
    text = " ".join(str(error).split())
    if isinstance(error, ParameterError):
        return f"{section}{error}"
    if isinstance(error, MissingMandatoryValue) and (key := _FULL_KEY.search(str(error))):
        return f"{key[1]} is missing; give {key[1]}=VALUE"
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).partition("/")
        if group == "hydra":
            return (
                f"hydra/{name}: not installed; run: pip install 'musicgen-symbolic[optuna,slurm]'"
            )
        return f"{group}={name}: expected one of {', '.join(choices(group))}"
    if isinstance(error, ModuleNotFoundError) and section.startswith("logger."):
        name = section.split(".")[1]
        return f"logger={name}: not installed; run: pip install {name}, or leave logger out"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; free some space, and run the same command again"
    if isinstance(error, re.error):  # a setting, such as data.group
        return f"{error.pattern!s}: not a regular expression ({error})"
    is_users = isinstance(error, UserError | HydraException)
    return text if is_users and not isinstance(error, InstantiationException) else None


def similar(name: str, config_name: str, arguments: list[str]) -> str:
    """Return the setting or group that is spelt most like `name`, else those that end like it."""
    overrides = [text for text in arguments if override_key(text) not in ("", name)]
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = hydra.compose(config_name, overrides, return_hydra_config=True)
    except HydraException:
        return ""
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    keys = [*_leaves(plain, ""), *cfg.hydra.runtime.choices]
    keys = [key for key in keys if not key.startswith("hydra") and "._" not in key]
    ends = {key: key.rpartition(".")[2] for key in keys}
    if close := difflib.get_close_matches(name, ends, 1):
        return close[0]
    close = difflib.get_close_matches(name.rpartition(".")[2], ends.values(), 1)
    return " or ".join(key for key in ends if ends[key] in close)


def _leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield the keys of all values of a configuration."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
