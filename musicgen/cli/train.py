"""Train a model: python train.py [position=conv_spe data=midi_folder data.root=/my/midi ...]."""

from __future__ import annotations

import logging
import shlex
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from musicgen.cli.build import Training, build_training
from musicgen.cli.output import command, set_up_cpu
from musicgen.cli.resume import given_overrides, resume_command
from musicgen.console import log
from musicgen.data.loading import MusicDataModule
from musicgen.errors import UserError, parameter_of
from musicgen.files import write_text
from musicgen.generation.sampling import SamplingParams
from musicgen.models import parameter_count
from musicgen.run_folders import (
    LAST,
    LOCK,
    OVERRIDES,
    RECORD,
    claimed,
    has_checkpoint,
    record_start,
)
from musicgen.text import pluralize
from musicgen.training.checkpointing import AtomicCheckpointIO
from musicgen.training.guard import out_of_memory_named
from musicgen.training.monitoring.logger import CSVLogger

CONFIG = "config.yaml"


def main(cfg: DictConfig) -> float | None:
    """Build, fit and test a model; return the best validation loss, if any, for sweeps."""
    # Users cannot act on the libraries' warnings about each other.
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|torch.jit")
    for name in ("pytorch_lightning.utilities.rank_zero", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    set_up_cpu()
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    _check_settings(cfg)
    training = build_training(cfg)
    recorder = RunRecorder(cfg)
    trainer = build_trainer(cfg, recorder)
    for logger in trainer.loggers:
        if not isinstance(logger, CSVLogger):  # the run's folder has config.yaml
            logger.log_hyperparams(training.module.content.config)
    with recorder.claimed(trainer):
        if trainer.is_global_zero:
            for note in training.notes:
                log(note)
            count = parameter_count(training.module.model)
            log(f"{count:,} parameters; the run's folder is {recorder.folder}")
        if cfg.train:
            fit(trainer, training, recorder)
        if cfg.test:
            best = getattr(trainer.checkpoint_callback, "best_model_path", None) or None
            show = trainer.is_global_zero
            trainer.test(training.module, training.data, ckpt_path=best, verbose=show)
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


def build_trainer(cfg: DictConfig, recorder: RunRecorder) -> pl.Trainer:
    callbacks = [instantiate(callback) for callback in cfg.callbacks.values() if callback]
    loggers = [instantiate(logger) for logger in (cfg.logger or {}).values()]
    trainer: pl.Trainer = instantiate(cfg.trainer, callbacks=[recorder, *callbacks], logger=loggers)
    trainer.strategy.checkpoint_io = AtomicCheckpointIO()
    return trainer


class RunRecorder(pl.Callback):
    """Write the configuration of a run into its folder.

    For a resumed run, it is written after the first step, so that a resume that is refused or fails
    at once does not change the run.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg, self.folder = cfg, Path(cfg.paths.output_dir)
        self.steps_taken = False

    @contextmanager
    def claimed(self, trainer: pl.Trainer) -> Iterator[None]:
        """Hold the folder for one run while it trains; record a new run.

        Raises:
            UserError: another process trains in the folder, or it holds another run.
        """
        if not trainer.is_global_zero:
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        other = "another process is training in this folder; wait for its end, or interrupt it"
        with claimed(self.folder, other):
            if self.cfg.resume is None:
                if has_checkpoint(self.folder):
                    setting = shlex.quote(f"resume={self.folder}")
                    raise UserError(
                        f"{self.folder} holds another run; continue it with {setting}, or give "
                        "another folder"
                    )
                (self.folder / "metrics.csv").unlink(missing_ok=True)  # stopped before that
                record_start(self.folder)
                self.write()
            yield

    def write(self) -> None:
        write_text(self.folder / CONFIG, OmegaConf.to_yaml(self.cfg, resolve=True))
        write_text(self.folder / OVERRIDES, OmegaConf.to_yaml(given_overrides()))

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.is_global_zero and self.cfg.resume is not None and not self.steps_taken:
            self.write()
        self.steps_taken = True

    def discard(self) -> None:
        """Remove the folder if it contains nothing but the configuration."""
        ours = {CONFIG, LOCK, RECORD, OVERRIDES.parts[0]}
        if {path.name for path in self.folder.iterdir()} <= ours:
            shutil.rmtree(self.folder)


def fit(trainer: pl.Trainer, training: Training, recorder: RunRecorder) -> None:
    """Train; log what comes next, or how to continue if training is interrupted."""
    start = time.monotonic()
    try:
        with out_of_memory_named():
            trainer.fit(training.module, training.data, ckpt_path=recorder.cfg.resume)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        saved = (recorder.folder / LAST).is_file()
        if trainer.is_global_zero and saved and (recorder.steps_taken or interrupted):
            log(f"to continue: {resume_command(recorder.folder)}")
        elif trainer.is_global_zero and not saved and not recorder.steps_taken:
            recorder.discard()
        if isinstance(error, SystemExit) and error.code == 1:  # Lightning exits on Ctrl-C
            raise KeyboardInterrupt from None
        raise
    if not trainer.is_global_zero:
        return
    metrics, validation = trainer.callback_metrics, ""
    if "val/accuracy" in metrics:
        validation = f", validation accuracy {float(metrics['val/accuracy']):.1%}"
    elif "val/loss" in metrics:
        validation = f", validation loss {float(metrics['val/loss']):.4f} nats a token"
    seconds = time.monotonic() - start
    duration = f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
    log(f"{pluralize(trainer.global_step, 'steps')} in {duration}{validation}")
    if isinstance(training.data, MusicDataModule):
        folder = shlex.quote(str(recorder.folder))
        log(f"next: {command('generate')} checkpoint={folder} prompt=song.mid")
        log(f"what it has learned: {command('evaluate')} {folder}")
