"""Sweeps that were interrupted: the same command, with the sweep's folder, does what is missing.

A sweep numbers its jobs in the same order each time, Optuna with a seed and the same scores too. So
a job finds its own run in its folder, and returns its score, or continues it.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from musicgen.cli.runner.arguments import given_overrides, quote
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
    if _began(folder):
        if (folder / FINISHED).is_file():
            log(f"{folder}: finished before")
            return json.loads((folder / FINISHED).read_text(encoding="utf-8"))["score"]
        if (folder / LAST).is_file():
            with open_dict(cfg):
                cfg.resume = str(folder / LAST)
            sys.argv.append(f"resume={quote(str(folder))}")  # for the processes of DDP
    score = main(cfg)
    write_text(folder / FINISHED, json.dumps({"score": score}) + "\n")
    return score


def log_how_to_continue() -> None:
    """Tell how to continue a sweep that is interrupted."""
    folder = shlex.quote(str(HydraConfig.get().sweep.dir))
    log(f"to continue the sweep: the same command with hydra.sweep.dir={folder}")


def _began(folder: Path) -> bool:
    """Return whether a folder holds a run with the arguments of this job."""
    try:
        stored = OmegaConf.to_container(OmegaConf.load(folder / OVERRIDES))
    except Exception:  # missing, or broken YAML, which raises many types
        return False
    return stored == given_overrides()
