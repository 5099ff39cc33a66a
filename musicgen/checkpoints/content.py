"""The plain data that a checkpoint adds to Lightning's entries, and the identity of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from typing_extensions import TypedDict

from musicgen.errors import UserError
from musicgen.run_folders import FORMAT_VERSION
from musicgen.text import pluralize
from musicgen.validation import check_schema

CONTENT_KEY = "musicgen"
# Settings that distinguish runs: not their seeds, folders and logging.
_SECTIONS = ("model", "tokenizer", "data", "loader", "task", "optimizer", "scheduler")
_TRAINER = ("max_steps", "max_epochs", "accumulate_grad_batches", "gradient_clip_val", "precision")
_CALLBACKS = ("weight_averaging", "redraw_features")  # which change the weights
_LEFT_OUT = {"seed", "val_seed", "root", "cache_dir"}
_LEFT_OUT |= {"num_workers", "prepare_workers"}


class _Config(TypedDict, total=False):
    """The sections of a run's configuration that are read from checkpoints."""

    data: dict[str, Any]
    loader: dict[str, Any]
    sampling: dict[str, Any] | None
    init: str | None


@dataclass(frozen=True)
class CheckpointContent:
    """Plain data from which a model and its tokenizer are rebuilt.

    Attributes:
        model, tokenizer: configurations with `_target_`s; only music has a tokenizer.
        vocabulary: the tokens in id order; its hash is `Vocabulary.hash`.
        config: the resolved configuration of the run.
        sampling: values of `SamplingParams` for this model, such as learned `max_notes`, or None.
        identity: of the run, see `run_identity`; "" if unknown.
        steps: optimizer steps taken; stored by Lightning, not among this data.
    """

    model: dict[str, Any]
    tokenizer: dict[str, Any] | None
    vocabulary: list[str]
    vocabulary_hash: str
    config: dict[str, Any]
    sampling: dict[str, Any] | None = None
    identity: str = ""
    format_version: int = FORMAT_VERSION
    steps: int = 0

    @classmethod
    def from_plain(cls, checkpoint: Mapping[str, Any]) -> CheckpointContent:
        """Return the content of a loaded checkpoint."""
        content = checkpoint.get(CONTENT_KEY)
        if not isinstance(content, Mapping):
            raise UserError("not a musicgen checkpoint; give one that train.py wrote")
        if (version := content.get("format_version")) != FORMAT_VERSION:
            known = f"this musicgen reads format {FORMAT_VERSION}"
            raise UserError(
                f"checkpoint format {version}, but {known}; use the version that wrote it"
            )
        try:
            found = cls(**{**content, "steps": checkpoint.get("global_step", 0)})
            for name, kind in {**get_type_hints(cls), "config": _Config}.items():
                check_schema(kind, getattr(found, name), name)
        except (TypeError, UserError) as error:  # fields are missing, or of other types
            raise UserError(f"a damaged musicgen checkpoint ({error}); use another") from None
        return found

    def to_plain(self) -> dict[str, Any]:
        """Return the data that a checkpoint stores under `CONTENT_KEY`."""
        return {name: value for name, value in asdict(self).items() if name != "steps"}

    def describe(self, path: str | Path) -> str:
        """Return a line that describes the checkpoint: its file, steps, corpus and tokenizer."""
        corpus = self.config.get("data") or {}
        where = f" in {corpus['root']}" if corpus.get("root") else ""
        tokenizer = f", tokenizer {class_name(self.tokenizer)}" if self.tokenizer else ""
        steps = pluralize(self.steps, "steps")
        return f"{path}: {steps} on {class_name(corpus)}{where}{tokenizer}"


def class_name(config: Any) -> str:
    """Return the name of the class that a part of a configuration builds."""
    if not isinstance(config, Mapping):
        return ""
    return str(config.get("_target_", "")).rpartition(".")[2]


def run_identity(config: Mapping[str, Any]) -> str:
    """Return a hash of the model, data and training settings of a run: 16 hexadecimal digits.

    Runs that differ only in seeds, worker processes, folders and logging have the same identity.

    Args:
        config: of the run, as plain data.
    """
    trainer, callbacks = (config.get(name) or {} for name in ("trainer", "callbacks"))
    decisive = {
        **{name: config.get(name) for name in (*_SECTIONS, "init")},
        **{f"trainer.{name}": trainer.get(name) for name in _TRAINER},
        **{f"callbacks.{name}": callbacks.get(name) for name in _CALLBACKS},
    }
    text = json.dumps(without(decisive, _LEFT_OUT), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def without(config: Any, left_out: Set[str]) -> Any:
    """Return a configuration without the settings that have these names, at any depth."""
    if isinstance(config, Mapping):
        return {k: without(v, left_out) for k, v in config.items() if k not in left_out}
    if isinstance(config, list):
        return [without(value, left_out) for value in config]
    return config
