"""Checkpoints: weights, plain-data configuration and vocabulary; a stranger's can be opened."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hydra.utils
import torch
from torch import nn

from musicgen.attention import AttentionKernel, AttentionSpan, FeatureMap
from musicgen.errors import UserError
from musicgen.models import Transformer
from musicgen.position import PositionalEncoding
from musicgen.tokenization.base import Tokenizer

CONTENT_KEY = "musicgen"
FORMAT_VERSION = 1
_ZIP = b"PK\x03\x04"  # how torch's files begin
_MAY_CHANGE = {"dropout", "backend"}  # of a model, in a resumed run
_ALLOWED = (
    Transformer,
    PositionalEncoding,
    AttentionKernel,
    AttentionSpan,
    FeatureMap,
    Tokenizer,
)


@dataclass(frozen=True)
class CheckpointContent:
    """What a checkpoint holds beside Lightning's own: plain data only.

    Attributes:
        model, tokenizer: their configurations, with `_target_`s.
        vocabulary: the tokens in id order.
        vocabulary_hash: of the vocabulary, as `Vocabulary.hash`.
        config: the whole resolved configuration of the run.
    """

    model: dict[str, Any]
    tokenizer: dict[str, Any]
    vocabulary: list[str]
    vocabulary_hash: str
    config: dict[str, Any]
    format_version: int = FORMAT_VERSION

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, checkpoint: Mapping[str, Any]) -> CheckpointContent:
        """The content of a loaded checkpoint.

        Raises:
            UserError: it is none of ours, or of a newer format.
        """
        content = checkpoint.get(CONTENT_KEY) if isinstance(checkpoint, Mapping) else None
        if not isinstance(content, Mapping):
            raise UserError("not a musicgen checkpoint; give one that train.py wrote")
        version = content.get("format_version")
        if version != FORMAT_VERSION:
            raise UserError(
                f"checkpoint format {version}, but this musicgen reads format {FORMAT_VERSION}; "
                "use the version that wrote it"
            )
        try:
            return cls(**content)
        except TypeError as error:
            raise UserError(f"a damaged musicgen checkpoint ({error}); use another") from None

    def check_same_vocabulary(self, saved: CheckpointContent) -> None:
        """Refuse to go on from weights for other tokens."""
        if saved.vocabulary_hash != self.vocabulary_hash:
            raise UserError(
                f"the checkpoint's vocabulary has {len(saved.vocabulary)} tokens, this run's "
                f"{len(self.vocabulary)}, or others; use the tokenizer it was trained with"
            )


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint's plain data and tensors, on the CPU. Nothing in the file is executed.

    Raises:
        UserError: the file is missing, or no checkpoint, or holds more than plain data.
    """
    try:
        with path.open("rb") as file:
            begins = file.read(len(_ZIP))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    if begins not in (_ZIP, b""):
        raise UserError(f"{path}: not a checkpoint; give one that train.py wrote")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise a dozen types
        if "weights_only" in str(error).lower():
            raise UserError(
                f"{path}: holds more than plain data, so opening it could run code; give one "
                "that train.py wrote"
            ) from None
        raise UserError(
            f"{path}: a damaged checkpoint, perhaps cut short; use another copy of it, or "
            "another checkpoint of its run, such as best.ckpt"
        ) from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: not a musicgen checkpoint; give one that train.py wrote")
    return loaded


def check_resume(path: Path, content: CheckpointContent, model: nn.Module) -> None:
    """Refuse to go on from a checkpoint that is damaged, or of another model or tokenizer.

    Raises:
        UserError: names the settings that differ.
    """
    checkpoint = read_checkpoint(path)
    with _naming(path):
        saved = CheckpointContent.from_plain(checkpoint)
        content.check_same_vocabulary(saved)
        here, there = _settings(content.model, "model"), _settings(saved.model, "model")
        differing = [
            f"{name}={there[name]} (not {here[name]})"
            for name in there.keys() & here.keys()  # later versions may have more settings
            if there[name] != here[name] and name.rpartition(".")[2] not in _MAY_CHANGE
        ]
        if differing:
            raise UserError(
                f"the run has {', '.join(sorted(differing))}; a resumed run keeps its model and "
                "tokenizer, and may change trainer, data, logger and callbacks: leave the rest "
                "out, or train anew without resume"
            )
        _load_weights(model, checkpoint)


def _settings(config: Any, name: str) -> dict[str, Any]:
    """Settings by their names on the command line; a group's own is its class."""
    if not isinstance(config, Mapping):
        return {name: config}
    found = {name: str(config.get("_target_")).rpartition(".")[2]}
    for key, value in config.items():
        if not key.startswith("_"):
            found |= _settings(value, f"{name}.{key}")
    return found


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say of which file a mistake is."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _load_weights(model: nn.Module, checkpoint: Mapping[str, Any]) -> None:
    saved, prefix = checkpoint.get("state_dict"), "model."
    if not isinstance(saved, Mapping):
        raise UserError("it holds no weights; use another")
    weights = {
        name.removeprefix(prefix): tensor
        for name, tensor in saved.items()
        if name.startswith(prefix)
    }
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise UserError("its weights do not fit its configuration; use another") from None


def rebuild(path: Path) -> tuple[Transformer, Tokenizer, CheckpointContent]:
    """Model (in evaluation mode, on the CPU), tokenizer and content from a checkpoint alone.

    Raises:
        UserError: the file is no checkpoint of ours, or its configuration names anything but
            the classes of a model or a tokenizer of musicgen.
    """
    checkpoint = read_checkpoint(path)
    with _naming(path):
        content = CheckpointContent.from_plain(checkpoint)
        tokenizer = _build(content.tokenizer, Tokenizer)
        if tokenizer.vocabulary.hash != content.vocabulary_hash:
            raise UserError("its vocabulary is not the one its tokenizer makes; use another")
        model = _build(content.model, Transformer, vocab_size=len(tokenizer.vocabulary))
        _load_weights(model, checkpoint)
    return model.eval(), tokenizer, content


def _build(config: Any, base: type, **kwargs: Any) -> Any:
    """An object of our class `base` from a stranger's configuration."""
    check_targets(config)
    if not isinstance(config, Mapping) or "_target_" not in config:
        raise UserError(f"its configuration has no {base.__name__}; use another")
    try:
        built = hydra.utils.instantiate(config, _convert_="all", **kwargs)
    except hydra.errors.InstantiationException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"its configuration cannot be built ({reason})") from None
    if not isinstance(built, base):
        raise UserError(f"its configuration makes no {base.__name__}; use another")
    return built


def check_targets(config: Any, allowed: tuple[type, ...] = _ALLOWED) -> None:
    """Refuse a configuration that names anything but classes of ours: of models and tokenizers.

    Hydra would import and call whatever `_target_` says. A name must lead to a class that is
    defined in musicgen (not only reachable through it) and derives from one of `allowed`.

    Raises:
        UserError: names the target.
    """
    if isinstance(config, Mapping):
        for key, value in config.items():
            if key == "_target_":
                _check_target(value, allowed)
            elif isinstance(key, str) and key.startswith("_") and key != "_partial_":
                raise UserError(f"its configuration has {key}, which is refused")
            else:
                check_targets(value, allowed)
    elif isinstance(config, list | tuple):
        for value in config:
            check_targets(value, allowed)
    elif isinstance(config, str) and "${" in config:
        raise UserError(f"its configuration holds an interpolation ({config}), which is refused")


def _check_target(target: Any, allowed: tuple[type, ...]) -> None:
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


def parameter_count(model: nn.Module) -> int:
    """Trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
