"""Convert checkpoints of earlier formats to the current one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from musicgen.checkpoints.content import CONTENT_KEY

_CORPORA = {
    "musicgen.data.composer.source.Composer": "ComposedCorpus",
    "musicgen.data.midi_folder.MidiFolder": "MidiFolder",
    "musicgen.data.pop909.POP909": "POP909",
    "musicgen.data.pop1k7.Pop1K7": "Pop1K7",
    "musicgen.data.groove2groove.Groove2GrooveMIDI": "Groove2GrooveMIDI",
    "musicgen.data.muspy_dataset.MuspyDataset": "MuspyDataset",
}
_MOVED = {
    "musicgen.training.optim.warmup_cosine": "musicgen.training.schedules.warmup_cosine",
    "musicgen.training.callbacks.FollowSpan": "musicgen.training.callbacks.UpdateSpanWindow",
}
# Settings of the data module in format 1; all others belonged to the corpus.
_LOADER_SETTINGS = frozenset(
    {
        "cache_dir",
        "length",
        "batch_size",
        "batches_per_epoch",
        "val_fraction",
        "test_fraction",
        "seed",
        "num_workers",
        "prepare_workers",
        "limits",
        "chords",
    }
)


# Encodings that had no `site`: they encoded the features of every linear attention.
_ROTARY = frozenset({"RoPE", "PermuteFormer", "UnitaryLRPE", "OrthogonalLRPE", "PermutationLRPE"})


def migrate(checkpoint: dict[str, Any]) -> None:
    """Convert a loaded checkpoint in place; leave one of the current format unchanged.

    Format 1 named a layer's attention `kernel`, and its data section was the corpus itself. Until
    encodings had a `site`, in format 2, rotary ones encoded the features of FAVOR+.
    """
    content = checkpoint.get(CONTENT_KEY)
    if not isinstance(content, Mapping):
        return
    if content.get("format_version") == 1:
        content = _migrate_format1(checkpoint, content)
    for config in (content, content.get("config")):
        position = _entry(config, "model", "position")
        features = _entry(config, "model", "attention", "feature_map")
        if _class_name(position) in _ROTARY and _class_name(features) == "FAVOR":
            position.setdefault("site", "feature")


def _entry(config: Any, *keys: str) -> Any:
    """Return a nested entry of a configuration, or None."""
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config


def _class_name(config: Any) -> str:
    return str(_entry(config, "_target_")).rpartition(".")[2]


def _migrate_format1(checkpoint: dict[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    state = checkpoint.get("state_dict")
    if isinstance(state, dict):
        for name in list(state):  # in this order, so that the order of the entries stays
            state[re.sub(r"(layers\.\d+\.)kernel\.", r"\1attention.", name)] = state.pop(name)
    content = {**_rename_targets(content), "format_version": 2}
    config = content.get("config")
    if isinstance(config, dict) and isinstance(config.get("data"), dict):
        config["data"] = _separate_corpus(config["data"])
    checkpoint[CONTENT_KEY] = content
    return content


def _rename_targets(config: Any) -> Any:
    if isinstance(config, Mapping):
        return {
            key: _MOVED.get(value, value)
            if key == "_target_" and isinstance(value, str)
            else _rename_targets(value)
            for key, value in config.items()
        }
    return [_rename_targets(value) for value in config] if isinstance(config, list) else config


def _separate_corpus(data: dict[str, Any]) -> dict[str, Any]:
    """Move the corpus's class and settings to `corpus`; the settings stay beside it too."""
    target = data.get("_target_")
    if target not in _CORPORA:
        return data
    settings = {k: v for k, v in data.items() if k not in _LOADER_SETTINGS and k != "_target_"}
    corpus = {"_target_": f"musicgen.data.corpora.{_CORPORA[target]}", **settings}
    return {**data, "_target_": "musicgen.data.loading.MusicDataModule", "corpus": corpus}
