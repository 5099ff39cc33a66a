"""The run folder: one per run, with the configuration that started it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig, OmegaConf

from musicgen.cli.resume_arguments import save_overrides
from musicgen.console import log
from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.run_folders import LOCK, OVERRIDES, RECORD, claimed, has_checkpoint, record_start

CONFIG = "config.yaml"


class RunRecorder(pl.Callback):
    """Write the configuration of a run into its folder.

    For a resumed run, it is written after the first step, so that a resume that is refused or fails
    at once does not change the run.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg, self.folder = cfg, Path(cfg.paths.output_dir)
        self.steps_taken = False

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder for one process while it trains; start the record of a new run.

        Raises:
            UserError: another process trains in the folder, or it holds another run.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        other = "another process is training in this folder; wait for its end, or interrupt it"
        with claimed(self.folder, other):
            if self.cfg.resume is None:
                self._start()
            yield

    def _start(self) -> None:
        """Record a new run; one that was stopped before its first checkpoint is replaced."""
        if (self.folder / CONFIG).exists():
            if has_checkpoint(self.folder) or not (self.folder / OVERRIDES).is_file():
                setting = shlex.quote(f"resume={self.folder}")
                raise UserError(
                    f"{self.folder} holds another run; continue it with {setting}, or give another "
                    "folder"
                )
            log(f"{self.folder}: stopped before its first checkpoint; it starts again")
            (self.folder / "metrics.csv").unlink(missing_ok=True)
        record_start(self.folder)
        self.write()

    def write(self) -> None:
        write_text(self.folder / CONFIG, OmegaConf.to_yaml(self.cfg, resolve=True))
        save_overrides(self.folder)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.is_global_zero and self.cfg.resume is not None and not self.steps_taken:
            self.write()
        self.steps_taken = True

    def discard(self) -> None:
        """Remove the folder if it contains nothing but the configuration."""
        ours = {CONFIG, LOCK, RECORD, OVERRIDES.parts[0]}
        if {path.name for path in self.folder.iterdir()} <= ours:
            shutil.rmtree(self.folder)
