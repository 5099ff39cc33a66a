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

from musicgen.console import log, warn
from musicgen.errors import ParameterError, UserError
from musicgen.package_data import CONF, choices

USER_ERROR, INTERRUPTED = 2, 130  # statuses at exit
_FULL_KEY = re.compile(r"^ *full_key: (\S+)$", re.M)  # in messages of Hydra and OmegaConf


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
        if unknown := re.match(r"Could not override '(\S+)'", line):
            near = difflib.get_close_matches(unknown[1], _settings(config_name), 1)
            if near and near[0] != unknown[1]:  # else it is a setting of another choice
                line = f"{unknown[1]}: no such setting; did you mean {near[0]}?"
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
        return f"{section}{text}"
    if isinstance(error, MissingMandatoryValue) and (key := _FULL_KEY.search(str(error))):
        return f"{key[1]} is missing; give {key[1]}=VALUE"
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).partition("/")
        if group == "hydra":
            extras = "pip install 'musicgen-symbolic[optuna,slurm]'"
            return f"hydra/{name}: not installed; run: {extras}"
        return f"{group}={name}: expected one of {', '.join(choices(group))}"
    if isinstance(error, ModuleNotFoundError) and section.startswith("logger."):
        return f"{section[:-1]}: {text}; install it, or leave logger out"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.filename or 'disk'}: {error.strerror}; free some space, and run it again"
    if isinstance(error, re.error):  # a setting, such as data.group
        return f"{error.pattern!s}: not a regular expression ({error})"
    is_users = isinstance(error, UserError | HydraException)
    return text if is_users and not isinstance(error, InstantiationException) else None


def _settings(config_name: str) -> list[str]:
    """Return the settings and groups of a command."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg: Any = hydra.compose(config_name, return_hydra_config=True)
    plain: Any = OmegaConf.to_container(cfg)
    return [*plain.pop("hydra")["runtime"]["choices"], *_keys(plain)]


def _keys(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        yield from (f"{key}.{each}" for each in _keys(value)) if isinstance(value, dict) else [key]
