"""Print published figures together with ours, for what has been run: make table PAPER=spe2021.

    python -m benchmarks.published spe2021 [--outputs outputs] [--evaluated evaluated] [--csv FILE]

conf/experiment/published.csv lists the figures of the papers with the command for each. A run below
--outputs counts if it is finished and has the configuration of the command. Folders do not matter,
and the seed only where the command gives one. Losses by position, and T and M, are taken from what
`evaluate.py` wrote below --evaluated.
"""

import argparse
import json
import math
import shlex
import statistics
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from musicgen.checkpoints import run_identity
from musicgen.cli.build import build_examples
from musicgen.files import read_csv
from musicgen.models import parameter_count
from musicgen.package_data import CONF
from musicgen.report.tables import as_table, write_csv
from musicgen.text import pluralize

PUBLISHED = CONF / "experiment" / "published.csv"
PARAMETERS = "parameters"  # the metric that needs no run


class Job(NamedTuple):
    """One run of train.py: its overrides without the seed, and the seed if it is given."""

    overrides: tuple[str, ...]
    seed: int | None

    def compose(self) -> DictConfig:
        config = _compose(self.overrides).copy()
        config.seed = config.seed if self.seed is None else self.seed
        return config

    @property
    def identity(self) -> str:
        """The identity that a run of this job has."""
        return _identity(self.overrides)


def treatments(command: str) -> list[list[Job]]:
    """Return the training runs of `python train.py [-m] OVERRIDES [&& …]`, grouped over seeds."""
    groups: dict[tuple[str, ...], list[Job]] = {}
    for part in command.split("&&"):
        _, script, *arguments = shlex.split(part, comments=True)
        given = [x for x in arguments if "=" in x] if script == "train.py" else []
        for values in product(*map(choices, given)) if given else ():
            seeds = [x.removeprefix("seed=") for x in values if x.startswith("seed=")]
            others = tuple(x for x in values if not x.startswith("seed="))
            groups.setdefault(others, []).append(Job(others, int(seeds[-1]) if seeds else None))
    return list(groups.values())


@cache
def choices(text: str) -> list[str]:
    """Return the overrides of each job of a sweep: `a=1` and `a=2` for `a=1,2`."""
    (override,) = OverridesParser.create().parse_overrides([text])
    if not override.is_sweep_override():
        return [text]
    return [f"{override.key_or_group}={value}" for value in override.sweep_string_iterator()]


@cache
def _compose(overrides: Sequence[str]) -> Any:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", list(overrides))


@cache
def _identity(overrides: Sequence[str]) -> str:
    config = _compose(overrides).copy()
    config.paths.output_dir = "."  # required to resolve the rest; not part of the identity
    return run_identity(OmegaConf.to_container(config, resolve=True))


class Run:
    """A finished run's folder.

    Attributes:
        rows: of its `metrics.csv`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        self.rows = read_csv(folder / "metrics.csv")

    @cached_property
    def identity(self) -> str:
        return run_identity(self.config)

    @property
    def finished(self) -> bool:
        steps = [int(row["step"]) for row in self.rows if (row.get("step") or "").isdecimal()]
        return max(steps, default=-1) + 1 >= self.config["trainer"]["max_steps"]

    def values(self, column: str) -> list[float]:
        return [float(row[column]) for row in self.rows if row.get(column)]


def main() -> None:
    rows = read_csv(PUBLISHED)
    papers = list(dict.fromkeys(row["paper"] for row in rows))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("paper", choices=papers)
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="run folders")
    parser.add_argument("--evaluated", type=Path, default=Path("evaluated"), help="of evaluate.py")
    parser.add_argument("--csv", type=Path, help="write the table there as well")
    args = parser.parse_args()
    rows = [row for row in rows if row["paper"] == args.paper]
    lines, missing = compare(rows, find_runs(args.outputs), args.evaluated)
    console = Console(width=None if Console().is_terminal else 160)
    for name in dict.fromkeys(line["table"] for line in lines):
        table = [
            {k: v for k, v in line.items() if k != "table"}
            for line in lines
            if line["table"] == name
        ]
        console.print(as_table(table, title=f"{args.paper}, table {name}"))
    if args.csv and lines:
        write_csv(lines, args.csv)
    if missing:
        total = len({row["command"] for row in rows})
        print(f"not run, {len(missing)} of {pluralize(total, 'commands')}:")
        print(*missing, sep="\n")


def compare(
    rows: Sequence[dict[str, str]], runs: Sequence[Run], evaluated: Path
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a line for each row that has been run, and the commands that have not."""
    lines, missing = [], {}
    for row in rows:
        command, metric = row["command"], row["metric"]
        groups = treatments(command)
        found = [[run for job in group for run in newest_run(job, runs)] for group in groups]
        wanted = sum(map(len, groups))
        counted = [group for group in found if group]
        ours: Figure | None = None
        if metric == PARAMETERS:
            _, model, _ = build_examples(groups[0][0].compose())
            ours = Figure(parameter_count(model))
        elif counted and (len(counted) == len(groups) or metric not in OF_ALL):
            ours = figure(metric, counted, evaluated)
        if ours is None:
            missing[command] = None
            continue
        deviation = float(row["deviation"]) if row["deviation"] else None
        line = {name: row[name] for name in ("table", "row", "task", "metric")}
        line["published"] = as_text(Figure(float(row["figure"]), deviation))
        line["ours"] = as_text(ours)
        line["runs"] = "" if metric == PARAMETERS else f"{sum(map(len, found))} of {wanted}"
        lines.append(line)
    return lines, list(missing)


def newest_run(job: Job, runs: Sequence[Run]) -> list[Run]:
    """Return a list with the newest run of a job, empty if there is none."""
    of_seed = [run for run in runs if job.seed in (None, run.config["seed"])]
    return [run for run in of_seed if run.identity == job.identity][-1:]


def find_runs(root: Path) -> list[Run]:
    """Return the finished runs below a folder, the newest last."""
    files = sorted(root.glob("**/metrics.csv"), key=lambda path: path.stat().st_mtime)
    folders = [path.parent for path in files]
    runs = [Run(folder) for folder in folders if (folder / "config.yaml").is_file()]
    return [run for run in runs if run.finished]


class Figure(NamedTuple):
    """A value, with its deviation over seeds or pieces if there are several."""

    value: float
    deviation: float | None = None


def figure(metric: str, groups: Sequence[Sequence[Run]], evaluated: Path) -> Figure | None:
    """Return our figure for a metric; None if the runs do not have it.

    Metrics in `OF_ALL` compare the last group with the first, or are means over all groups.
    """
    if metric in _OF_RUN:
        values = [value for run in groups[0] for value in _OF_RUN[metric](run)]
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return Figure(statistics.mean(values), deviation) if values else None
    if metric in _OF_GROUPS:
        accuracies = [[max(run.values("val/accuracy")) for run in group] for group in groups]
        return Figure(_OF_GROUPS[metric](*accuracies))
    if metric == "mean test accuracy, %":
        found = [figure("test accuracy, %", [group], evaluated) for group in groups]
        return Figure(statistics.mean(x.value for x in found)) if all(found) else None
    if metric.startswith("cross-entropy, "):
        return _position_loss(groups[0][0], metric.removeprefix("cross-entropy, "), evaluated)
    raise ValueError(f"unknown metric: {metric}")


def _last(column: str, run: Run, factor: float = 1) -> list[float]:
    return [factor * value for value in run.values(column)[-1:]]


def _least(column: str, run: Run) -> list[float]:
    return [min(values)] if (values := run.values(column)) else []


def _at_best(column: str, run: Run) -> list[float]:
    """Return a column's value at the lowest validation loss."""
    rows = [row for row in run.rows if row.get("val/loss")]
    best = min(rows, key=lambda row: float(row["val/loss"]), default={})
    return [float(best[column])] if best.get(column) else []


_OF_RUN: dict[str, Callable[[Run], list[float]]] = {
    "test accuracy, %": partial(_last, "test/accuracy", factor=100),
    "test perplexity": partial(_last, "test/perplexity"),
    "validation perplexity": partial(_least, "val/perplexity"),
    "validation loss": partial(_least, "val/loss"),
    "epochs": lambda run: [epoch + 1 for epoch in _at_best("epoch", run)],
    "hours": partial(_at_best, "train/hours"),
    "GB": partial(_at_best, "train/gigabytes"),
}


def _p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the p-value of Welch's t-test, which does not assume equal variances."""
    from scipy.stats import ttest_ind

    return float(ttest_ind(a, b, equal_var=False).pvalue) if min(len(a), len(b)) > 1 else np.nan


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else np.nan


_OF_GROUPS: dict[str, Callable[..., float]] = {
    "validation accuracy, max": max,
    "validation accuracy, mean": statistics.mean,
    "validation accuracy, standard deviation": _deviation,
    "effect": lambda a, b: statistics.mean(b) - statistics.mean(a),
    "p-value": _p_value,
}
# Metrics of all groups; the others are those of the first group.
OF_ALL = frozenset({"effect", "p-value", "mean test accuracy, %"})


def _position_loss(run: Run, part: str, evaluated: Path) -> Figure | None:
    """Return the newest figure that `evaluate.py` wrote below a folder."""
    paths = sorted(evaluated.glob("**/position_loss.json"), key=lambda path: path.stat().st_mtime)
    for path in reversed(paths):
        for each in json.loads(path.read_text(encoding="utf-8"))["runs"]:
            if Path(each["checkpoint"]).resolve().is_relative_to(run.folder.resolve()):
                rows = [row for row in each["rows"] if row["part"] == part]
                if rows:
                    return Figure(rows[0]["mean"], rows[0]["std"])
    return None


def as_text(found: Figure) -> str:
    """Return a figure for print: "0.7493 ± 0.0107"."""
    value, deviation = found
    if math.isnan(value):
        return "n/a"
    size = abs(value)
    digits = 0 if value == round(value) and size >= 100 else 2 if size >= 10 else 4
    text = f"{value:,.{digits}f}"
    return text if deviation is None else f"{text} ± {deviation:.{digits}f}"


if __name__ == "__main__":
    main()
