"""The plain data that a checkpoint adds to Lightning's, and how training starts from it.

A run is resumed, or a new run begins with the weights of another.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import InstanceOf
from torch import Tensor, nn
from typing_extensions import TypeAliasType, TypedDict

from musicgen.errors import UserError
from musicgen.run_folders import FORMAT_VERSION
from musicgen.text import pluralize
from musicgen.tokenization.vocabulary import Vocabulary
from musicgen.validation import check_schema

CONTENT_KEY = "musicgen"
# Settings that distinguish runs: not their seeds, folders and logging.
_SECTIONS = ("model", "tokenizer", "data", "loader", "task", "optimizer", "scheduler")
_TRAINER = ("max_steps", "max_epochs", "accumulate_grad_batches", "gradient_clip_val", "precision")
_CALLBACKS = ("weight_averaging", "redraw_features")  # which change the weights
_LEFT_OUT = {"seed", "val_seed", "root", "cache_dir", "num_workers", "prepare_workers"}
_MAY_CHANGE = ("dropout", "backend")  # settings of a model that do not affect its weights
# Settings of an optimizer that do not affect its state.
_MAY_CHANGE_OPTIMIZER = ("lr", "betas", "eps", "weight_decay", "momentum", "adamw_lr")
_LISTED = ("optimizer", "scheduler", "seed", "data", "loader", "trainer", "callbacks", "task")
_NOT_LISTED = re.compile(r"(path|dir|folder)$")  # these change if a run is moved
_Counts = TypeAliasType("_Counts", "dict[str, _Counts | int | bool]")
_TOKEN_ROWS = ("inputs.embedding.", "inputs.lag_", "head.", "copy_head.embedding.")  # by token
# Parts of a model that a new run may add, by the setting, and where their weights are.
_ADDED = {"copy": ("copy head", "copy_head."), "musical_key": ("key embedding", "inputs.key.")}


class _Config(TypedDict, total=False):
    """The sections of a run's configuration that are read from checkpoints."""

    data: dict[str, Any]
    loader: dict[str, Any]
    sampling: dict[str, Any] | None
    trainer: dict[str, Any] | None
    init: str | None


@dataclass(frozen=True)
class CheckpointContent:
    """Plain data that a model and its tokenizer are rebuilt from.

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


class _OptimizerState(TypedDict):
    state: dict[int | str, dict[str, InstanceOf[Tensor] | int | float | None]]
    param_groups: list[dict[str, Any]]


class _TrainingState(TypedDict):
    """What Lightning restores of a run, apart from its weights."""

    epoch: int
    loops: dict[str, _Counts]
    callbacks: dict[str, dict[str, Any]]
    optimizer_states: list[_OptimizerState]
    lr_schedulers: list[dict[str, bool | int | float | list[Any] | dict[str, Any] | None]]


def load_for_resume(
    checkpoint: Mapping[str, Any], content: CheckpointContent, model: nn.Module
) -> list[str]:
    """Load a checkpoint's weights into the model of a run that resumes from it.

    Returns:
        The settings that are new, as `optimizer.lr=0.001 (was 0.002)`.

    Raises:
        UserError: the model, tokenizer, optimizer or schedule differs: names the settings.
    """
    saved = CheckpointContent.from_plain(checkpoint)
    check_schema(_TrainingState, checkpoint)
    if saved.vocabulary_hash != content.vocabulary_hash:
        raise UserError(
            f"the checkpoint's vocabulary ({len(saved.vocabulary)} tokens) differs from this "
            f"run's ({len(content.vocabulary)}); use the tokenizer it was trained with"
        )
    kept, changed = _different_model(saved, content), []
    for section in _LISTED:
        here, there = (_settings(c.config.get(section), section) for c in (content, saved))
        for name in [*here, *(there.keys() - here.keys())]:
            new, old = here.get(name, "null"), there.get(name, "null")
            group, _, key = name.rpartition(".")
            of_another_class = here.get(group) != there.get(group)
            if new == old or of_another_class or _NOT_LISTED.search(name):
                continue
            stays = section == "optimizer" and key not in _MAY_CHANGE_OPTIMIZER
            if stays or name == "scheduler":
                kept.append(f"{name}={old} (not {new})")
            else:
                changed.append(f"{name}={new} (was {old})")
    if kept:
        raise UserError(
            f"the run has {', '.join(kept)}; a resumed run keeps its model, tokenizer, optimizer "
            "and schedule, and may change trainer, data, logger, callbacks and learning rates: "
            "leave these settings out, or begin a new run from its weights with init="
        )
    load_weights(model, state_weights(checkpoint))
    return changed


def load_initial(
    checkpoint: Mapping[str, Any], content: CheckpointContent, model: nn.Module
) -> str | None:
    """Load a checkpoint's weights into the model of a new run.

    If the vocabularies differ, the weights of each token are taken over by its name. New tokens
    stay as they were initialised, and so do a copy head and an embedding of musical keys unless the
    checkpoint has one of the same sizes.

    Returns:
        What is new and what is left out, in one line; None if all weights are loaded.

    Raises:
        UserError: the model differs: names the settings.
    """
    saved = CheckpointContent.from_plain(checkpoint)
    if differing := _different_model(saved, content, but=_ADDED):
        raise UserError(
            f"its model has {', '.join(differing)}; weights fit only the model that they were "
            "trained in: leave these settings out, or train without init"
        )
    weights, initial, notes = state_weights(checkpoint), model.state_dict(), []
    if saved.vocabulary_hash != content.vocabulary_hash:
        old, new = saved.vocabulary, content.vocabulary
        notes += [*_missing(new, old, "tokens initialised"), *_missing(old, new, "tokens left out")]
        weights |= _rows_by_name(old, new, weights, initial)
    for part, prefix in _ADDED.values():
        theirs, ours = (
            {name: x.shape for name, x in each.items() if name.startswith(prefix)}
            for each in (weights, initial)
        )
        if theirs != ours:
            notes.append(f"a new {part}" if ours else f"without its {part}")
            weights = {name: tensor for name, tensor in weights.items() if name not in theirs}
            weights |= {name: initial[name] for name in ours}
    load_weights(model, weights)
    return "; ".join(notes) or None


def _missing(tokens: Sequence[str], others: Sequence[str], what: str) -> list[str]:
    """Return how many of the tokens are not among the others, with the first of them."""
    missing = sorted({*tokens} - {*others})
    first = ", ".join(missing[:4]) + (", …" if len(missing) > 4 else "")
    return [f"{pluralize(len(missing), what)} ({first})"] if missing else []


def _rows_by_name(
    old: Sequence[str],
    new: Sequence[str],
    weights: Mapping[str, Tensor],
    initial: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return the weights with a row per token: old rows, and initial rows of new tokens."""
    old_rows = {token: row for row, token in enumerate((*old, Vocabulary.PAD))}
    new_rows = {token: row for row, token in enumerate((*new, Vocabulary.PAD))}
    shared = [token for token in new_rows if token in old_rows]
    target, source = ([rows[token] for token in shared] for rows in (new_rows, old_rows))
    mapped = {}
    for name in initial.keys() & weights.keys():
        if name.startswith(_TOKEN_ROWS):
            rows, saved = initial[name].clone(), weights[name]
            if saved.shape != (len(old_rows), *rows.shape[1:]):
                raise UserError("its weights do not fit its vocabulary; use another")
            rows[target] = saved[source].to(rows.dtype)
            mapped[name] = rows
    return mapped


def _different_model(
    saved: CheckpointContent, content: CheckpointContent, but: Collection[str] = ()
) -> list[str]:
    """Return the settings, `but` some, that differ between a checkpoint's model and this run's."""
    models = ({k: v for k, v in c.model.items() if k not in but} for c in (content, saved))
    here, there = (_settings(model, "model") for model in models)
    return [
        f"{name}={there[name]} (not {here[name]})"
        for name in sorted(there.keys() & here.keys())
        if there[name] != here[name] and name.rpartition(".")[2] not in _MAY_CHANGE
    ]


def _settings(config: Any, name: str) -> dict[str, Any]:
    """Return settings by their names on the command line; the value of a group is its class."""
    if not isinstance(config, Mapping):
        return {name: "null" if config is None else config}
    found = {name: class_name(config) or "{…}"}
    for key, value in config.items():
        if not str(key).startswith("_"):
            found |= _settings(value, f"{name}.{key}")
    return found


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
