"""Train a model: python train.py [position=conv_spe data=midi_folder data.root=/my/midi ...]."""

import logging
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.syntax import Syntax
from rich.tree import Tree

import musicgen
from musicgen.checkpoints import trust_argument
from musicgen.cli.arguments import command, given_overrides, resume_command
from musicgen.cli.build import build_training
from musicgen.cli.output import set_up_cpu
from musicgen.console import console, log, recorded, warn
from musicgen.data.loading import MusicDataModule
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.files import write_text
from musicgen.generation.sampling import SamplingParams
from musicgen.models import parameter_count
from musicgen.run_folders import (
    LAST,
    LOG,
    METRICS,
    OVERRIDES,
    claimed,
    find_checkpoint,
    record_start,
)
from musicgen.text import printable
from musicgen.training.callbacks import EarlyStopping
from musicgen.training.checkpointing import AtomicCheckpointIO
from musicgen.training.guard import out_of_memory_named, restoring_named
from musicgen.training.module import TrainingModule
from musicgen.training.monitoring.logger import CSVLogger
from musicgen.validation import check_bool, check_choice, check_float, check_int

MATMUL_PRECISIONS = ("highest", "high", "medium")  # torch's


def main(cfg: DictConfig) -> float | None:
    """Build, fit and test a model; return the best validation score for sweeps, if there is one."""
    # Libraries warn about each other, on which users cannot act.
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|torch.jit")
    for name in ("pytorch_lightning.utilities.rank_zero", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    set_up_cpu()
    check_settings(cfg)
    torch.set_float32_matmul_precision(cfg.matmul_precision)
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    module, data, notes = build_training(cfg)
    recorder = RunRecorder(cfg, Path(cfg.paths.output_dir))
    trainer = build_trainer(cfg, module, recorder)
    if trainer.world_size > 1:
        share = f"{data.share(trainer.world_size)} in each of {trainer.world_size} processes"
        notes.append(f"{data.batch_size} sequences in a batch, {share}")
    if cfg.print_config and trainer.is_global_zero:
        tree = Tree("configuration")
        for name, value in module.content.config.items():
            text = OmegaConf.to_yaml(value) if isinstance(value, dict) else str(value)
            tree.add(name).add(Syntax(printable(text.rstrip()), "yaml", background_color="default"))
        console.print(tree)
    with recorder.hold_folder() if trainer.is_global_zero else nullcontext():
        count = parameter_count(module.model)
        notes.append(f"{count:,} parameters; the run's folder is {recorder.folder}")
        if trainer.is_global_zero and (other := paper_data(cfg)):
            warn(other)
        for note in notes if trainer.is_global_zero else []:
            log(note)
        if cfg.train:
            fit(trainer, module, data, recorder)
        validate_and_test(cfg, trainer, module, data)
    score = getattr(trainer.checkpoint_callback, "best_model_score", None)
    return None if score is None else float(score)


def check_settings(cfg: DictConfig) -> None:
    """Raise `UserError` for wrong settings that would otherwise be found late."""
    check_int("seed", cfg.seed, 0, maximum=2**32 - 1)  # the largest seed of numpy
    for name in ("train", "test", "print_config", "recompute"):
        check_bool(name, cfg[name])
    if cfg.compile is not None:
        check_bool("compile", cfg.compile)
    check_trainer(cfg)
    check_choice("matmul_precision", cfg.matmul_precision, MATMUL_PRECISIONS)
    check_float("minutes", cfg.minutes, above=0, none_means="no limit")
    name = cfg.run_name  # of the folder below outputs/
    if not isinstance(name, str | int) or not str(name).strip() or ".." in Path(str(name)).parts:
        raise ParameterError("run_name", name, "expected the name of a folder")
    if not OmegaConf.is_list(cfg.tags) or not all(isinstance(tag, str) for tag in cfg.tags):
        raise ParameterError("tags", cfg.tags, "expected a list of words, such as [a,b]")
    with parameter_of("sampling"):  # else they are checked after training
        SamplingParams(**cfg.sampling)
    if str(cfg.trainer.get("strategy")).startswith("fsdp"):
        uses_muon = cfg.optimizer._target_.endswith(".MuonAdamW")
        for setting, is_given, cure in (
            ("optimizer=muon", uses_muon, "optimizer=adamw"),
            ("callbacks=averaged", cfg.callbacks.get("weight_averaging"), "callbacks=default"),
        ):
            if is_given:
                raise UserError(
                    f"{setting} needs whole matrices, which trainer.strategy=fsdp divides; give "
                    f"{cure}"
                )


def check_trainer(cfg: DictConfig) -> None:
    """Raise `ParameterError` for numbers of `trainer` that Lightning accepts or names otherwise."""
    trainer = cfg.trainer
    for name, least, none in (
        ("max_steps", -1, None),
        ("accumulate_grad_batches", 1, None),
        ("log_every_n_steps", 1, None),
        ("num_sanity_val_steps", -1, "2"),  # -1: all
        ("check_val_every_n_epoch", 1, "val_check_interval alone"),
        ("min_steps", 0, "no minimum"),
    ):
        check_int(f"trainer.{name}", trainer.get(name, 1), least, none_means=none)
    check_float("trainer.val_check_interval", trainer.val_check_interval, above=0)
    clip = trainer.get("gradient_clip_val")
    check_float("trainer.gradient_clip_val", clip, none_means="no limit")
    for name in ("max_steps", "max_epochs"):
        if trainer.get(name) == 0:
            expected = "expected at least 1; train=false builds the model without training it"
            raise ParameterError(f"trainer.{name}", 0, expected)
    if trainer.get("limit_train_batches", 1.0) != 1.0:
        raise UserError("trainer.limit_train_batches: give loader.batches_per_epoch=N")
    if 0 <= trainer.max_steps < (trainer.get("min_steps") or 0):
        expected = f"expected at most trainer.max_steps={trainer.max_steps}"
        raise ParameterError("trainer.min_steps", trainer.min_steps, expected)
    for name in ("callbacks", "logger"):
        if name in trainer:
            raise UserError(f"trainer.{name}: give {name}=CHOICE, or settings of +{name}.NAME")


def paper_data(cfg: DictConfig) -> str | None:
    """Return a line that a paper's experiment trains on composed music, and how to get its data."""
    wanted = OmegaConf.select(cfg, "paper_data")
    if wanted is None or not cfg.data._target_.endswith(".ComposedCorpus"):
        return None
    return f"trains on {cfg.data.num_pieces} composed pieces, not on the paper's data: {wanted}"


def build_trainer(cfg: DictConfig, module: TrainingModule, recorder: pl.Callback) -> pl.Trainer:
    """Return Lightning's Trainer with the configured callbacks and loggers."""
    callbacks = [instantiate(callback) for callback in cfg.callbacks.values() if callback]
    loggers = [instantiate(logger) for logger in (cfg.logger or {}).values() if logger]
    trainer: pl.Trainer = instantiate(
        cfg.trainer, callbacks=[recorder, *callbacks], logger=loggers, _convert_="object"
    )
    trainer.strategy.checkpoint_io = AtomicCheckpointIO()
    for logger in loggers:
        if not isinstance(logger, CSVLogger):  # the run's folder has config.yaml
            logger.log_hyperparams(module.content.config)
    return trainer


def validate_and_test(
    cfg: DictConfig, trainer: pl.Trainer, module: TrainingModule, data: Any
) -> None:
    """Log the losses of the best weights: of all validation pieces, if training left out some.

    With `test`, also that of the test pieces.
    """
    best = getattr(trainer.checkpoint_callback, "best_model_path", None) or None
    validates_all = cfg.train and cast("Any", trainer).limit_val_batches == 1.0
    if validates_all and isinstance(data, MusicDataModule) and data.samples_validation():
        (found,) = trainer.validate(module, data, ckpt_path=best, verbose=False)
        if trainer.is_global_zero:
            log(f"validation loss of all pieces: {found['val_all/loss']:.4f}")
    if cfg.test:
        if cfg.resume and not cfg.train:
            best = find_checkpoint(cfg.paths.output_dir)
        trainer.test(module, data, ckpt_path=best, verbose=trainer.is_global_zero)


class RunRecorder(pl.Callback):
    """Write the configuration and the log of a run into its folder with its first step or weights.

    Before that, nothing is written, so that a run that fails at once leaves no folder.
    """

    def __init__(self, cfg: DictConfig, folder: Path) -> None:
        self.cfg, self.folder, self.writes = cfg, folder, False
        self._provenance: dict[str, Any] = {}
        self._lines: list[str] = []

    @contextmanager
    def hold_folder(self) -> Iterator[None]:
        """Hold the folder while the run trains, and log its messages and errors.

        The log begins with where the run comes from.

        Raises:
            UserError: another process trains in the folder, or it holds another run.
        """
        self._provenance = provenance()
        packages = self._provenance["packages"]
        versions = ", ".join(f"{name} {version}" for name, version in packages.items())
        entries = {**self._provenance, "packages": versions}
        self._lines = [f"{name}: {value}" for name, value in entries.items()]
        folder = self.folder
        folder.mkdir(parents=True, exist_ok=True)
        other = "another process is training in this folder; wait for its end, or interrupt it"
        with claimed(folder, other):
            if self.cfg.resume is None:
                if any((folder / "checkpoints").glob("[!.]*.ckpt")):
                    resume = shlex.quote(f"resume={folder}")
                    cure = f"continue it with {resume}, or give another folder"
                    raise UserError(f"{folder} holds another run; {cure}")
                for name in (METRICS, LOG):  # of a run without a checkpoint
                    (folder / name).unlink(missing_ok=True)
            with recorded(self.record):
                try:
                    yield
                except UserError as error:
                    self.record(f"error: {error}")
                    raise
                except KeyboardInterrupt:
                    self.record("interrupted")
                    raise
                except BaseException:
                    self.record(traceback.format_exc())
                    raise

    def record(self, text: str) -> None:
        """Append a line to the log, with the time; until the run is written, in memory."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        self._lines.append(f"{now} {text}")
        if self.writes:
            self._write_lines()

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        self.on_save_checkpoint(trainer)

    def on_save_checkpoint(self, trainer: pl.Trainer, *args: Any) -> None:
        """Write the configuration before a checkpoint, which resumes with it."""
        if trainer.is_global_zero and not self.writes:
            write_text(self.folder / "config.yaml", OmegaConf.to_yaml(self.cfg, resolve=True))
            write_text(self.folder / OVERRIDES, OmegaConf.to_yaml(given_overrides()))
            if self.cfg.resume is None:
                record_start(self.folder, **self._provenance)
            self._write_lines()
        self.writes = True

    def _write_lines(self) -> None:
        # A full disk must not hide the message that is being logged.
        with (
            suppress(OSError),
            (self.folder / LOG).open("a", encoding="utf-8", errors="replace") as file,
        ):
            file.writelines(f"{line}\n" for line in self._lines)
        self._lines = []


def fit(trainer: pl.Trainer, module: TrainingModule, data: Any, recorder: RunRecorder) -> None:
    """Train; log the next commands, or if training is interrupted, the one that continues it."""
    trust = trust_argument(module.content.config)
    trust_arguments = [trust] if trust else []
    start = time.monotonic()
    if trainer.is_global_zero and isinstance(data, MusicDataModule):
        announce_preparation(recorder.cfg.minutes, data.encoded)
    try:
        with out_of_memory_named(), restoring_named(recorder.cfg.resume):
            trainer.fit(module, data, ckpt_path=recorder.cfg.resume)
    except BaseException as error:
        can_continue = recorder.writes or isinstance(error, KeyboardInterrupt | SystemExit)
        if can_continue and trainer.is_global_zero and (recorder.folder / LAST).is_file():
            log(f"to continue: {resume_command(recorder.folder, *trust_arguments)}")
        if isinstance(error, SystemExit) and error.code == 1:  # Lightning exits on Ctrl-C
            raise KeyboardInterrupt from None
        raise
    if not trainer.is_global_zero:
        return
    log(f"ended at step {trainer.global_step:,}, after {time.monotonic() - start:,.1f} s")
    if isinstance(data, MusicDataModule) and (recorder.folder / LAST).is_file():
        folder = shlex.quote(str(recorder.folder))
        generate = [command("generate"), f"checkpoint={folder}", "prompt=song.mid"]
        log(f"to generate with it: {' '.join([*generate, *trust_arguments])}")
        log(f"to evaluate it: {' '.join([command('evaluate'), folder, *trust_arguments])}")
    longer = longer_training(trainer, recorder.cfg)
    log(f"to train it longer: {resume_command(recorder.folder, *longer, *trust_arguments)}")


def announce_preparation(minutes: float | None, encoded: EncodedCorpus) -> None:
    """Say that a corpus which is not encoded yet takes time before `minutes` begin."""
    if minutes is not None and encoded.find_cache() is None:
        log(f"first the corpus is read and encoded, once; minutes={minutes:g} begin after that")


def longer_training(trainer: pl.Trainer, cfg: DictConfig) -> list[str]:
    """Return the arguments that continue an ended run to twice as many steps or epochs.

    A run that stopped early needs a larger patience.
    """
    for callback in cast("Any", trainer).callbacks:
        if isinstance(callback, EarlyStopping) and callback.wait_count >= callback.patience:
            return [f"callbacks.early_stopping.patience={2 * callback.patience}"]
    if cfg.minutes is not None:
        return ["minutes=null", f"trainer.max_steps={2 * trainer.global_step}"]
    if trainer.global_step == trainer.max_steps:
        return [f"trainer.max_steps={2 * trainer.global_step}"]
    if trainer.current_epoch == trainer.max_epochs:
        return [f"trainer.max_epochs={2 * trainer.current_epoch}"]
    return []  # it ended early, and continues without them


def provenance() -> dict[str, Any]:
    """Return the command of this process, its folder and host, and the versions of the code.

    The packages are those that training requires.
    """
    try:
        required = metadata.requires("musicgen-symbolic") or []
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        required = []
    needed = [each for each in required if "extra ==" not in each or 'extra == "train"' in each]
    names = [re.split(r"[^\w.-]", each)[0] for each in needed]
    versions = {name: metadata.version(name) for name in names}
    return {
        "command": shlex.join(sys.orig_argv),
        "directory": str(Path.cwd()),
        "host": platform.node(),
        "commit": commit(Path(musicgen.__file__).parents[1]),
        "packages": {"python": platform.python_version(), **versions},
    }


def commit(checkout: Path) -> str | None:
    """Return the commit of a checkout, with `-dirty` if files differ from it; None without git."""
    if not (checkout / ".git").exists() or shutil.which("git") is None:
        return None  # an installed package, or a folder without its history
    names = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40"]
    found = subprocess.run([*names, "--exclude=*"], capture_output=True, text=True)
    return found.stdout.strip() or None
