"""Train a model: python train.py [position=conv_spe data=midi_folder data.root=/my/midi ...]."""

from __future__ import annotations

import contextlib
import logging
import shlex
import time
import warnings

import pytorch_lightning as pl
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from pytorch_lightning.loggers import Logger

from musicgen.cli.building import build_training
from musicgen.cli.output import command, set_up_cpu
from musicgen.cli.resume_arguments import resume_command
from musicgen.cli.run_recorder import RunRecorder
from musicgen.console import log
from musicgen.data.loading import MusicDataModule
from musicgen.errors import UserError, parameter_of
from musicgen.generation.sampling import SamplingParams
from musicgen.models import parameter_count
from musicgen.run_folders import LAST
from musicgen.text import pluralize
from musicgen.training.checkpoint_files import AtomicCheckpointIO
from musicgen.training.memory import out_of_memory_named
from musicgen.training.module import TrainingModule
from musicgen.training.monitoring.logger import CSVLogger
from musicgen.training.processes import end_together


def main(cfg: DictConfig) -> float | None:
    """Build, fit and test a model; return the best validation loss, if any, for sweeps."""
    # Users cannot act on the libraries' warnings about each other.
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|torch.jit")
    for name in ("pytorch_lightning.utilities.rank_zero", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    set_up_cpu()
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    _check_settings(cfg)

    module, data, notes = build_training(cfg)

    recorder = RunRecorder(cfg)
    callbacks = [instantiate(callback) for callback in cfg.callbacks.values() if callback]
    trainer: pl.Trainer = instantiate(
        cfg.trainer, callbacks=[recorder, *callbacks], logger=_loggers(cfg)
    )
    trainer.strategy.checkpoint_io = AtomicCheckpointIO()
    for logger in trainer.loggers:
        if not isinstance(logger, CSVLogger):  # the run's folder has config.yaml
            logger.log_hyperparams(module.content.config)
    with recorder.claimed() if trainer.is_global_zero else contextlib.nullcontext():
        if trainer.is_global_zero:
            for note in notes:
                log(note)
            count = parameter_count(module.model)
            log(f"{count:,} parameters; the run's folder is {recorder.folder}")
        if cfg.train:
            _fit(trainer, module, data, recorder)
            if trainer.is_global_zero and isinstance(data, MusicDataModule):
                folder = shlex.quote(str(recorder.folder))
                log(f"next: {command('generate')} checkpoint={folder} prompt=song.mid")
                log(f"what it has learned: {command('evaluate')} {folder}")
        if cfg.test:
            best = getattr(trainer.checkpoint_callback, "best_model_path", None) or None
            trainer.test(module, datamodule=data, ckpt_path=best, verbose=trainer.is_global_zero)
    score = getattr(trainer.checkpoint_callback, "best_model_score", None)
    return None if score is None else float(score)


def _check_settings(cfg: DictConfig) -> None:
    """Refuse settings that exclude each other, and those of sampling, which come after training."""
    with parameter_of("sampling"):
        SamplingParams(**cfg.sampling)
    muon = cfg.optimizer._target_.endswith(".MuonAdamW")
    if muon and str(cfg.trainer.get("strategy")).startswith("fsdp"):
        raise UserError(
            "optimizer=muon needs whole matrices, which trainer.strategy=fsdp divides; "
            "give optimizer=adamw"
        )


def _loggers(cfg: DictConfig) -> list[Logger]:
    loggers = []
    for name, logger in (cfg.logger or {}).items():
        try:
            loggers.append(instantiate(logger))
        except InstantiationException as error:
            if not isinstance(error.__cause__, ModuleNotFoundError):
                raise
            raise UserError(
                f"logger={name}: not installed; run: pip install {name}, or leave logger out"
            ) from None
    return loggers


def _fit(
    trainer: pl.Trainer, module: TrainingModule, data: pl.LightningDataModule, recorder: RunRecorder
) -> None:
    """Fit; if training is interrupted, log how to continue it."""
    start = time.monotonic()
    try:
        with end_together(trainer), out_of_memory_named():
            trainer.fit(module, datamodule=data, ckpt_path=recorder.cfg.resume)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        saved = (recorder.folder / LAST).is_file()
        if trainer.is_global_zero:
            if saved and (recorder.steps_taken or interrupted):
                log(f"to continue: {resume_command(recorder.folder)}")
            elif not saved and not recorder.steps_taken:
                recorder.discard()
        if isinstance(error, SystemExit) and error.code == 1:  # Lightning exits on Ctrl-C
            raise KeyboardInterrupt from None
        raise
    if trainer.is_global_zero:
        metrics, validation = trainer.callback_metrics, ""
        if "val/accuracy" in metrics:
            validation = f", validation accuracy {float(metrics['val/accuracy']):.1%}"
        elif "val/loss" in metrics:
            validation = f", validation loss {float(metrics['val/loss']):.4f} nats a token"
        seconds = time.monotonic() - start
        duration = f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
        log(f"{pluralize(trainer.global_step, 'steps')} in {duration}{validation}")
