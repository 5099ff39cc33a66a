"""Read checkpoints, rebuild models and tokenizers from them, and write models as folders.

A folder to publish has config.json, tokenizer.json, model.safetensors and README.md: a checkpoint
without the state of training and without paths.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from typing_extensions import TypedDict

import musicgen
from musicgen.attention import FeatureMap, redraw_features
from musicgen.checkpoints.building import build, check_sizes
from musicgen.checkpoints.content import (
    CONTENT_KEY,
    CheckpointContent,
    class_name,
    load_weights,
    state_weights,
    without,
)
from musicgen.errors import ParameterError, UserError, errors_name
from musicgen.files import atomic_path, read_json, regular_size, write_json, write_text
from musicgen.models import Transformer
from musicgen.position import SPE, SineSPE
from musicgen.random import NoiseKey, RandomStream
from musicgen.text import markdown
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.coordinates import Coordinates, match_classes
from musicgen.validation import check_choice, check_int, check_schema

_MOST_PICKLED = 2**26  # bytes of what a checkpoint holds besides tensors
_MOST_ENTRIES = 2**22
_DEEPEST = 50
CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
CARD = "README.md"  # with the front matter that the Hub reads
_ENTRIES = ("identity", "format_version", "model", "sampling", "config")  # of config.json
_DTYPES = ("float32", "float16", "bfloat16")
_SECTIONS = ("data", "loader", "sampling")  # of a run's configuration, needed for generation
_PATHS = frozenset({"root", "cache_dir", "drummers"})  # settings that are paths
_SCORES = (
    "printed scores: OpenScore Lieder (CC0 1.0), or the Polish scores and Chopin's (CC BY 4.0; "
    "credit: The Fryderyk Chopin Institute, Heritage of Polish Music in Open Access)"
)
_LICENCES = {  # of corpora, see data/README.md
    "ComposedCorpus": (
        "music of this project's own seeded composer, MIT like the project; with data.drummers "
        "drums of the Groove MIDI Dataset (CC BY 4.0; credit: Google LLC)"
    ),
    "BachChorales": "chorales by J. S. Bach, in the public domain, from files that state no terms",
    "JSBChorales": "chorales by J. S. Bach, in the public domain; the data set states no licence",
    "POP909": "the annotations are under MIT; the songs are commercial ones",
    "Pop1K7": "transcribed covers of commercial songs; no licence is stated",
    "ScoreFolder": _SCORES,
    "Songbook": f"{_SCORES}; and music of this project's own composer",
    "Groove2GrooveMIDI": "CC BY-NC 4.0, which allows no commercial use",
}
_UNKNOWN = "its licence is not recorded here: publish the model only if you know it"
_TEXT = """\
---
library_name: musicgen-symbolic
tags: [music, symbolic-music, midi]
---
# A symbolic-music model

Run `pip install -e .` in a copy of the musicgen repository, then in Python:

```python
import musicgen

musicgen.load("FOLDER").generate("song.mid", bars=16)
```

{table}
It was trained on {data}.
"""


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
        elif isinstance(value, Tensor):
            dense = value.layout == torch.strided and value.device.type == "cpu"
            dense = dense and not (value.is_nested or value.is_quantized)
            if not dense or value.nbytes > value.untyped_storage().nbytes():
                raise UserError("a tensor without memory for its values; use another")


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
        build_model = partial(
            build,
            content.model,
            Transformer,
            vocab_size=len(tokenizer.vocabulary),
            match_classes=match_classes(tokenizer),
            coordinates=Coordinates(tokenizer).of,
        )
        check_sizes(content.model, weights, build_model)
        model: Transformer = build_model()
        load_weights(model, weights)
    return model.eval(), tokenizer, content


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
    changed: Transformer = build(
        config,
        Transformer,
        vocab_size=model.head.out_features,
        match_classes=model.match_classes,
        coordinates=model.coordinates,
    )
    weights = model.state_dict()
    redraw_features(changed, NoiseKey((seed, RandomStream.FEATURE_REDRAW)))
    maps = (m for m in changed.named_modules() if isinstance(m[1], FeatureMap))
    for name, module in maps:
        weights |= {f"{name}.{each}": tensor for each, tensor in module.named_buffers()}
    changed.load_state_dict(weights)
    return changed.to(model.head.weight.device).eval(), replace(content, model=config)


def write_folder(
    content: CheckpointContent, weights: Mapping[str, Tensor], folder: Path, dtype: str
) -> None:
    """Write a model as a folder; an existing README.md is not replaced.

    Args:
        weights: the state of the model.
        dtype: of the stored fp32 weights: `float32`, or `float16` or `bfloat16` for half the size.

    Raises:
        UserError: `dtype` is unknown, or a weight is too large for `float16`.
    """
    check_choice("dtype", dtype, _DTYPES)
    stored = {name: _stored(name, tensor, dtype) for name, tensor in weights.items()}
    sections = {name: content.config[name] for name in _SECTIONS if name in content.config}
    plain = {
        **{name: getattr(content, name) for name in ("steps", *_ENTRIES)},
        "config": without(sections, _PATHS),
        "version": musicgen.__version__,
        "sha256": checksum(stored),
    }
    folder.mkdir(parents=True, exist_ok=True)
    build(content.tokenizer, Tokenizer).save(folder / TOKENIZER)
    with atomic_path(folder / WEIGHTS) as path:
        save_file(stored, path)
    if not (folder / CARD).exists():
        num_weights = sum(tensor.numel() for tensor in weights.values())
        write_text(folder / CARD, model_card(content, num_weights))
    write_json(folder / CONFIG, plain)  # the last file: with it, the folder is a model


def model_card(content: CheckpointContent, num_weights: int) -> str:
    """Return a description of a model in Markdown: a table, and its training data."""
    model = content.model
    parts = model["attention"], model["attention"].get("feature_map")
    attention = " with ".join(filter(None, map(class_name, parts)))
    rows = {
        "weights": f"{num_weights:,}",
        "layers × width": f"{model['num_layers']} × {model['dim']}",
        "attention": attention + (", and a copy head" if model.get("copy") is not None else ""),
        "position": class_name(model["position"]),
        "tokenizer": f"{class_name(content.tokenizer)}, {len(content.vocabulary):,} tokens",
        "training": f"{content.steps:,} steps on windows of {content.config['loader']['length']:,}"
        " tokens",
    }
    corpus = class_name(content.config.get("data")) or "a corpus"
    table = markdown([{"": name, " ": value} for name, value in rows.items()])
    return _TEXT.format(table=table, data=f"{corpus}: {_LICENCES.get(corpus, _UNKNOWN)}")


def _stored(name: str, tensor: Tensor, dtype: str) -> Tensor:
    # A copy, as safetensors refuses tensors that share memory.
    tensor = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    if tensor.dtype != torch.float32:
        return tensor
    stored = tensor.to(getattr(torch, dtype))
    if stored.isinf().any() and not tensor.isinf().any():
        raise UserError(f"{name} has weights beyond the range of {dtype}; use bfloat16")
    return stored


def read_folder(folder: Path) -> dict[str, Any]:
    """Return a folder of `write_folder` in the form of `read_checkpoint`; no code in it is run.

    Raises:
        UserError: a file is missing or damaged, or they do not belong together.
    """
    path = folder / CONFIG
    plain = read_json(path)
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    kind = type(tokenizer)
    try:
        content = {
            **{name: plain[name] for name in _ENTRIES},
            "tokenizer": {
                "_target_": f"{kind.__module__}.{kind.__qualname__}",
                **tokenizer.settings(),
            },
            "vocabulary": list(tokenizer.vocabulary.names),
            "vocabulary_hash": tokenizer.vocabulary.hash,
        }
        steps, sha256 = plain["steps"], plain["sha256"]
    except (KeyError, TypeError):
        raise UserError(f"{path}: not the configuration of a musicgen model") from None
    path = folder / WEIGHTS
    regular_size(path)
    try:
        weights = load_file(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except SafetensorError:
        raise UserError(f"{path}: not a safetensors file, or cut short; use another copy") from None
    if checksum(weights) != sha256:
        raise UserError(f"{path}: damaged, or not that of {CONFIG}; use another copy")
    state = {f"model.{name}": tensor for name, tensor in weights.items()}
    return {"state_dict": state, "global_step": steps, CONTENT_KEY: content}


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors with their names, shapes and types."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
