"""Read checkpoints, and rebuild models and tokenizers from them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from musicgen.attention import FeatureMap
from musicgen.checkpoints.building import build, check_sizes
from musicgen.checkpoints.content import CheckpointContent, class_name
from musicgen.checkpoints.folders import read_folder
from musicgen.errors import ParameterError, UserError, errors_name
from musicgen.files import regular_size
from musicgen.models import Transformer
from musicgen.position import SPE, SineSPE
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.matching import match_classes
from musicgen.validation import check_int, check_schema

_MOST_PICKLED = 2**26  # bytes of what a checkpoint holds besides tensors
_MOST_ENTRIES = 2**22
_DEEPEST = 50


class _Loader(TypedDict):
    length: int
    chords: str


class _MusicConfig(TypedDict):
    """What a model of music needs of its run's configuration."""

    loader: _Loader


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint, loaded on the CPU without running code in it.

    Args:
        path: a file, or a folder that `save_pretrained` wrote.

    Raises:
        UserError: the file is missing or damaged, or it holds more than plain data.
    """
    loaded = read_folder(path) if path.is_dir() else _read_archive(path)
    with errors_name(path):
        _check_extent(loaded)
    return loaded


def _read_archive(path: Path) -> dict[str, Any]:
    """Return the content of a file that torch wrote; an empty one if it is no dictionary."""
    size = regular_size(path)
    try:
        with ZipFile(path) as file:
            entries = file.infolist()
            stored = all(entry.compress_type == ZIP_STORED for entry in entries)
            # Torch compresses nothing. Entries that overlap are together larger than the file.
            if not stored or sum(entry.file_size for entry in entries) > size:
                raise BadZipFile("entries larger than the file")
            for entry in entries:
                if entry.filename.endswith(".pkl") and entry.file_size > _MOST_PICKLED:
                    raise BadZipFile(entry.filename)
            if changed := file.testzip():  # torch writes checksums, but does not compare them
                raise BadZipFile(changed)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, PermissionError) as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception as error:  # damaged files raise exceptions of a dozen types
        if "weights_only" in str(error).lower():
            what = "holds more than plain data, so opening it could run code"
        else:
            what = "not a checkpoint of train.py, or a damaged one"
        raise UserError(
            f"{path}: {what}; use another copy of it, or another checkpoint of its run"
        ) from None
    return loaded if isinstance(loaded, dict) else {}


def _check_extent(data: Any) -> None:
    """Raise `UserError` if data are nested deeply, or larger than the file that holds them.

    A list may hold another one many times, and a tensor may show one number many times.
    """
    waiting, count = [(data, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if count > _MOST_ENTRIES or depth > _DEEPEST:
            raise UserError("more entries than a checkpoint has; use another")
        if isinstance(value, Mapping):
            waiting += [(each, depth + 1) for each in value.values()]
        elif isinstance(value, list | tuple):
            waiting += [(each, depth + 1) for each in value]
        elif isinstance(value, Tensor) and not _has_all_values(value):
            raise UserError("a tensor without memory for its values; use another")


def _has_all_values(tensor: Tensor) -> bool:
    """Return whether a tensor is dense and on the CPU, with memory for each value."""
    dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
    dense = dense and not (tensor.is_nested or tensor.is_quantized)
    return dense and tensor.nbytes <= tensor.untyped_storage().nbytes()


def rebuild(path: Path) -> tuple[Transformer, Tokenizer, CheckpointContent]:
    """Return model (in evaluation mode, on the CPU), tokenizer and content of a checkpoint."""
    checkpoint = read_checkpoint(path)
    with errors_name(path):
        content = CheckpointContent.from_plain(checkpoint)
        if content.tokenizer is None:
            raise UserError(
                f"a model of {class_name(content.config.get('data'))}, not of music; it can be "
                "tested: train.py resume=RUN train=false test=true"
            )
        check_schema(_MusicConfig, content.config)
        tokenizer = build(content.tokenizer, Tokenizer)
        if tokenizer.vocabulary.hash != content.vocabulary_hash:
            raise UserError("its vocabulary differs from that of its tokenizer; use another")
        weights = state_weights(checkpoint)
        vocab_size, classes = len(tokenizer.vocabulary), match_classes(tokenizer)
        tables = {"vocab_size": vocab_size, "match_classes": classes}
        build_model = partial(build, content.model, Transformer, **tables)
        check_sizes(content.model, weights, build_model)
        model: Transformer = build_model()
        load_weights(model, weights)
    return model.eval(), tokenizer, content


def load_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Load a model's weights; raise `UserError` if they do not fit."""
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise UserError("its weights do not fit its configuration; use another") from None


def state_weights(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state of a checkpoint's model."""
    saved, prefix = checkpoint.get("state_dict"), "model."
    if not isinstance(saved, Mapping):
        raise UserError("it holds no weights; use another")
    tensors = {n: t for n, t in saved.items() if isinstance(t, Tensor)}
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def with_realizations(
    model: Transformer, content: CheckpointContent, num_realizations: int | None, *, seed: int = 0
) -> tuple[Transformer, CheckpointContent]:
    """Return the model with another number R of SPE's realizations, and its content.

    No trained weight depends on R. Random features do, because R is the width of encoded queries
    and keys: unless R is the trained one, they are drawn again, as many as in training. The model
    is in evaluation mode.

    Args:
        content: of the model's checkpoint.
        num_realizations: None is the exact limit, which only sine_spe has.
        seed: of the random features.

    Raises:
        UserError: the encoding has no realizations, or no exact limit.
    """
    check_int("num_realizations", num_realizations, none_means="the exact limit")
    if not isinstance(model.position, SPE if num_realizations else SineSPE):
        expected = "only SPE has realizations, and only sine_spe their exact limit (null)"
        raise ParameterError("num_realizations", num_realizations, expected)
    if num_realizations == model.position.num_realizations:
        return model, content
    config = dict(content.model)
    config["position"] = {**config["position"], "num_realizations": num_realizations}
    attention = config["attention"]
    feature_map = attention.get("feature_map") or {}
    if "num_features" in feature_map:
        num_features = next(m.feature_dim for m in model.modules() if isinstance(m, FeatureMap))
        feature_map = {**feature_map, "num_features": num_features}
        config["attention"] = {**attention, "feature_map": feature_map}
    tables = {"vocab_size": model.head.out_features, "match_classes": model.match_classes}
    changed: Transformer = build(config, Transformer, **tables)
    weights = model.state_dict()
    key = NoiseKey((seed, RandomStream.FEATURE_REDRAW))
    maps = (m for m in changed.named_modules() if isinstance(m[1], FeatureMap))
    for i, (name, module) in enumerate(maps):
        module.redraw(key.fold(i))
        weights |= {f"{name}.{each}": tensor for each, tensor in module.named_buffers()}
    changed.load_state_dict(weights)
    return changed.to(model.head.weight.device).eval(), replace(content, model=config)
