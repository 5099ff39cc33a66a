"""Checkpoint files: written whole or not at all; the best ones know their scores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

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
    """Lightning's `ModelCheckpoint`, which takes the scores of a resumed run from its files.

    The last checkpoint is older than the best one if the run was stopped between the two, and
    names the folder in which the run was then. A checkpoint that was saved as one of the best
    holds its own score.
    """

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        assert self.dirpath is not None  # since `setup`
        scores = {}
        for path in sorted(Path(self.dirpath).glob("[!.]*.ckpt")):
            try:
                score = self._own_score(path.name, read_checkpoint(path))
            except UserError as error:
                warn(f"{error}; until then, the next validation's is the best")
                continue
            if score is not None:
                scores[str(path)] = score
        ranked = sorted(scores, key=lambda path: float(scores[path]), reverse=self.mode == "max")
        if self.save_top_k != -1:
            ranked = ranked[: self.save_top_k]
        if not ranked:
            return
        self.best_k_models = {path: scores[path] for path in ranked}
        self.best_model_path, self.best_model_score = ranked[0], scores[ranked[0]]
        self.kth_best_model_path, self.kth_value = ranked[-1], scores[ranked[-1]]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: see `on_load_checkpoint`."""

    def _own_score(self, name: str, checkpoint: Mapping[str, Any]) -> Tensor | None:
        """Return the score that a checkpoint was saved for; None if it was for another reason."""
        for state in checkpoint.get("callbacks", {}).values():
            if state.get("monitor") == self.monitor and "best_k_models" in state:
                for path, score in state["best_k_models"].items():
                    if Path(path).name == name:
                        return score
        return None
