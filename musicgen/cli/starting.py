"""What a run starts from: the checkpoint that it continues, or the weights of another run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf, open_dict

from musicgen.checkpoints import (
    CheckpointContent,
    check_targets,
    find_checkpoint,
    load_for_resume,
    load_initial,
    read_checkpoint,
)
from musicgen.cli.arguments import override_key
from musicgen.cli.resume import given_overrides
from musicgen.errors import errors_name
from musicgen.models import Transformer

_GROUPS = ("position", "attention", "span")
_SECTIONS = ("model", "tokenizer", "sampling", "loader")


class Source(NamedTuple):
    """The checkpoint that a run starts from."""

    path: Path
    checkpoint: dict[str, Any]
    content: CheckpointContent


def read_source(cfg: DictConfig) -> Source | None:
    """Read the checkpoint that a run continues or begins from; take over its model's settings."""
    if cfg.resume is None and cfg.init is None:
        return None
    path = find_checkpoint(cfg.init, setting="init") if cfg.resume is None else Path(cfg.resume)
    checkpoint = read_checkpoint(path)
    with errors_name(path):
        content = CheckpointContent.from_plain(checkpoint)
        adopt_settings(cfg, content)
    cfg.init = str(path) if cfg.resume is None else content.config.get("init")  # for the record
    return Source(path, checkpoint, content)


def load_source(
    source: Source, model: Transformer, content: CheckpointContent, *, resume: bool
) -> list[str]:
    """Load the weights that a run continues or begins from; return what to tell the user.

    Args:
        content: of this run.
    """
    described = source.content.describe(source.path)
    with errors_name(source.path):
        if not resume:
            note = load_initial(source.checkpoint, content, model)
            return [f"begins with the weights of {described}", *([note] if note else [])]
        changed = load_for_resume(source.checkpoint, content, model)
    since = f"from step {source.content.steps:,} on: {', '.join(changed)}"
    return [f"continues {described}", *([since] if changed else [])]


def adopt_settings(cfg: DictConfig, content: CheckpointContent) -> None:
    """Take `model`, `tokenizer`, `sampling` and `loader.length` from a checkpoint.

    What the command line sets stays. The checkpoint may come from an untrusted source.
    """
    saved: Any = {"model": content.model, "tokenizer": content.tokenizer}
    if sampling := content.config.get("sampling"):
        saved["sampling"] = sampling
    loader = content.config.get("loader")
    length = loader.get("length") if isinstance(loader, Mapping) else None
    check_targets(saved)
    here = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True))
    adopted = OmegaConf.create({**saved, "loader": {"length": length or cfg.loader.length}})
    for name in _given_settings(cfg):
        OmegaConf.update(adopted, name, OmegaConf.select(here, name), merge=False)
    with open_dict(cfg):
        cfg.loader.length = adopted.loader.length
        for section in saved:
            cfg[section] = adopted[section]


def _given_settings(cfg: DictConfig) -> Iterator[str]:
    """Yield which of these settings the command line sets, directly or through a group."""
    for override in given_overrides():
        name = override_key(override)
        if name == "task":
            yield from ("tokenizer", "sampling")
        elif name == "model":
            yield from (f"model.{key}" for key in cfg.model if key not in _GROUPS)
        elif name == "experiment" and cfg.optimizer.get("train") is not None:
            yield from ("model.copy", "loader.length")  # it trains a part that it adds
        elif name in _GROUPS:
            yield f"model.{name}"
        elif name.partition(".")[0] in _SECTIONS:
            yield name
