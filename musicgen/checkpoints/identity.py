"""The identity of a run: what tells two settings apart, whatever their seeds and folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set
from typing import Any

_SECTIONS = ("model", "tokenizer", "data", "loader", "task", "optimizer", "scheduler")
_TRAINER = (
    "max_steps",
    "max_epochs",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "precision",
)
_CALLBACKS = ("weight_averaging", "redraw_features")  # which change the weights
_LEFT_OUT = {
    *("seed", "val_seed"),
    *("root", "cache_dir", "download"),
    *("num_workers", "prepare_workers"),
}


def run_identity(config: Mapping[str, Any]) -> str:
    """Return a hash of what a run trains, on what and how: 16 hexadecimal digits.

    Runs that differ only in their seeds, worker processes, folders and logging have the same one.

    Args:
        config: of the run, as plain data.
    """
    text = json.dumps(decisive_settings(config), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def decisive_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a run's identity is computed from."""
    trainer, callbacks = (config.get(name) or {} for name in ("trainer", "callbacks"))
    decisive = {
        **{name: config.get(name) for name in (*_SECTIONS, "init")},
        **{f"trainer.{name}": trainer.get(name) for name in _TRAINER},
        **{f"callbacks.{name}": callbacks.get(name) for name in _CALLBACKS},
    }
    return {name: without(value, _LEFT_OUT) for name, value in decisive.items()}


def without(config: Any, left_out: Set[str]) -> Any:
    """Return a configuration without the settings of some names."""
    if isinstance(config, Mapping):
        return {k: without(v, left_out) for k, v in config.items() if k not in left_out}
    if isinstance(config, list):
        return [without(value, left_out) for value in config]
    return config
