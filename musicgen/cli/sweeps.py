"""The outcomes of the jobs of a sweep: a line per job in a file, and a table at the end."""

import csv
import shlex
import sys
from operator import itemgetter
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from musicgen.cli.arguments import given_overrides
from musicgen.cli.errors import USER_ERROR
from musicgen.console import log, stdout
from musicgen.files import read_csv

JOBS = "jobs.csv"  # in the sweep's folder
COLUMNS = ("job", "arguments", "outcome", "score")


def record_job(outcome: str, score: float | None) -> None:
    """Append a line about the job that has ended; jobs may run in separate processes.

    Args:
        outcome: the last message of the job.
        score: the best validation score; None if the job has none.
    """
    hydra: Any = HydraConfig.get()
    arguments = shlex.join(given_overrides())
    with Path(hydra.sweep.dir, JOBS).open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow([hydra.job.num, arguments, outcome, score])


class SweepTable(Callback):
    """Hydra's callback that prints a table of the jobs at the end of a sweep.

    The process exits with status 2 if a job was refused, or if the sweep has no job.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        self._path = Path(config.hydra.sweep.dir, JOBS)
        self._given = list(map(str, config.hydra.overrides.task))
        if not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
        self._before = len(read_csv(self._path))  # jobs of an earlier sweep in the same folder

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        jobs = read_csv(self._path)[self._before :]
        if not jobs:
            patterns = ", ".join(each for each in self._given if "glob(" in each)
            log(f"error: {patterns}: matches no choice; the sweep has no job", "red")
            sys.exit(USER_ERROR)
        from musicgen.report.tables import as_table  # takes a while

        given = [shlex.split(job["arguments"]) for job in jobs]
        shared = set.intersection(*map(set, given)) if len(jobs) > 1 else set()
        rows: list[dict[str, Any]] = [
            {
                **job,
                "job": int(job["job"]),
                "arguments": shlex.join(each for each in arguments if each not in shared),
                "score": float(job["score"] or "nan"),
            }
            for job, arguments in zip(jobs, given, strict=True)
        ]
        stdout.print(as_table(sorted(rows, key=itemgetter("job")), title="jobs"))
        log(f"in {self._path}")
        if any(job["outcome"].startswith("error: ") for job in jobs):
            sys.exit(USER_ERROR)
