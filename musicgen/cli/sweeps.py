"""Sweeps: jobs that do not disturb each other, and a sweep that was interrupted goes on.

The same command, with the sweep's folder, does what is missing: a sweep numbers its jobs in the
same order each time, Optuna with a seed and the same scores too. So a job finds its own run in its
folder, and returns its score, or continues it.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict, read_write

from musicgen.cli.arguments import quoted
from musicgen.cli.resume import given_overrides, stored_overrides
from musicgen.console import log
from musicgen.files import write_text
from musicgen.run_folders import LAST, OVERRIDES

FINISHED = "finished.json"  # in the folder of a sweep's job: its score


def in_sweep() -> bool:
    return bool(HydraConfig.get().mode == RunMode.MULTIRUN)


def run_job(main: Callable[[DictConfig], Any], cfg: DictConfig) -> Any:
    """Call `main`; in a sweep of trainings, with what an earlier call left to do."""
    if not in_sweep() or "resume" not in cfg:
        return main(cfg)
    folder = Path(HydraConfig.get().runtime.output_dir)
    stored = stored_overrides(folder) if (folder / OVERRIDES).is_file() else []
    if [str(each.input_line) for each in stored] == given_overrides():
        if (folder / FINISHED).is_file():
            log(f"{folder}: finished before")
            return json.loads((folder / FINISHED).read_text(encoding="utf-8"))["score"]
        if (folder / LAST).is_file():
            with open_dict(cfg):
                cfg.resume = str(folder / LAST)
            sys.argv.append(f"resume={quoted(str(folder))}")  # for the processes of DDP
    score = main(cfg)
    write_text(folder / FINISHED, json.dumps({"score": score}) + "\n")
    return score


def log_how_to_continue() -> None:
    """Tell how to continue a sweep that is interrupted."""
    folder = shlex.quote(str(HydraConfig.get().sweep.dir))
    log(f"to continue the sweep: the same command with hydra.sweep.dir={folder}")


@contextmanager
def isolated_job() -> Iterator[None]:
    """Keep the jobs of a sweep apart where they start processes, as DDP does.

    Lightning starts them with this process's arguments and `hydra.run.dir`; in a sweep, they would
    start the sweep again in another folder. It also leaves its process group and the environment
    variables that describe it to the next job.
    """
    if not in_sweep():
        yield
        return
    hydra_config: Any = HydraConfig.get()
    sys.argv = [sys.argv[0], *given_overrides()]
    with read_write(hydra_config):
        hydra_config.run.dir = hydra_config.runtime.output_dir
    environment = dict(os.environ)
    try:
        yield
    finally:
        if "torch" in sys.modules:  # else the job failed before it could start processes
            from torch import distributed

            if distributed.is_initialized():
                distributed.destroy_process_group()
        if "wandb" in sys.modules:  # else the next job logs to this one's run
            sys.modules["wandb"].finish()
        os.environ.clear()
        os.environ.update(environment)
