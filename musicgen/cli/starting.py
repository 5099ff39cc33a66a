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
from musicgen.cli.resume_arguments import given_overrides
from musicgen.errors import errors_name
from musicgen.models import Transformer
from musicgen.package_data import CONF

_GROUPS = {name: f"model.{name}" for name in ("position", "attention", "span")}
_SECTIONS = ("model", "tokenizer", "sampling")
_LENGTH = "loader.length"


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
    source: Source,
    model: Transformer,
    content: CheckpointContent,
    *,
    resume: bool,
) -> list[str]:
    """Load the weights that a run continues or begins from; return what to tell the user.

    Args:
        content: of this run.
    """
    described = source.content.describe(source.path)
    with errors_name(source.path):
        if resume:
            changed = load_for_resume(source.checkpoint, content, model)
            since = f"from step {source.content.steps:,} on: {', '.join(changed)}"
            return [f"continues {described}", *([since] if changed else [])]
        note = load_initial(source.checkpoint, content, model)
    return [f"begins with the weights of {described}", *([note] if note else [])]


def adopt_settings(cfg: DictConfig, content: CheckpointContent) -> None:
    """Take `model`, `tokenizer`, `sampling` and `loader.length` from a checkpoint.

    What the command line sets stays. The checkpoint may come from an untrusted source.
    """
    saved: Any = {"model": content.model, "tokenizer": content.tokenizer}
    if sampling := content.config.get("sampling"):
        saved["sampling"] = sampling
    loader = content.config.get("loader")
    if isinstance(loader, Mapping) and "length" in loader:
        saved["loader"] = {"length": loader["length"]}
    check_targets(saved)
    given = set(_given_settings(cfg))
    with open_dict(cfg):
        if "loader" in saved and _LENGTH not in given:
            OmegaConf.update(cfg, _LENGTH, saved["loader"]["length"])
        here = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True))
        merged = OmegaConf.create(saved)
        for name in given - {_LENGTH}:
            OmegaConf.update(merged, name, OmegaConf.select(here, name), merge=False)
        for section in _SECTIONS:
            if section in merged:
                cfg[section] = merged[section]


def _given_settings(cfg: DictConfig) -> Iterator[str]:
    """Yield which of these settings the command line sets, directly, by a group or experiment."""
    given = [override.lstrip("+~").partition("=") for override in given_overrides()]
    names = [name for name, _, _ in given]
    for name, _, value in given:
        names += _experiment_settings(value) if name == "experiment" else []
    for name in names:
        if name == "task":
            yield from ("tokenizer", "sampling")
        elif name == "model":
            yield from (f"model.{key}" for key in cfg.model if key not in _GROUPS)
        elif name in _GROUPS:
            yield _GROUPS[name]
        elif name == _LENGTH or name.partition(".")[0] in _SECTIONS:
            yield name


def _experiment_settings(name: str) -> list[str]:
    """Return the groups and settings that the file of an experiment names, and those it extends."""
    file: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"experiment/{name}.yaml"))
    names = []
    for entry in file.pop("defaults", []):
        if isinstance(entry, dict):
            names += [group.partition("/")[2] for group in entry]  # "override /optimizer"
        elif entry != "_self_":
            names += _experiment_settings(entry)
    for section in (*_SECTIONS, "loader"):
        names += [f"{section}.{key}" for key in file.get(section, {})]
    return names
