"""Models as folders to publish: config.json, tokenizer.json, model.safetensors and README.md.

They contain a checkpoint without the state of training and without paths.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import musicgen
from musicgen.checkpoints.building import build
from musicgen.checkpoints.content import CONTENT_KEY, CheckpointContent, class_name, without
from musicgen.errors import UserError
from musicgen.files import atomic_path, read_json, regular_size, write_json, write_text
from musicgen.text import markdown
from musicgen.tokenization.base import Tokenizer
from musicgen.validation import check_choice

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


def write_folder(
    content: CheckpointContent, weights: Mapping[str, Tensor], folder: Path, dtype: str
) -> None:
    """Write a model as a folder; an existing README.md is not replaced.

    Args:
        weights: the state of the model.
        dtype: of the stored fp32 weights: `float32`, or `float16` or `bfloat16` for half the size.

    Raises:
        UserError: `dtype` is none of these, or a weight is too large for `float16`.
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
            "vocabulary": list(tokenizer.vocabulary.tokens),
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
