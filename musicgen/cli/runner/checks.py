"""Checks of arguments and files, before libraries that take seconds to import.

The libraries check their parameters themselves; here stands what a user mistakes most.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.evaluation.prompt_files import SPLITS, prompt_files
from musicgen.run_folders import find_checkpoint
from musicgen.validation import check_bool, check_choice, check_float, check_int


def _check_data(cfg: DictConfig) -> None:
    for key in map(str, cfg.data):
        if OmegaConf.is_missing(cfg.data, key):
            raise UserError(f"data.{key} is missing; give data.{key}=FOLDER")
    root = cfg.data.get("root", ".")
    if not isinstance(root, str) or not root.strip():
        raise ParameterError("data.root", root, "expected a folder")
    target = cfg.data._target_
    if target.endswith(".MidiFolder"):
        folder = Path(root).expanduser()
        if not folder.is_dir():
            problem = "a file, not a folder" if folder.exists() else "no such folder"
            raise UserError(f"data.root={cfg.data.root}: {problem}; give a folder with MIDI files")
    elif target.endswith(".ComposedCorpus") and Path(cfg.data.root).is_dir():
        from musicgen.data.corpora.composed import check_composable

        check_composable(Path(cfg.data.root))


def _check_paths(cfg: DictConfig) -> None:
    for key, value in cfg.paths.items():
        if not isinstance(value, str) or not value.strip():
            raise ParameterError(f"paths.{key}", value, "expected a folder")


def _check_train(cfg: DictConfig) -> None:
    check_int("seed", cfg.seed, minimum=0, maximum=2**32 - 1)
    check_choice("find", cfg.find, (None, "learning_rate", "batch_size"))
    for name in ("train", "test", "recompute", "compile"):
        check_bool(name, cfg[name])
    for name, logger in (cfg.logger or {}).items():
        given = logger.get("name") if isinstance(logger, DictConfig) else None
        if not isinstance(given, str | None):
            raise ParameterError(f"logger.{name}.name", given, "expected text, or null")
    _check_paths(cfg)
    _check_trainer(cfg.trainer)
    check_float("optimizer.lr", cfg.optimizer.lr, above=0)
    for name, callback in cfg.callbacks.items():
        if callback is not None and not OmegaConf.is_dict(callback):
            raise ParameterError(f"callbacks.{name}", callback, "expected null or settings")
        for key in ("path", "dirpath"):
            if callback and not isinstance(callback.get(key, ""), str):
                raise ParameterError(f"callbacks.{name}.{key}", callback[key], "expected a path")
    if _chosen("task") == "groove" and not cfg.tokenizer._target_.endswith(".Groove2Groove"):
        raise UserError(
            f"tokenizer={_chosen('tokenizer')} does not fit task=groove, whose tokens name the "
            "instruments of a band; leave tokenizer out, or leave task=groove out"
        )
    if cfg.optimizer._target_.endswith(".MuonAdamW"):
        if cfg.get("adapter"):
            raise UserError("optimizer=muon trains whole models: train an adapter with adamw")
        if str(cfg.trainer.get("strategy")).startswith("fsdp"):
            raise UserError(
                "optimizer=muon needs whole matrices, which trainer.strategy=fsdp divides; "
                "give optimizer=adamw"
            )
    if cfg.init is not None:
        find_checkpoint(str(cfg.init), setting="init")
    _check_data(cfg)


def _chosen(group: str) -> str | None:
    """Return the choice of a configuration group; None outside of Hydra."""
    return HydraConfig.get().runtime.choices.get(group) if HydraConfig.initialized() else None


def _check_trainer(trainer: DictConfig) -> None:
    """Check the settings that Lightning accepts in any form, or refuses without their names."""
    with parameter_of("trainer"):
        check_int("max_steps", trainer.max_steps, -1)
        check_int("max_epochs", trainer.max_epochs, -1, none_means="")
        check_int("accumulate_grad_batches", trainer.accumulate_grad_batches)
        check_float("gradient_clip_val", trainer.gradient_clip_val, none_means="no limit")
        check_int("val_check_interval", trainer.val_check_interval)
        check_int("check_val_every_n_epoch", trainer.check_val_every_n_epoch, none_means="")
        check_int("log_every_n_steps", trainer.log_every_n_steps)
        check_int("num_sanity_val_steps", trainer.num_sanity_val_steps, -1)
        for name in ("use_distributed_sampler", "enable_model_summary"):
            check_bool(name, trainer[name])


def _check_generate(cfg: DictConfig) -> None:
    if cfg.prompt is not None and cfg.prompt not in SPLITS:
        prompt_files(cfg.prompt)
    find_checkpoint(str(cfg.checkpoint))


def _check_evaluate(cfg: DictConfig) -> None:
    for name in ("generated", "references"):
        folder = cfg[name]
        if folder is not None and folder not in SPLITS and not Path(folder).expanduser().exists():
            raise UserError(f"{name}={folder}: no such folder; give one that holds .mid files")
    for name in ("runs", "compare"):
        if cfg[name] is not None and not OmegaConf.is_list(cfg[name]):
            raise ParameterError(name, cfg[name], "expected a list of different folders")
    check_int("max_pieces", cfg.max_pieces, none_means="all")
    check_int("seed", cfg.seed, minimum=0)
    if cfg.metrics is None and not (cfg.generated or cfg.references or cfg.compare):
        for run in [cfg.checkpoint] if cfg.runs is None else cfg.runs:
            find_checkpoint(str(run), setting="checkpoint" if cfg.runs is None else "runs")


def _check_prepare(cfg: DictConfig) -> None:
    check_int("seed", cfg.seed, minimum=0)
    _check_paths(cfg)
    _check_data(cfg)


CHECKS: dict[str, Callable[[DictConfig], None]] = {
    "train": _check_train,
    "generate": _check_generate,
    "evaluate": _check_evaluate,
    "prepare": _check_prepare,
}
