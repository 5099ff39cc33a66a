"""Mistakes on the command line in one line: our own words, or Hydra's put better."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import ConfigCompositionException, HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from musicgen.errors import UserError

# How Hydra and the libraries it calls put things, and what to say instead, in this order.
_WORDS = {
    # Addresses and search paths are no help on one line.
    r"\s*See http\S+ for details|\s*Config search path:.*|^In '\w+': ": "",
    # A setting that no class takes would only fail later, so not with + as Hydra advises.
    r"Could not override '(\S+)'.*To append .*": (
        r"\1: there is no such setting with these choices; --cfg job prints those there are"
    ),
    r"Ambiguous value for argument '([^=\n]+)=([^\n]*)'\n.*": (
        r"\1=\2: for a list give \1='[\2]'; for a run of each add -m"
    ),
    r"Missing mandatory value: (\S+).*": r"\1 is missing; give \1=FOLDER",
    r"Error parsing override '[^\n]*'\s*missing EQUAL at '<EOF>'": "give it as NAME=VALUE",
    r"LexerNoViableAltException: ([^\s=]+)=([^\n]*)": r'''quote it twice: \1="'\2'"''',
    r"Error in call to target '\S+?(\w+)':\n\w+\(['\"](.*)['\"]\)\nfull_key: (\S+)": (
        r"\3: \2 (\1)"
    ),
    r"No supported gpu backend found!.*|`\w+` can not run on your system.*": (
        "this machine has no such device; give trainer=cpu"
    ),
    r"Neither `tensorboard` nor .*": "pip install tensorboard first",
    r"No API key configured.*": "run `wandb login` first, or set WANDB_MODE=offline",
    r"\\n": " ",
}


def one_line(error: BaseException | None) -> str:
    """One line for a user's mistake: our own words, or else Hydra's."""
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    for cause in causes:
        if isinstance(cause, UserError):
            return str(cause)
    text = str(causes[0])
    for cause in causes:
        if isinstance(cause, OverrideParseException):
            text = f"{cause.override}: {text}"
    text = reword(text)
    lines = [line.strip() for line in text.splitlines() if line.strip().strip("^")]
    lines = [line for line in lines if not line.startswith("object_type")]
    return "; ".join(lines).replace(":; ", ": ")


def reword(text: str) -> str:
    """A library's message, put for somebody at this command line."""
    for pattern, words in _WORDS.items():
        text = re.sub(pattern, words, text, flags=re.S)
    return text


def with_names(
    error: ConfigCompositionException, folder: Path, config: str, arguments: Sequence[str]
) -> Exception:
    """The error, with the names there are for one that is unknown.

    Args:
        error: Hydra's.
        folder: of the configuration files.
        config: the name of the main one.
        arguments: what the user gave.
    """
    choice = re.search(r"Could not find '([^'/]+)/([^']+)'", str(error))
    if choice and folder.joinpath(*choice.groups()).is_dir():
        group, name = choice.groups()
        files = sorted((folder / group / name).rglob("*.yaml"))
        options = [path.relative_to(folder / group).with_suffix("").as_posix() for path in files]
        return UserError(f"{group}={name}: a folder; give one of {', '.join(options)}")
    setting = re.search(r"Could not override '(\S+)'", str(error))
    if setting:
        near = _nearest(setting[1], folder, config, arguments)
        if near:
            return UserError(f"{one_line(error)}; did you mean {' or '.join(near)}?")
    return error


def _nearest(name: str, folder: Path, config: str, arguments: Sequence[str]) -> list[str]:
    """The settings below it, or else those of the same last name, or the most similar one."""
    others = [a for a in arguments if is_override(a) and a.partition("=")[0] != name]
    try:
        with hydra.initialize_config_dir(str(folder), version_base="1.3"):
            names = list(_names(hydra.compose(config, others)))
    except HydraException:  # a second mistake, or a sweep
        return []
    names += [key for entry in OmegaConf.load(folder / f"{config}.yaml").defaults for key in entry]
    last = name.rpartition(".")[2]
    below = [other for other in names if other.startswith(f"{name}.")]
    same = [other for other in names if other.rpartition(".")[2] == last]
    return below or same or difflib.get_close_matches(name, names, 1)


def is_override(argument: str) -> bool:
    """Whether an argument is a setting, not a flag of Hydra's or its value."""
    return argument.startswith("~") or ("=" in argument and not argument.startswith("-"))


def _names(config: Any, prefix: str = "") -> Iterator[str]:
    """Of all settings, as on the command line."""
    for key in config:
        yield f"{prefix}{key}"
        value = None if OmegaConf.is_missing(config, key) else config._get_node(key)
        if isinstance(value, DictConfig) and not value._is_none():
            yield from _names(value, f"{prefix}{key}.")
