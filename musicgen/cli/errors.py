"""A user's error as one line, and settings that are refused; other exceptions keep their traceback.

Settings that nothing reads are refused with the name of the most similar one.
"""

import errno
import inspect
import math
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import (
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    InterpolationResolutionError,
    MissingMandatoryValue,
)
from pydantic import ConfigDict, TypeAdapter, ValidationError

from musicgen.cli.arguments import given_overrides, override_key
from musicgen.console import log, warn
from musicgen.errors import ParameterError, UserError
from musicgen.package_data import CONF, choices
from musicgen.validation import visible

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
_NO_PLACE = ("EACCES", "EPERM", "EROFS", "EEXIST", "ENOTDIR", "ENAMETOOLONG", "EFBIG", "ELOOP")
_LONGEST_LINE = 1500
_OBJECTS = ("callbacks", "logger", "metric")  # sections of any number of objects
_CALL = "target_policy.py"  # Hydra's, which calls the classes of a configuration
_PACKAGE = str(Path(__file__).parents[1])
_NOT_OWN = ("<", _PACKAGE, *sysconfig.get_paths().values())
_PLAIN = ConfigDict(arbitrary_types_allowed=True)  # any class may be a hint
_PLUGINS = {  # what pip installs for choices of Hydra's launcher and sweeper
    "optuna": "-e '.[optuna]'",
    "submitit": "-e '.[slurm]'",
    **{f"launcher/{name}": f"hydra-{name}-launcher" for name in ("joblib", "ray", "rq")},
    **{f"sweeper/{name}": f"hydra-{name}-sweeper" for name in ("ax", "nevergrad")},
}
_FULL_KEY = re.compile(r"^ *full_key: (\S+)$", re.M)  # in messages of Hydra and OmegaConf
_NO_SETTING = re.compile(r"Could not override '(\S+)'")  # Hydra's message
_NO_GPU = re.compile(r"No supported gpu|can not run on your system|requires a GPU")  # Lightning's
_WITHOUT_GPU = (
    " Without a GPU: trainer=cpu, or several processes on the CPU, trainer=ddp "
    "trainer.accelerator=cpu trainer.devices=2 trainer.precision=32-true"
)
_BUILT = re.compile(r"(?<![a-zA-Z])_(?:partial|convert|recursive|args)_(?![a-zA-Z])")  # Hydra's
_NO_MEMORY = re.compile(r"can't allocate memory|Unable to allocate|out of memory")
_NO_ARGUMENT = re.compile(r"got an unexpected keyword argument '(\w+)'")  # Python's


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
    section = ""  # of the object that could not be built: "model.position."
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        key = _FULL_KEY.search(str(error))
        section = f"{key[1]}." if key else ""
        error = error.__cause__
    text = " ".join(str(error).split())
    if isinstance(error, ParameterError):
        return f"{section}{text}"
    if isinstance(error, UserError):
        return text
    if taken_away := _taken_away(f"{section} {error}"):
        return taken_away
    line = _configuration_line(error, text) or _system_line(error, text)
    line = line or _missing_package_line(error, section, text)
    if isinstance(error, HydraException) and not isinstance(error, InstantiationException):
        return line or text
    return line or _refusal(error, section, text)


def _configuration_line(error: BaseException, text: str) -> str | None:
    """Return the line of an error of Hydra or OmegaConf that has a better one than its own text."""
    key = _FULL_KEY.search(str(error))
    if isinstance(error, InstantiationException):  # without a cause: Hydra refuses the class
        return f"{key[1]}._target_: {text}" if key else text
    if key:
        return _setting_line(error, key[1])
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).partition("/")
        known = choices(group)
        nearest_first = dict.fromkeys([*get_close_matches(name, known), *known])
        line = f"{group}={name}: expected one of {', '.join(nearest_first)}"
        if group == "hydra":
            plugin = name.partition("_")[0]  # launcher/submitit of submitit_slurm, for example
            package = _PLUGINS.get(plugin, _PLUGINS.get(plugin.partition("/")[2]))
            missing = f"hydra/{name.replace('/', '=')}: not installed; run: pip install {package}"
            line = missing if package else text
        return line
    if text.startswith("Config group override must be"):  # Hydra's, of null and of numbers
        return _wrong_choices(sys.argv) or text
    if isinstance(error, OverrideParseException) and not text.startswith("Ambiguous"):
        return f"{error.override}: Hydra cannot read it; quote names with brackets, commas or signs"
    return None


def _setting_line(error: BaseException, key: str) -> str | None:
    """Return the line of an error of OmegaConf about a setting."""
    if isinstance(error, MissingMandatoryValue):
        return f"{key} is missing; give {key}=VALUE"
    if isinstance(error, InterpolationResolutionError):
        return f"{key}: {str(error).splitlines()[0]}"
    return None


def _taken_away(text: str) -> str | None:
    """Return the line of a setting that `~` takes away, if an error says that it is missing."""
    for override in (*given_overrides(), *sys.argv[1:]):
        key = override.partition("=")[0].removeprefix("~")
        name = re.escape(key.rpartition(".")[2])
        found = rf"'{name}'|full_key: {re.escape(key)}(\.|\s|$)"
        if override.startswith("~") and re.search(found, text):
            nothing = text.strip().startswith("Could not delete")  # Hydra's message
            why = "there is nothing to take away" if nothing else "it is needed"
            return f"~{key}: {why}; leave this out"
    return None


def _wrong_choices(arguments: Sequence[str]) -> str:
    """Say which arguments name no choice of their group, and what the choices are."""
    lines = []
    for argument in arguments:
        group = override_key(argument)
        names = choices(group) if group else []
        if names and argument.partition("=")[2] not in names:
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
    if isinstance(error, MemoryError | RuntimeError) and _NO_MEMORY.search(text):
        numbers = [each for each in given_overrides() if re.search(r"=\d{3,}|=\d+e", each)]
        return f"{', '.join(numbers) or 'memory'}: {text}; smaller sizes need less"
    if isinstance(error, RuntimeError) and "home directory" in text:  # of `Path.expanduser`
        named = ", ".join(argument for argument in sys.argv if "~" in argument[1:])
        return f"{named}: no user has the name after ~; give the whole path"
    return None


def _missing_package_line(error: BaseException, section: str, text: str) -> str | None:
    """Return the line of a package that is missing because its extra was not installed."""
    cause = error.__cause__ if type(error) is ImportError else error  # Hydra's, of a missing class
    if not isinstance(cause, ModuleNotFoundError):
        return None
    if cause.name in _TRAIN_PACKAGES:
        return f"{cause.name} is not installed; run: pip install -e '.[train]'"
    if cause is error and section.startswith("logger."):
        return f"{section[:-1]}: {text}; install it, or leave logger out"
    return None


def check_construction() -> None:
    """Raise `UserError` if an argument changes how Hydra builds an object of the configuration.

    An object with a `_target_` of the command line may be built in any way.
    """
    given = given_overrides()
    own = {override_key(x).removesuffix("._target_") for x in given if "_target_" in x}
    for override in given:
        section = override_key(override).rpartition(".")[0]
        keyword = _BUILT.search(override)
        if keyword and section not in own and override_key(override) not in own:
            raise UserError(
                f"{override}: {keyword[0]} says how {section or 'it'} is built, which cannot be "
                "changed; leave this out"
            )


def check_types(cfg: DictConfig) -> None:
    """Raise `ParameterError` if a value of the command line does not fit a class's type hint.

    Numbers that overflow in single precision, or vanish, are refused wherever they stand.
    """
    for override in given_overrides():
        key = override_key(override)
        if key.endswith("._target_"):
            _check_target(key, OmegaConf.select(cfg, key))
        if override.partition("=")[2] == "{}" and OmegaConf.select(cfg, key):
            raise ParameterError(key, "{}", "it changes nothing; give settings, or leave it out")
        try:
            number = OmegaConf.select(cfg, key)
        except InterpolationResolutionError as error:
            raise UserError(f"{key}: {str(error).splitlines()[0]}") from None
        size = abs(number) if isinstance(number, float) else 0
        if 0 < size < 1e-30 or 1e30 < size < math.inf:  # NaN and infinity are left to the classes
            raise ParameterError(key, number, "expected 0 or a number from 1e-30 to 1e30")
        section, _, name = key.rpartition(".")
        if section in _OBJECTS and not (number is None or OmegaConf.is_dict(number)):
            raise ParameterError(key, number, "expected null, or settings with a _target_")
        settings: Any = OmegaConf.select(cfg, section) if section else None
        if not (OmegaConf.is_dict(settings) and {"_target_", name} <= settings.keys()):
            continue
        plain: Any = OmegaConf.to_object(settings)
        target: Any = get_object(settings._target_)
        with suppress(NameError):  # of modules that are imported only for hints
            hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
            try:
                hint = TypeAdapter(hints.get(name, Any), config=_PLAIN)
                found = hint.validate_python(plain[name])
                if isinstance(plain[name], str) and isinstance(found, int | float):
                    hint.validate_python(plain[name], strict=True)  # in quotes, "32" is no number
            except ValidationError as error:
                problems = dict.fromkeys(each["msg"] for each in error.errors())
                value = visible(plain[name])
                raise ParameterError(key, value, "; or ".join(problems)) from None


def _check_target(key: str, target: Any) -> None:
    """Raise `ParameterError` unless a `_target_` of the command line names a class or function."""
    try:
        get_object(target)
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        problem = str(error).splitlines()[-1] if isinstance(target, str) else "no name"
        expected = f"expected the name of a class, such as mine.Model: {problem}"
        raise ParameterError(key, target, expected) from None


def _refusal(error: BaseException, section: str, text: str) -> str | None:
    """Return a line that names the settings which a constructor refuses.

    Returns:
        None if the exception is not about settings of the command line, or if it comes from a
        custom class, whose traceback is worth more.
    """
    by_trainer = type(error).__name__ == "MisconfigurationException" or "val_check_interval" in text
    given = [override.removeprefix("++") for override in given_overrides()]
    in_section = [each for each in given if f"{override_key(each)}.".startswith(section)]
    values = [each for each in in_section if f"{override_key(each)}." != section]
    file, line, *_ = traceback.extract_tb(error.__traceback__)[-1]
    unread = section and _NO_ARGUMENT.search(text)
    if unread and (key := f"{section}{unread[1]}") not in map(override_key, given):
        return f"{key}: {text}; an experiment or run sets it, and ~{key} leaves it out"
    by_constructor = section and values and file.startswith(_NOT_OWN)
    if isinstance(error, TypeError) and Path(file).name == _CALL:  # a class of other arguments
        changed = [each for each in given if re.search(r"\._(target|partial)_=", each)]
        return f"{', '.join(changed)}: {text}" if changed else None
    if not by_trainer and not by_constructor:
        return None
    named = [each for each in values if override_key(each).rpartition(".")[2] in text]
    if section and not named:
        named = in_section if by_trainer else values
    where = f" ({Path(file).name}, line {line})" if file.startswith(_PACKAGE) else ""
    cure = _WITHOUT_GPU if _NO_GPU.search(text) else ""
    return f"{', '.join(named) or 'trainer'}: {text}{where}{cure}"


def check_known(cfg: DictConfig, config_name: str) -> None:
    """Raise `UserError` if an argument adds a setting (`+name=value`) that nothing reads.

    The arguments of a class are left to its constructor, see `unknown_setting`.
    """
    given = given_overrides()
    known: list[str] = []
    for key in (override_key(override) for override in given if override.startswith("+")):
        is_group = bool(key) and (CONF / key.partition("@")[0]).is_dir()
        if is_group or key.startswith("hydra") or _is_of_object(cfg, key):
            continue
        known = known or _settings(config_name, given)
        # Other settings may take their values from a setting that nothing else reads.
        if key not in known and f"${{{key}}}" not in OmegaConf.to_yaml(cfg):
            raise UserError(no_such_setting(key, config_name, known=known))


def unknown_setting(error: BaseException) -> str | None:
    """Return the setting that Hydra or the constructor of a class does not know, if that is why."""
    if hydra_message := _NO_SETTING.search(str(error)):
        return hydra_message[1]
    message = _NO_ARGUMENT.search(str(error))
    if message is None:
        return None
    added = [override_key(each) for each in given_overrides() if each.startswith("+")]
    return next((key for key in added if key.rpartition(".")[2] == message[1]), None)


def no_such_setting(
    key: str, config_name: str, otherwise: str | None = None, known: Sequence[str] = ()
) -> str:
    """Return a line about an unknown setting: what to give instead, or the most similar one.

    Args:
        otherwise: the line for a setting of a section, such as `model.x`, without a similar one.
        known: the names of all settings; by default they are composed.
    """
    if config_name == "train" and key == "ckpt_path":  # which people know from other programs
        return (
            "ckpt_path: no such setting; resume=RUN continues a run in its folder, init=RUN begins "
            "a new run from the weights of another"
        )
    cutoff = 0.67 if "." in key else 0.6  # keys of one section have much in common
    known = known or _settings(config_name, sys.argv[1:])
    similar = get_close_matches(key, known, 1, cutoff)
    if similar and "._" not in similar[0] and not f"{key}.".startswith(f"{similar[0]}."):
        return f"{key}: no such setting; did you mean {similar[0]}?"
    if otherwise is not None and "." in key:
        return otherwise
    return f"{key}: no such setting; --help shows all"


def _is_of_object(cfg: DictConfig, key: str) -> bool:
    """Return whether a setting is an argument of a class, or a callback or logger itself."""
    parts = key.split(".")
    sections = [".".join(parts[:end]) for end in range(1, len(parts))]
    if sections in (["callbacks"], ["logger"]):  # which hold any number of objects
        sections.append(key)
    found = (OmegaConf.select(cfg, section) for section in sections)
    return any(OmegaConf.is_dict(each) and "_target_" in each for each in found)


def _settings(config_name: str, arguments: Sequence[str]) -> list[str]:
    """Return the names of a command's settings and groups, with the choices of the arguments."""
    defaults = OmegaConf.load(CONF / f"{config_name}.yaml").defaults
    groups = {str(group) for entry in defaults if OmegaConf.is_dict(entry) for group in entry}
    chosen = [
        each
        for each in arguments
        if override_key(each) in groups and each.partition("=")[2] in choices(override_key(each))
    ]
    # Within a job, Hydra has been initialized with the folders of the command line.
    in_job = GlobalHydra.instance().is_initialized()
    with nullcontext() if in_job else initialize_config_dir(str(CONF), version_base="1.3"):
        cfg: Any = compose(config_name, chosen, return_hydra_config=True)
    plain: Any = OmegaConf.to_container(cfg)
    return [*plain.pop("hydra")["runtime"]["choices"], *_keys(plain)]


def _keys(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from (f"{key}.{each}" for each in _keys(value))
        else:
            yield key
