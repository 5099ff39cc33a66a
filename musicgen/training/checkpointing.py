"""Save checkpoints atomically: at regular steps, after validations, and when a signal arrives."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning.callbacks import ModelCheckpoint

from musicgen.checkpoints import read_checkpoint
from musicgen.console import warn
from musicgen.errors import UserError
from musicgen.run_folders import LAST
from musicgen.training.module import TrainingModule
from musicgen.validation import check_float

# Windows has no SIGUSR1.
_STOPPING = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, n)]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint to a temporary file, flush it to the disk, and rename it.

    Lightning stages files in the system's temporary folder; from another device, they are then
    copied over the old ones, which a kill or a full disk cuts short. What a killed process left
    unfinished of the same checkpoint is overwritten.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint; raise `UserError`, with the old file unchanged, if that fails."""
        path = Path(path)
        unfinished = path.with_name(f".{path.name}.unfinished")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except (OSError, RuntimeError) as error:
            cause = error if isinstance(error, OSError) else error.__context__
            if not isinstance(cause, OSError):
                raise
            raise UserError(
                f"{path}: cannot be written ({cause.strerror or cause}); what was saved before is "
                "unchanged: free some space, then resume the run"
            ) from None
        finally:
            with suppress(OSError):  # a folder that may not be written
                unfinished.unlink(missing_ok=True)


class SaveBest(ModelCheckpoint):
    """Lightning's `ModelCheckpoint` that reads the best score of a resumed run from its checkpoint.

    The last checkpoint is older than the best one if the run was stopped between the two, and it
    has the path of the best one before the run's folder was moved. Losses of another corpus or
    length cannot be compared.
    """

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._last_global_step_saved = -1  # Lightning's 0 would refuse the initial weights

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        best = Path(self.best_model_path)
        trained = trainer.global_step > 0 and best.is_file()
        if trained and trainer.is_global_zero and read_checkpoint(best)["global_step"] == 0:
            warn(
                f"training has not improved {self.monitor}: {best.name} has the weights of init=; "
                "a lower optimizer.lr or more music may help"
            )

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        assert self.dirpath is not None  # since `setup`
        best = Path(self.dirpath, f"{self.filename}.ckpt")
        if not best.is_file():
            return
        try:
            saved = read_checkpoint(best)
        except UserError as error:
            warn(f"{error}; until then, the next validation's is the best")
            return
        assert isinstance(pl_module, TrainingModule)
        score = saved["callbacks"].get(self.state_key, {}).get("best_model_score")
        if score is not None and pl_module.is_comparable(saved):
            self.best_k_models = {str(best): score}
            self.best_model_path = self.kth_best_model_path = str(best)
            self.best_model_score = self.kth_value = score

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: see `on_load_checkpoint`."""


class SaveLast(pl.Callback):
    """Save the last checkpoint every `every` steps, at the end, and when a signal stops the run.

    It is saved between steps, never within one, and before the validation that follows a step, so
    that a failure in it loses nothing; a resumed run begins with that validation. The first Ctrl-C,
    SIGTERM or SIGUSR1 (which SLURM sends ahead of a time limit) lets the current step finish, the
    second one interrupts it.
    """

    def __init__(self, every: int) -> None:
        check_float("every", every, above=0)
        self.every = every
        self._stop = self._stopped = False
        self._saved_step = self._step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved_step = self._step = trainer.global_step
        if threading.current_thread() is threading.main_thread():
            for number in _STOPPING:  # Lightning restores the program's own handlers
                signal.signal(number, self._on_signal)
        if self._step > 0 and validates_next(trainer):  # a resumed run
            validate(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == self._step:
            return  # gradients are still being accumulated
        self._step = trainer.global_step
        stop = self._stop
        if trainer.world_size > 1:  # all processes stop after the same step
            stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
        # `trainer.val_check_interval` may be a share of an epoch instead of a number of steps.
        due = isinstance(self.every, int) and self._step % self.every == 0
        # The best checkpoint is never without the last one, without which no run resumes; a
        # validation within an accumulated step may follow the first one.
        first = self._saved_step == 0 and trainer.accumulate_grad_batches > 1
        if stop or due or first or self._step == trainer.max_steps or validates_next(trainer):
            self._save(trainer)
        self._stopped = stop

    def on_train_batch_start(self, *args: Any) -> None:
        if self._stopped:  # the step that was saved has been logged since
            raise KeyboardInterrupt

    def on_validation_start(self, *args: Any) -> None:
        self.on_train_batch_start(*args)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._step != self._saved_step:  # the run ended by epochs or by time
            self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        save_last(trainer)
        self._saved_step = self._step

    def _on_signal(self, *_: Any) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True


class ValidateAtStart(pl.Callback):
    """Validate the weights of `init` before the first step: they can be the best of a short run.

    The last checkpoint is written before, as before every validation.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        initialized = pl_module.content.config.get("init") is not None
        if initialized and trainer.global_step == 0 and trainer.enable_validation:
            save_last(trainer)
            validate(trainer)
            if trainer.fit_loop.epoch_loop.restarting:  # Lightning will count a step before
                trainer.fit_loop.epoch_loop._batches_that_stepped -= 1


class ValidateAtEnd(pl.Callback):
    """Validate after the last step, unless a validation has just followed it.

    It stands after `SaveLast`, whose checkpoint is then written before the validation.
    """

    _validated_step = -1

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._validated_step = trainer.global_step

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.enable_validation and self._validated_step != trainer.global_step:
            # Lightning logs with this number, which it has just increased, the index of a step.
            trainer.fit_loop.epoch_loop._batches_that_stepped -= 1
            validate(trainer)
            trainer.fit_loop.epoch_loop._batches_that_stepped += 1

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # A run that was killed in its last validation resumes without a step to train.
        untrained = trainer.global_step > 0 and self._validated_step == -1
        if untrained and trainer.enable_validation:
            pl_module.to(trainer.strategy.root_device)  # Lightning has moved it to the CPU
            validate(trainer)


def save_last(trainer: pl.Trainer) -> None:
    """Save the checkpoint that continues a run, in the run's folder."""
    trainer.save_checkpoint(Path(trainer.default_root_dir, LAST), weights_only=False)


def validates_next(trainer: pl.Trainer) -> bool:
    """Return whether Lightning's training loop validates after the current batch.

    The last checkpoint is saved before a validation. Lightning has no hook there that sees its
    loops in the state after a step.
    """
    if not trainer.enable_validation:
        return False
    fetcher: Any = trainer.fit_loop._data_fetcher  # None after the end
    return trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


def validate(trainer: pl.Trainer) -> None:
    """Run a whole validation where the training loop would not; `Trainer.validate` ends a fit."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.restarting = False  # otherwise a resumed loop continues where it stopped
    loop.reset_restart_stage()
    trainer.validating = True  # as in Lightning's training loop
    loop.run()
    trainer.training = True
