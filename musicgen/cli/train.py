"""Train a model: python train.py [position=conv_spe data=midi_folder data.root=/my/midi ...]."""

from __future__ import annotations

import contextlib
import logging
import shlex
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers import Logger

from musicgen.checkpoints import (
    CheckpointContent,
    errors_name,
    find_checkpoint,
    load_for_resume,
    load_initial,
    read_checkpoint,
    run_identity,
    without_adapter,
)
from musicgen.cli.adaptation import begin_adapter, build_adapter, write_adapter_file
from musicgen.cli.checkpoint_settings import adopt_settings
from musicgen.cli.datasets import build_data, build_examples
from musicgen.cli.output import command
from musicgen.cli.run_recorder import RunRecorder
from musicgen.cli.threads import set_up_cpu
from musicgen.console import log
from musicgen.data.loading import MusicDataModule
from musicgen.data.non_music.datamodule import ExampleDataModule
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.generation.sampling import SamplingParams
from musicgen.models import Transformer, parameter_count
from musicgen.run_folders import LAST
from musicgen.text import pluralize
from musicgen.tokenization.base import Tokenizer
from musicgen.training.checkpoint_files import AtomicCheckpointIO
from musicgen.training.finders import TRAINER, find_batch_size, find_learning_rate
from musicgen.training.memory import out_of_memory_named
from musicgen.training.module import TrainingModule
from musicgen.training.monitoring.logger import CSVLogger
from musicgen.training.processes import end_together


def main(cfg: DictConfig) -> float | None:
    """Build, fit and test a model; return the best validation loss, if any, for sweeps."""
    # Users cannot act on the libraries' warnings about each other.
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|torch.jit")
    logging.getLogger("pytorch_lightning.utilities.rank_zero").setLevel(logging.WARNING)
    with parameter_of("sampling"):
        SamplingParams(**cfg.sampling)
    set_up_cpu()
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    adapter = build_adapter(cfg)
    source = _read_source(cfg)
    tokenizer, model, data = _build(cfg)
    if adapter and not isinstance(data, MusicDataModule):
        raise UserError("adapter= adapts models of music: leave it out of this task")
    max_length = model.position.max_length
    if max_length is not None and cfg.loader.length > max_length:
        expected = f"expected at least loader.length={cfg.loader.length}"
        raise ParameterError("model.position.max_length", max_length, expected)
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    content = CheckpointContent(
        model=config["model"],
        tokenizer=config.get("tokenizer"),
        vocabulary=[] if tokenizer is None else list(tokenizer.vocabulary.tokens),
        vocabulary_hash="" if tokenizer is None else tokenizer.vocabulary.hash,
        config=config,
        adapter=config.get("adapter"),
        identity=run_identity(config),
    )
    module = TrainingModule(
        model,
        instantiate(cfg.task),
        instantiate(cfg.optimizer),
        instantiate(cfg.scheduler),
        content,
        cfg.seed,
    )
    notes = []
    if source is not None:
        if adapter and cfg.resume is not None:
            adapter.attach(model)
        notes = _load_weights(source, cfg, content, model)
        if adapter and isinstance(data, MusicDataModule) and cfg.resume is None:
            saved = CheckpointContent.from_plain(source[1])
            notes.append(begin_adapter(adapter, model, data.encoded, content, saved))
    del source  # it is large
    model.recompute = cfg.recompute
    if cfg.compile:
        for layer in model.layers:
            layer.compile()
    if cfg.find is not None:
        _find(cfg, module, data)
        return None
    recorder = RunRecorder(cfg)
    callbacks = [instantiate(callback) for callback in cfg.callbacks.values() if callback]
    trainer: pl.Trainer = instantiate(
        cfg.trainer, callbacks=[recorder, *callbacks], logger=_loggers(cfg)
    )
    trainer.strategy.checkpoint_io = AtomicCheckpointIO()
    for logger in trainer.loggers:
        if not isinstance(logger, CSVLogger):  # the run's folder has config.yaml
            logger.log_hyperparams(config)
    with recorder.claimed() if trainer.is_global_zero else contextlib.nullcontext():
        if trainer.is_global_zero:
            for note in notes:
                log(note)
            log(f"{parameter_count(model):,} parameters; the run's folder is {recorder.folder}")
        if cfg.train:
            _fit(trainer, module, data, recorder)
            if trainer.is_global_zero and isinstance(data, MusicDataModule):
                if adapter:
                    write_adapter_file(recorder.folder, adapter, cfg.init)
                folder = shlex.quote(str(recorder.folder))
                log(f"next: {command('generate')} checkpoint={folder} prompt=song.mid")
        if cfg.test:
            best = getattr(trainer.checkpoint_callback, "best_model_path", None) or None
            trainer.test(module, datamodule=data, ckpt_path=best, verbose=trainer.is_global_zero)
    score = getattr(trainer.checkpoint_callback, "best_model_score", None)
    return None if score is None else float(score)


def _build(
    cfg: DictConfig,
) -> tuple[Tokenizer | None, Transformer, MusicDataModule | ExampleDataModule]:
    """Build the tokenizer, None for data that are not music, the model and the data."""
    build_model = partial(instantiate, cfg.model)
    if cfg.get("tokenizer") is None:
        return None, *build_examples(cfg, build_model)
    tokenizer: Tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    model: Transformer = build_model(vocab_size=len(tokenizer.vocabulary))
    with parameter_of("model.position"):
        tokenizer.check_coordinates(model.coordinate_names)
    return tokenizer, model, build_data(cfg, tokenizer, model.coordinate_names)


def _read_source(cfg: DictConfig) -> tuple[Path, dict[str, Any]] | None:
    """Read the checkpoint that a run continues or begins from; take over its model's settings."""
    if cfg.resume is not None:
        path = Path(cfg.resume)
    elif cfg.init is not None:
        path = find_checkpoint(cfg.init, setting="init")
    else:
        return None
    checkpoint = read_checkpoint(path)
    with errors_name(path):
        saved = CheckpointContent.from_plain(checkpoint)
        adopt_settings(cfg, saved)
    cfg.init = str(path) if cfg.resume is None else saved.config.get("init")  # for the record
    return path, checkpoint


def _load_weights(
    source: tuple[Path, dict[str, Any]],
    cfg: DictConfig,
    content: CheckpointContent,
    model: Transformer,
) -> list[str]:
    """Load the weights that a run continues or begins from; return what to tell the user."""
    path, checkpoint = source
    saved = CheckpointContent.from_plain(checkpoint)
    with errors_name(path):
        if cfg.resume is not None:
            changed = load_for_resume(checkpoint, content, model)
            note = f"from step {saved.steps:,} on: {', '.join(changed)}" if changed else None
            return [f"continues {saved.describe(path)}", *filter(None, [note])]
        note = load_initial(without_adapter(checkpoint, path), content, model)
        return [f"begins with the weights of {saved.describe(path)}", *filter(None, [note])]


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


def _find(
    cfg: DictConfig, module: TrainingModule, data: MusicDataModule | ExampleDataModule
) -> None:
    """Name a learning rate or a batch size to begin with."""
    trainer: pl.Trainer = instantiate(cfg.trainer, **TRAINER)
    if trainer.world_size > 1:
        raise UserError(f"find={cfg.find} takes one device; give trainer.devices=1")
    log(f"trying values of {cfg.find}")
    if cfg.find == "learning_rate":
        test = find_learning_rate(trainer, module, data)
        plot = Path(cfg.paths.output_dir) / "learning_rates.png"
        test.plot(plot)
        log(
            f"the loss falls fastest at optimizer.lr={test.best:.2g}, and is lowest at "
            f"{test.lowest:.2g}; {plot} shows it"
        )
    else:
        size, is_largest = find_batch_size(trainer, module, data, cfg.loader.batch_size)
        text = "the largest that fits is" if is_largest else "tried up to"
        log(f"{text} loader.batch_size={size}, of {cfg.loader.length} tokens each")


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
                log(f"to continue: {command('train')} resume={shlex.quote(str(recorder.folder))}")
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
