"""Errors as one line in the terms of the command line."""

from __future__ import annotations

import re

from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from musicgen.errors import ParameterError, UserError

# Parts of messages of Hydra and Lightning; tests/end_to_end/test_errors.py pins them.
FULL_KEY = re.compile(r"^full_key: (\S+)$", re.M)
UNKNOWN_KEY = re.compile(r"Could not override '(\S+)'")
MISSING_VALUE = re.compile(r"Missing mandatory value: (\S+)")
NO_ACCELERATOR = re.compile(r"No supported gpu backend found|can not run on your system")


def one_line(error: BaseException, cfg: DictConfig | None = None) -> str:
    """Describe a user's error, raised while instantiating `cfg`, in one line.

    Its causes are searched for the most specific description.
    """
    section, cause = "", error
    while True:
        if isinstance(cause, ParameterError):
            key = f"{section}.{cause.name}" if section else cause.name
            expected = re.sub(r"\bNone\b", "null", cause.expected)
            value = {"None": "null", "True": "true", "False": "false"}.get(
                str(cause.value), cause.value
            )
            return f"{_typed_key(cfg, key)}={value}: {expected}"
        if isinstance(cause, UserError):
            return str(cause)
        if isinstance(cause, OverrideParseException):
            name, equals, value = cause.override.partition("=")
            cure = f'''quote the value twice: {name}="'{value}'"''' if equals else "use NAME=VALUE"
            return f"{cause.override}: not a valid override; {cure}"
        if isinstance(cause, InstantiationException) and cause.__cause__ is not None:
            found = FULL_KEY.search(str(cause))
            section, cause = found[1] if found else "", cause.__cause__
            continue
        text = str(cause)
        if unknown := UNKNOWN_KEY.search(text):
            return f"{unknown[1]}: no such setting in this configuration; --cfg job prints it"
        if missing := MISSING_VALUE.search(text):
            return f"{missing[1]} is missing; give {missing[1]}=VALUE"
        if NO_ACCELERATOR.search(text):
            text = "this machine has no such device; use trainer=cpu"
        text = "; ".join(line.strip() for line in text.splitlines() if line.strip())
        return f"{section}: {text}" if section else text


def _typed_key(cfg: DictConfig | None, key: str) -> str:
    """Return the key that a user sets instead of `key`.

    An interpolation leads to its source: `data.corpus.root` to `data.root`. A configuration group
    is named alone: `position`, not `model.position`.
    """
    parent, _, name = key.rpartition(".")
    section = None if cfg is None else OmegaConf.select(cfg, parent) if parent else cfg
    if not isinstance(section, DictConfig) or name not in section:
        return key
    if parent and HydraConfig.initialized() and name in HydraConfig.get().runtime.choices:
        return name
    value = OmegaConf.to_container(section, resolve=False)[name]  # type: ignore[index,call-overload]
    source = re.fullmatch(r"\$\{([\w.]+)\}", value) if isinstance(value, str) else None
    return source[1] if source else key
