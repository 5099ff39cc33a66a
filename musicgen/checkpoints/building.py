"""Build objects from the configuration of a checkpoint, which may come from an untrusted source.

Only classes of musicgen and of modules that the user trusts are built, and only models that have
the sizes of the checkpoint's weights.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from musicgen.attention import Attention, FeatureMap, GaussianSpan
from musicgen.errors import WRONG_SETTINGS, ParameterError, UserError
from musicgen.models import SequenceHead, Transformer
from musicgen.position import PositionalEncoding
from musicgen.tokenization.base import Tokenizer

_ALLOWED = (
    Transformer,
    PositionalEncoding,
    Attention,
    GaussianSpan,
    FeatureMap,
    SequenceHead,
    Tokenizer,
)
_trusted = {"musicgen"}  # modules whose classes may be built; `trust` adds the user's
_SMALL = 2**20  # numbers that any machine has memory for


def build(config: Any, base: type, **kwargs: Any) -> Any:
    """Return an object of the class `base`, built from a configuration with `_target_`s.

    A mapping with a `_target_` becomes an object of that class, or with `_partial_: true` a
    `functools.partial` of it; its other entries and `kwargs` are the arguments. Nothing is built
    unless `check_targets` accepts the whole configuration.
    """
    check_targets(config)
    if not isinstance(config, Mapping) or "_target_" not in config:
        raise UserError(f"its configuration has no {base.__name__}; use another")
    try:
        built = _build({**config, **kwargs})
    except WRONG_SETTINGS as e:
        reason = str(e).splitlines()[0]
        other = "it may be of another version of musicgen"
        raise UserError(f"its configuration cannot be built ({reason}); {other}") from None
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
    """Raise `UserError` if a configuration names anything but classes of musicgen.

    Each `_target_` must name a class that is defined in musicgen or in a module that the user
    trusts, not only imported there, and that derives from one of `allowed`. `_partial_` is the only
    other special key. The message names the entry that is refused.
    """
    for key, value in _entries([config]):
        if key == "_target_":
            _find_class(value, allowed)
        elif isinstance(key, str) and key.startswith("_") and key != "_partial_":
            raise UserError(f"its configuration has {key}, which is refused")
        elif isinstance(value, str) and "${" in value:
            raise UserError(f"its configuration holds an interpolation ({value}), which is refused")


def _entries(config: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and values of a configuration, at any depth; items of lists have no key."""
    pairs = config.items() if isinstance(config, Mapping) else ((None, value) for value in config)
    for key, value in pairs:
        yield key, value
        if isinstance(value, Mapping | list | tuple):
            yield from _entries(value)


def trust(module: str) -> None:
    """Import a module of the user's own, and allow its classes in configurations of checkpoints.

    Raises:
        ParameterError: there is no such module.
    """
    if module.startswith("."):
        raise ParameterError("trust", module, "expected the name of a module, such as mine.parts")
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # by an import within the module
        expected = f"there is no module {error.name}; add the folder that has it to PYTHONPATH"
        raise ParameterError("trust", module, expected) from None
    _trusted.add(module)


def trust_argument(config: Mapping[str, Any]) -> str | None:
    """Return the argument that a run with classes outside musicgen needs, or None.

    Args:
        config: of the run; its model, tokenizer and data are built again later.
    """
    parts = [config.get(name) for name in ("model", "tokenizer", "data")]
    targets = [str(value).rpartition(".") for key, value in _entries(parts) if key == "_target_"]
    own = {module for module, _, name in targets if name and module.split(".")[0] != "musicgen"}
    modules = sorted(own)
    if not modules:
        return None
    return f"trust={modules[0]}" if len(modules) == 1 else f"trust=[{','.join(modules)}]"


def _is_trusted(module: str) -> bool:
    return any(f"{module}.".startswith(f"{each}.") for each in _trusted)


def _find_class(target: Any, allowed: tuple[type, ...]) -> type:
    module_name, _, name = str(target).rpartition(".")
    refusal = (
        f"its configuration names {target}, which is not a class of musicgen that belongs there"
    )
    if not _is_trusted(module_name):
        own = f"; if the module is yours, allow its classes: trust={module_name}"
        raise UserError(refusal + own if module_name else refusal)
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError):
        raise UserError(refusal) from None
    # A module also holds what it imports, such as `os`.
    defined_there = inspect.isclass(found) and _is_trusted(found.__module__)
    if not (defined_there and issubclass(found, allowed)):
        raise UserError(refusal)
    return found


def check_sizes(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], build_model: Callable[[], Transformer]
) -> None:
    """Raise `UserError` unless the model of a configuration has the sizes of its weights.

    It is built on torch's meta device, whose tensors have shapes but no memory.
    """
    shapes = {name: list(tensor.shape) for name, tensor in weights.items()}
    layers = {name.split(".")[1] for name in shapes if name.startswith("layers.")}
    most = max(_SMALL, sum(tensor.numel() for tensor in weights.values()))
    known, cure = len(layers) == config.get("num_layers"), "; use another"
    if known and all(size <= most for _, size in _entries(config) if isinstance(size, int)):
        with torch.device("meta"), _WithoutValues():
            model = build_model()
        built = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        differ = sorted(n for n in {*built, *shapes} if built.get(n) != shapes.get(n))
        if not differ:
            return
        cure = f" in this code ({', '.join(differ[:2])}); use another, or the code that wrote it"
    raise UserError(f"its weights do not fit its configuration{cure}")


class _WithoutValues(TorchFunctionMode):
    """Skip the draw of initial weights, which on the meta device imports torch's compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func is nn.init.normal_ else func(*args, **kwargs)
