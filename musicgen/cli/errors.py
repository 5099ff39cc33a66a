"""A user's error as one line; other exceptions keep their traceback."""

import errno
import inspect
import math
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, get_type_hints

import hydra
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue
from pydantic import ConfigDict, TypeAdapter, ValidationError

from musicgen.cli.arguments import given_overrides, override_key
from musicgen.cli.known_settings import no_such_setting, unknown_setting
from musicgen.console import log, warn
from musicgen.errors import ParameterError, UserError
from musicgen.package_data import choices

USER_ERROR, INTERRUPTED = 2, 130  # statuses at exit
_TRAIN_PACKAGES = (  # modules of the extra `train`
    "pytorch_lightning",
    "wandb",
    "matplotlib",
    "PIL",
    "muspy",
    "miditoolkit",
    "pretty_midi",
)
_NO_SPACE = ("ENOSPC", "EDQUOT")
_NO_PLACE = ("EACCES", "EPERM", "EROFS", "EEXIST", "ENOTDIR", "ENAMETOOLONG")
_LONGEST_LINE = 1500
_PACKAGE = str(Path(__file__).parents[1])
_NOT_OWN = ("<", _PACKAGE, *sysconfig.get_paths().values())
_PLAIN = ConfigDict(arbitrary_types_allowed=True)  # any class may be a hint
_EXTRAS = {"optuna": "optuna", "submitit": "slurm"}  # of this package, for plugins of Hydra
_PLUGINS = {"launcher": ("joblib", "ray", "rq"), "sweeper": ("ax", "nevergrad")}
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
        if unknown := unknown_setting(error):
            line = no_such_setting(unknown, config_name, line)
        if line is None:
            if isinstance(error, InstantiationException) and error.__cause__ is not None:
                raise error.__cause__ from None  # Hydra would hide its traceback
            raise
        line = re.sub(r"(\S{150})\S{50,}", r"\1…", line)
        if len(line) > _LONGEST_LINE:
            line = f"{line[: _LONGEST_LINE // 2]} … {line[-_LONGEST_LINE // 2 :]}"
        log(f"error: {line}", "red")
        sys.exit(USER_ERROR)


def describe(error: BaseException) -> str | None:
    """Return a user's error in one line; None for other exceptions.

    A parameter that a class refuses is named by its key in the configuration.
    """
    section = ""  # of the configuration, whose object could not be built: "model.position."
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        key = _FULL_KEY.search(str(error))
        section = f"{key[1]}." if key else ""
        error = error.__cause__
    text = " ".join(str(error).split())
    if isinstance(error, ParameterError):
        return f"{section}{text}"
    if isinstance(error, UserError):
        return text
    line = _configuration_line(error, text) or _system_line(error, text)
    line = line or _missing_package_line(error)
    if line is None and isinstance(error, ModuleNotFoundError) and section.startswith("logger."):
        line = f"{section[:-1]}: {text}; install it, or leave logger out"
    own_text = isinstance(error, HydraException) and not isinstance(error, InstantiationException)
    if line is None and own_text:
        line = text
    return line or _refusal(error, section, text)


def _value_line(error: BaseException) -> str | None:
    """Return the line of a setting that has no value, or an interpolation that gives none."""
    key = _FULL_KEY.search(str(error))
    if key and isinstance(error, MissingMandatoryValue):
        return f"{key[1]} is missing; give {key[1]}=VALUE"
    if key and isinstance(error, InterpolationResolutionError):
        return f"{key[1]}: {str(error).splitlines()[0]}"
    return None


def _configuration_line(error: BaseException, text: str) -> str | None:
    """Return the line of an error of Hydra or OmegaConf that has a better one than its own text."""
    if line := _value_line(error):
        return line
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).partition("/")
        if group == "hydra":
            package = _plugin(name)
            missing = f"hydra/{name.replace('/', '=')}: not installed; run: pip install {package}"
            return missing if package else text
        return f"{group}={name}: expected one of {', '.join(choices(group))}"
    if text.startswith("Config group override must be"):  # Hydra's, of null and of numbers
        return _wrong_choices(sys.argv) or text
    if isinstance(error, hydra.errors.OverrideParseException) and not text.startswith("Ambiguous"):
        return f"{error.override}: Hydra cannot read it; quote names with brackets, commas or signs"
    return None


def _plugin(choice: str) -> str | None:
    """Return what pip installs for a choice such as `launcher/joblib`; None if none is known."""
    kind, _, name = choice.partition("/")
    plugin = name.partition("_")[0]  # of submitit_slurm and submitit_local, for example
    if plugin in _EXTRAS:
        return f"-e '.[{_EXTRAS[plugin]}]'"
    return f"hydra-{plugin}-{kind}" if plugin in _PLUGINS.get(kind, ()) else None


def _wrong_choices(arguments: Sequence[str]) -> str:
    """Say which arguments name no choice of their group, and what the choices are."""
    lines = []
    for argument in arguments:
        group = override_key(argument)
        value = argument.partition("=")[2]
        names = choices(group) if group else []
        if names and value not in names:
            lines.append(f"{argument}: expected one of {', '.join(names)}")
    return "; ".join(lines)


def _system_line(error: BaseException, text: str) -> str | None:
    """Return the line of an error of the file system that a user can fix."""
    if isinstance(error, OSError):
        code = errno.errorcode.get(error.errno or 0)
        place = error.filename or "disk"
        if code in _NO_SPACE:
            return f"{place}: {error.strerror}; free some space, and run it again"
        made = traceback.extract_tb(error.__traceback__)[-1].name in ("mkdir", "makedirs")
        if code in _NO_PLACE or (code == "ENOENT" and made):
            return f"{place}: {error.strerror}; give another place, and run it again"
    if isinstance(error, RuntimeError) and "home directory" in text:  # of `Path.expanduser`
        named = ", ".join(argument for argument in sys.argv if "~" in argument[1:])
        return f"{named}: no user has the name after ~; give the whole path"
    return None


def _missing_package_line(error: BaseException) -> str | None:
    """Return the line of a package that is missing because its extra was not installed."""
    cause = error.__cause__ if type(error) is ImportError else error  # Hydra's, of a missing class
    if not isinstance(cause, ModuleNotFoundError) or cause.name not in _TRAIN_PACKAGES:
        return None
    return f"{cause.name} is not installed; run: pip install -e '.[train]'"


def check_types(cfg: DictConfig) -> None:
    """Raise `ParameterError` if a value of the command line does not fit a class's type hint.

    Numbers that overflow in single precision, or vanish, are refused wherever they stand.
    """
    for key in map(override_key, given_overrides()):
        try:
            number = OmegaConf.select(cfg, key)
        except InterpolationResolutionError as error:
            raise UserError(f"{key}: {str(error).splitlines()[0]}") from None
        if isinstance(number, float) and not _is_usual(number):
            raise ParameterError(key, number, "expected 0 or a number from 1e-30 to 1e30")
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


def _is_usual(number: float) -> bool:
    """Return whether a number has a usual size; NaN and infinity are left to who reads them."""
    return number == 0 or not math.isfinite(number) or 1e-30 <= abs(number) <= 1e30


def _refusal(error: BaseException, section: str, text: str) -> str | None:
    """Return a line that names the settings which a constructor refuses.

    Returns:
        None if the exception is not about settings of the command line, or if it comes from a
        class of the user's own, whose traceback is worth more.
    """
    by_trainer = type(error).__name__ == "MisconfigurationException" or "val_check_interval" in text
    given = [override.removeprefix("++") for override in given_overrides()]
    in_section = [each for each in given if f"{override_key(each)}.".startswith(section)]
    values = [each for each in in_section if f"{override_key(each)}." != section]
    file, line, *_ = traceback.extract_tb(error.__traceback__)[-1]
    by_constructor = section and values and file.startswith(_NOT_OWN)
    if not by_trainer and not by_constructor:
        return None
    named = [each for each in values if override_key(each).rpartition(".")[2] in text]
    if section and not named:
        named = in_section if by_trainer else values
    where = f" ({Path(file).name}, line {line})" if file.startswith(_PACKAGE) else ""
    return f"{', '.join(named) or 'trainer'}: {text}{where}"
