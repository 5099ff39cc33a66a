"""Build objects from a checkpoint's configuration, which may come from an untrusted source."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from musicgen.adapters import Adapter
from musicgen.attention import Attention, AttentionSpan, FeatureMap
from musicgen.errors import UserError
from musicgen.models import ClassificationHead, Transformer
from musicgen.position import PositionalEncoding
from musicgen.tokenization.base import Tokenizer

_MODEL = (
    Transformer,
    PositionalEncoding,
    Attention,
    AttentionSpan,
    FeatureMap,
    ClassificationHead,
)
_ALLOWED = (*_MODEL, Adapter, Tokenizer)


def build(config: Any, base: type, **kwargs: Any) -> Any:
    """Build an object of the class `base` from a configuration with `_target_`s.

    A mapping with a `_target_` becomes an object of that class, or with `_partial_: true` a
    `functools.partial` of it; its other entries and `kwargs` are the arguments. Nothing is built
    unless `check_targets` accepts the whole configuration.
    """
    check_targets(config)
    if not isinstance(config, Mapping) or "_target_" not in config:
        raise UserError(f"its configuration has no {base.__name__}; use another")
    try:
        built = _build({**config, **kwargs})
    # Also sizes that no memory holds, and classes that are only interfaces.
    except (TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"its configuration cannot be built ({reason})") from None
    if not isinstance(built, base):
        raise UserError(f"its configuration makes no {base.__name__}; use another")
    return built


def _build(config: Any) -> Any:
    if isinstance(config, list | tuple):
        return [_build(value) for value in config]
    if not isinstance(config, Mapping):
        return config
    arguments = {k: _build(v) for k, v in config.items() if k not in ("_target_", "_partial_")}
    if "_target_" not in config:
        return arguments
    found = _find_class(config["_target_"], _ALLOWED)
    return partial(found, **arguments) if config.get("_partial_") else found(**arguments)


def check_targets(config: Any, allowed: tuple[type, ...] = _ALLOWED) -> None:
    """Refuse a configuration that names anything but classes of musicgen.

    Each `_target_` must name a class that is defined in musicgen (being reachable through it is
    not enough) and that derives from one of `allowed`. `_partial_` is the only other special key.

    Raises:
        UserError: names the entry that is refused.
    """
    if isinstance(config, Mapping):
        for key, value in config.items():
            if key == "_target_":
                _find_class(value, allowed)
            elif isinstance(key, str) and key.startswith("_") and key != "_partial_":
                raise UserError(f"its configuration has {key}, which is refused")
            else:
                check_targets(value, allowed)
    elif isinstance(config, list | tuple):
        for value in config:
            check_targets(value, allowed)
    elif isinstance(config, str) and "${" in config:
        raise UserError(f"its configuration holds an interpolation ({config}), which is refused")


def _find_class(target: Any, allowed: tuple[type, ...]) -> type:
    refusal = UserError(
        f"its configuration names {target}, which is not a class of musicgen that belongs there; "
        "nothing was run. Open only checkpoints of musicgen"
    )
    module_name, _, name = str(target).rpartition(".")
    if module_name.split(".")[0] != "musicgen":
        raise refusal
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError):
        raise refusal from None
    ours = inspect.isclass(found) and found.__module__.split(".")[0] == "musicgen"
    if not (ours and issubclass(found, allowed)):
        raise refusal
    return found
