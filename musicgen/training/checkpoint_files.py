"""Checkpoint files: written whole or not at all; the best one knows its score."""

from __future__ import annotations

import os
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


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint beside its place, to the disk, and then rename it.

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
    """Lightning's `ModelCheckpoint`, which takes the best score of a resumed run from its file.

    The last checkpoint is older than the best one if the run was stopped between the two, and
    names the folder in which the run was then.
    """

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        assert self.dirpath is not None  # since `setup`
        best = Path(self.dirpath, f"{self.filename}.ckpt")
        if not best.is_file():
            return
        try:
            states = read_checkpoint(best)["callbacks"]
        except UserError as error:
            warn(f"{error}; until then, the next validation's is the best")
            return
        score = states.get(self.state_key, {}).get("best_model_score")
        if score is not None:
            self.best_k_models = {str(best): score}
            self.best_model_path = self.kth_best_model_path = str(best)
            self.best_model_score = self.kth_value = score

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: see `on_load_checkpoint`."""
