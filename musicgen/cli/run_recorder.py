"""The run folder: one per run, with the configuration that started it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig, OmegaConf

from musicgen.cli.runner.arguments import save_overrides
from musicgen.errors import UserError
from musicgen.files import write_text


class RunRecorder(pl.Callback):
    """Write the configuration of a run into its folder.

    For a resumed run, it is written after the first step, so that a resume that is refused or fails
    at once does not change the run.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg, self.folder = cfg, Path(cfg.paths.output_dir)
        self.steps_taken = False

    def claim(self) -> None:
        """Create the folder of a new run; raise `UserError` if another run has it."""
        folder = self.folder
        folder.mkdir(parents=True, exist_ok=True)
        try:
            (folder / "config.yaml").touch(exist_ok=False)
        except FileExistsError:
            raise UserError(
                f"{folder} holds another run; continue it with resume={folder}, or give another "
                "folder"
            ) from None
        self.write()

    def write(self) -> None:
        write_text(self.folder / "config.yaml", OmegaConf.to_yaml(self.cfg, resolve=True))
        save_overrides(self.folder)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.is_global_zero and self.cfg.resume is not None and not self.steps_taken:
            self.write()
        self.steps_taken = True

    def discard(self) -> None:
        """Remove the folder if it contains nothing but the configuration."""
        if {path.name for path in self.folder.iterdir()} <= {"config.yaml", ".hydra"}:
            shutil.rmtree(self.folder)
