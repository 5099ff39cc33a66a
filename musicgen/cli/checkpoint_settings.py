"""Settings of a run that resumes, or begins with the weights of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from musicgen.checkpoints import CheckpointContent, check_targets

_GROUPS = {name: f"model.{name}" for name in ("position", "attention", "span")}
_SECTIONS = ("model", "tokenizer", "sampling")
_LENGTH = "loader.length"


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
    """Yield which of these settings the command line sets, directly or through a group."""
    overrides = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    for override in overrides:
        name = override.lstrip("+~").partition("=")[0]
        if name == "experiment":
            yield from (*_SECTIONS, _LENGTH)
        elif name == "task":
            yield from ("tokenizer", "sampling")
        elif name == "model":
            yield from (f"model.{key}" for key in cfg.model if key not in _GROUPS)
        elif name in _GROUPS:
            yield _GROUPS[name]
        elif name == _LENGTH or name.partition(".")[0] in _SECTIONS:
            yield name
