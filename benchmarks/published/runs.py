"""Run folders that a published command would have made."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from benchmarks.published.commands import Job
from musicgen.cli.measures.compared import without_incidental

SECTIONS = ("model", "tokenizer", "data", "task", "optimizer", "scheduler")
TRAINER = ("max_steps", "max_epochs", "accumulate_grad_batches", "gradient_clip_val")


class Run:
    """A finished run's folder.

    Attributes:
        rows: of its `metrics.csv`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
            self.rows = list(csv.DictReader(file))

    @cached_property
    def settings(self) -> Any:
        return settings(self.config)

    @property
    def finished(self) -> bool:
        steps = [int(row["step"]) for row in self.rows if (row.get("step") or "").isdecimal()]
        return max(steps, default=-1) + 1 >= self.config["trainer"]["max_steps"]

    def values(self, column: str) -> list[float]:
        return [float(row[column]) for row in self.rows if row.get(column)]

    def is_of(self, job: Job) -> bool:
        """Return whether a job of a command makes this run."""
        if job.seed is not None and job.seed != self.config["seed"]:
            return False
        return self.settings == job_settings(job)


def find_runs(root: Path) -> list[Run]:
    """Return the finished runs below a folder."""
    folders = [path.parent for path in sorted(root.glob("**/metrics.csv"))]
    runs = [Run(folder) for folder in folders if (folder / "config.yaml").is_file()]
    return [run for run in runs if run.finished]


def job_settings(job: Job) -> Any:
    config = job.compose()
    plain = {name: OmegaConf.to_container(config[name], resolve=True) for name in SECTIONS[2:]}
    plain |= {"model": OmegaConf.to_container(config.model, resolve=True)}
    tokenizer = config.get("tokenizer")
    plain["tokenizer"] = tokenizer and OmegaConf.to_container(tokenizer, resolve=True)
    plain["trainer"] = {name: config.trainer.get(name) for name in TRAINER}
    return settings(plain)


def settings(config: Any) -> Any:
    """Return what decides a run's result, without its seed, places, and settings that are off.

    A setting that is newer than the run means that it is off.
    """
    chosen = {name: config.get(name) for name in SECTIONS}
    chosen["trainer"] = {name: config["trainer"].get(name) for name in TRAINER}
    return _without_off(without_incidental(chosen))


def _without_off(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    cleaned = {key: _without_off(value) for key, value in node.items()}
    return {
        key: value for key, value in cleaned.items() if value not in (None, False, "none", {}, [])
    }


def evaluations(root: Path, name: str) -> Iterator[Any]:
    """Yield what `evaluate.py` wrote as NAME.json below a folder, the newest first."""
    paths: Sequence[Path] = sorted(root.glob(f"**/{name}.json"), key=lambda x: x.stat().st_mtime)
    for path in reversed(paths):
        yield json.loads(path.read_text(encoding="utf-8"))
