"""Read checkpoints, and rebuild models and tokenizers from them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch
from torch import Tensor, nn

from musicgen.checkpoints.building import build, check_sizes
from musicgen.checkpoints.content import CheckpointContent, class_name
from musicgen.checkpoints.folders import read_folder
from musicgen.errors import UserError, errors_name
from musicgen.models import Transformer
from musicgen.tokenization.base import Tokenizer


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint on the CPU, without running code of it.

    A folder is read as `save_pretrained` wrote it.

    Raises:
        UserError: the file is missing, damaged, no checkpoint, or holds more than plain data.
    """
    if path.is_dir():
        return read_folder(path)
    try:
        with ZipFile(path) as file:
            entries = file.infolist()
            # Torch neither compresses nor shares: no file takes more memory than its size.
            size = sum(entry.file_size for entry in entries)
            stored = all(entry.compress_type == ZIP_STORED for entry in entries)
            if not stored or size > path.stat().st_size:
                raise UserError(
                    f"{path}: compressed, as no checkpoint of train.py is; use another copy"
                )
            if changed := file.testzip():  # torch writes checksums, but does not compare them
                raise BadZipFile(changed)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except (FileNotFoundError, PermissionError) as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception as error:  # damaged files raise exceptions of a dozen types
        if "weights_only" in str(error).lower():
            raise UserError(
                f"{path}: holds more than plain data, so opening it could run code; give one "
                "that train.py wrote"
            ) from None
        raise UserError(
            f"{path}: not a checkpoint of train.py, or a damaged one; use another copy of it, or "
            "another checkpoint of its run, such as best.ckpt"
        ) from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: not a musicgen checkpoint; give one that train.py wrote")
    return loaded


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
        tokenizer = build(content.tokenizer, Tokenizer)
        if tokenizer.vocabulary.hash != content.vocabulary_hash:
            raise UserError("its vocabulary differs from that of its tokenizer; use another")
        weights = state_weights(checkpoint)
        build_model = partial(
            build,
            content.model,
            Transformer,
            vocab_size=len(tokenizer.vocabulary),
            match_classes=tokenizer.match_classes,
        )
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
