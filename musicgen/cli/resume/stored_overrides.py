"""The arguments of a run, stored in its folder, which may come from an untrusted source."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf

from musicgen.errors import UserError
from musicgen.package_data import CONF

# Classes to train with; the functions that they take are `_target_`s in turn.
_LIBRARIES = re.compile(
    r"(torch\.optim(\.lr_scheduler)?|pytorch_lightning\.(callbacks|loggers))\.[A-Z]\w*"
)
_SPECIAL = re.compile(r"_[a-z]+_")  # Hydra's keys: `_target_`, `_args_`, …
# Other interpolations call functions, which may build a `_target_` from text.
_PLAIN_INTERPOLATION = re.compile(r"\$\{(oc\.env:\w+|[\w.]+)\}")


def read_overrides(path: Path, left_out: Collection[str]) -> list[str]:
    """Read the overrides that `save_overrides` wrote, except those whose keys are left out.

    Composing them must run nothing: they set no Hydra options, and each `_target_` is one of the
    configuration files', an optimizer or schedule of torch, or a callback or logger of Lightning.

    Raises:
        UserError: names the override that is refused.
    """
    try:
        stored = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # broken YAML raises many types
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
    if not isinstance(stored, list):
        raise UserError(f"{path}: not the arguments of a run; restore the file")
    overrides = [text for text in map(str, stored) if override_key(text) not in left_out]
    for text in overrides:
        if "${" in _PLAIN_INTERPOLATION.sub("", text):  # also if it is escaped, as in a path
            raise UserError(
                f"{path}: {text!r} has ${{, which may call a function, and is refused; if you "
                "trust it, repeat it on the command line"
            )
        try:
            (override,) = OverridesParser.create().parse_overrides([text])
        except HydraException:
            raise _refusal(path, text) from None
        if override.is_sweep_override() or not _is_harmless(override):
            raise _refusal(path, text)
    return overrides


def override_key(override: str) -> str:
    return override.partition("=")[0]


def _refusal(path: Path, text: str) -> UserError:
    return UserError(
        f"{path}: {text!r} may run code that is not musicgen's, and is refused; if you trust it, "
        "repeat it on the command line"
    )


def _is_harmless(override: Override) -> bool:
    key, value = override.key_or_group, override.value()
    if re.split(r"[./]", key)[0] in ("hydra", "resume"):  # never stored
        return False
    if (CONF / key).is_dir() and ".." in str(value):  # a file elsewhere
        return False
    config = functools.reduce(lambda inner, name: {name: inner}, reversed(key.split(".")), value)
    return all(
        name == "_partial_" or (name == "_target_" and _is_known(target))
        for name, target in _special_entries(config)
    )


def _special_entries(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield Hydra's special keys, wherever they stand in a configuration, with their values."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            if _SPECIAL.fullmatch(str(name)):
                yield str(name), value
            yield from _special_entries(value)
    elif isinstance(config, list):
        for value in config:
            yield from _special_entries(value)


def _is_known(target: Any) -> bool:
    return str(target) in _own_targets() or _LIBRARIES.fullmatch(str(target)) is not None


@functools.cache
def _own_targets() -> frozenset[str]:
    """Return every `_target_` of the configuration files."""
    texts = (path.read_text(encoding="utf-8") for path in CONF.rglob("*.yaml"))
    return frozenset(re.findall(r"_target_: *([\w.]+)", "\n".join(texts)))
