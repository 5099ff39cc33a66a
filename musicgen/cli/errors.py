"""A user's errors in one line; others keep their traceback."""

import errno
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

import hydra
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue
from pydantic import ConfigDict, TypeAdapter, ValidationError

from musicgen.cli.arguments import given_overrides, override_key
from musicgen.console import log, warn
from musicgen.errors import ParameterError, UserError
from musicgen.package_data import CONF, choices

USER_ERROR, INTERRUPTED = 2, 130  # statuses at exit
_NO_SPACE = ("ENOSPC", "EDQUOT")
_NO_PLACE = ("EACCES", "EPERM", "EROFS", "EEXIST", "ENOTDIR", "ENAMETOOLONG")
_PACKAGE = str(Path(__file__).parents[1])
_NOT_OWN = ("<", _PACKAGE, *sysconfig.get_paths().values())
_PLAIN = ConfigDict(arbitrary_types_allowed=True)  # any class may be a hint
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
            key = unknown[1]
            near = get_close_matches(key, _settings(config_name), 1, 0.67 if "." in key else 0.6)
            # Keys of a section share much. Without a near one it is of a class, or another choice.
            if near and "._" not in near[0] and not f"{key}.".startswith(f"{near[0]}."):
                line = f"{key}: no such setting; did you mean {near[0]}?"
        line = re.sub(r"(\S{150})\S{50,}", r"\1…", line)
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
            extras = "pip install -e '.[optuna,slurm]'"
            return f"hydra/{name}: not installed; run: {extras}"
        return f"{group}={name}: expected one of {', '.join(choices(group))}"
    if text.startswith("Config group override must be"):  # Hydra's, of null and of numbers
        given = ((x, choices(group)) for x in sys.argv if (group := override_key(x)))
        wrong = [(x, names) for x, names in given if names and x.partition("=")[2] not in names]
        return "; ".join(f"{x}: expected one of {', '.join(names)}" for x, names in wrong) or text
    if isinstance(error, ModuleNotFoundError) and section.startswith("logger."):
        return f"{section[:-1]}: {text}; install it, or leave logger out"
    if isinstance(error, hydra.errors.OverrideParseException) and not text.startswith("Ambiguous"):
        return f"{error.override}: Hydra cannot read it; quote names with brackets, commas or signs"
    code = errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    if isinstance(error, OSError) and code in (*_NO_SPACE, *_NO_PLACE):
        cure = "free some space" if code in _NO_SPACE else "give another place"
        return f"{error.filename or 'disk'}: {error.strerror}; {cure}, and run it again"
    if isinstance(error, RuntimeError) and "home directory" in text:  # of `Path.expanduser`
        named = ", ".join(argument for argument in sys.argv if "~" in argument[1:])
        return f"{named}: no user has the name behind ~; give the whole path"
    is_users = isinstance(error, UserError | HydraException)
    if is_users and not isinstance(error, InstantiationException):
        return text
    return _refusal(error, section, text)


def check_types(cfg: DictConfig) -> None:
    """Raise unless classes can take what the command line gives them, by their type hints."""
    for key in map(override_key, given_overrides()):
        section, _, name = key.rpartition(".")
        settings: Any = OmegaConf.select(cfg, section) if section else None
        if not (OmegaConf.is_dict(settings) and {"_target_", name} <= settings.keys()):
            continue
        plain: Any = OmegaConf.to_object(settings)
        target: Any = get_object(settings._target_)
        with suppress(NameError):  # of modules that are imported for hints alone
            hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
            try:
                TypeAdapter(hints.get(name, Any), config=_PLAIN).validate_python(plain[name])
            except ValidationError as error:
                problems = dict.fromkeys(each["msg"] for each in error.errors())
                raise ParameterError(key, plain[name], "; or ".join(problems)) from None


def _refusal(error: BaseException, section: str, text: str) -> str | None:
    """Name the settings that a constructor refuses; None if it is the user's own, or given none."""
    by_trainer = type(error).__name__ == "MisconfigurationException" or "val_check_interval" in text
    given = [x.removeprefix("++") for x in given_overrides()]
    given = [x for x in given if f"{override_key(x)}.".startswith(section)]
    values = [x for x in given if f"{override_key(x)}." != section]
    file, line, *_ = traceback.extract_tb(error.__traceback__)[-1]
    if not by_trainer and not (section and values and file.startswith(_NOT_OWN)):
        return None
    named = [x for x in values if override_key(x).rpartition(".")[2] in text]
    if section and not named:
        named = given if by_trainer else values
    where = f" ({Path(file).name}, line {line})" if file.startswith(_PACKAGE) else ""
    return f"{', '.join(named) or 'trainer'}: {text}{where}"


def _settings(config_name: str) -> list[str]:
    """Return the settings and groups of a command."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg: Any = hydra.compose(config_name, return_hydra_config=True)
    plain: Any = OmegaConf.to_container(cfg)
    return [*plain.pop("hydra")["runtime"]["choices"], *_keys(plain)]


def _keys(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        yield from (f"{key}.{each}" for each in _keys(value)) if isinstance(value, dict) else [key]
