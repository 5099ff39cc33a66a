"""Our figures for the metrics of published.csv."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hydra.utils import instantiate

from benchmarks.published.commands import Job
from benchmarks.published.runs import Run, evaluations
from musicgen.cli.datasets import build_examples
from musicgen.cli.measures.resources import best_row
from musicgen.models import parameter_count

Groups = Sequence[Sequence[Run]]  # of runs that differ in their seeds alone


class Figure(NamedTuple):
    """A value, with its deviation over seeds or pieces if there are several."""

    value: float
    deviation: float | None = None


def figure(metric: str, groups: Groups, evaluated: Path) -> Figure | None:
    """Return our figure for a metric; None if the runs do not have it.

    Those of `OF_ALL` compare the last group with the first, or take the mean over groups.
    """
    if metric in _OF_RUN:
        values = [value for run in groups[0] for value in _OF_RUN[metric](run)]
        return _over_seeds(values)
    if metric in _OF_GROUPS:
        accuracies = [[max(run.values("val/accuracy")) for run in group] for group in groups]
        return Figure(_OF_GROUPS[metric](*accuracies))
    if metric == "mean test accuracy, %":  # of several tasks
        found = [figure("test accuracy, %", [group], evaluated) for group in groups]
        return Figure(statistics.mean(x.value for x in found)) if all(found) else None
    if metric == "relative speed":
        speeds = [
            statistics.median(x for run in group for x in run.values("train/tokens_per_second"))
            for group in groups
        ]
        return Figure(speeds[-1] / speeds[0])
    if metric.startswith("cross-entropy, "):
        return _position_loss(groups[0][0], metric.removeprefix("cross-entropy, "), evaluated)
    if found := re.fullmatch(r"([TM]), offset < (\d+), queries (\d+)–(\d+)", metric):
        return _attention(groups[0][0], found, evaluated)
    raise ValueError(f"unknown metric: {metric}")


def parameters(job: Job) -> Figure:
    """Count the parameters of a job's model, which needs no run."""
    config = job.compose()
    model, _ = build_examples(config.data, partial(instantiate, config.model))
    return Figure(parameter_count(model))


def _last(column: str, run: Run, factor: float = 1) -> list[float]:
    return [factor * value for value in run.values(column)[-1:]]


def _least(column: str, run: Run) -> list[float]:
    return [min(values)] if (values := run.values(column)) else []


def _resource(name: str, run: Run) -> list[float]:
    return [best_row(run.folder / "metrics.csv", str(run.folder))[name]]


_OF_RUN: dict[str, Callable[[Run], list[float]]] = {
    "test accuracy, %": partial(_last, "test/accuracy", factor=100),
    "test perplexity": partial(_last, "test/perplexity"),
    "validation perplexity": partial(_least, "val/perplexity"),
    "validation loss": partial(_least, "val/loss"),
    "epochs": partial(_resource, "epochs"),
    "hours": partial(_resource, "hours"),
    "GB": partial(_resource, "GB"),
}


def _p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the p-value of Welch's t-test: of equal means, without equal variances."""
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
# Of several groups; others are of the first alone.
OF_ALL = frozenset({"effect", "p-value", "relative speed", "mean test accuracy, %"})


def _over_seeds(values: Sequence[float]) -> Figure | None:
    if not values:
        return None
    return Figure(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None)


def _is_in(checkpoint: str, run: Run) -> bool:
    return Path(checkpoint).resolve().is_relative_to(run.folder.resolve())


def _position_loss(run: Run, part: str, evaluated: Path) -> Figure | None:
    for content in evaluations(evaluated, "position_loss"):
        for each in content["runs"]:
            if _is_in(each["run"], run):
                rows = [row for row in each["rows"] if row["measure"].endswith(f", {part}")]
                if rows:
                    return Figure(rows[0]["mean"], rows[0]["std"])
    return None


def _attention(run: Run, wanted: re.Match[str], evaluated: Path) -> Figure | None:
    letter, offset, start, end = wanted.groups()
    key = {"T": "translation_invariance", "M": "monotonicity"}[letter]
    for content in evaluations(evaluated, "attention_properties"):
        names = [name for name, path in content.get("runs", {}).items() if _is_in(path, run)]
        for row in content["best_heads"] if content["form"] == "exponential" else ():
            ranges = row["offsets_below"], row["first_query"], row["last_query"] + 1
            if row["model"] in names and ranges == (int(offset), int(start), int(end)):
                return Figure(row[key])
    return None


def as_text(found: Any) -> str:
    """Return a figure for print: "0.7493 ± 0.0107"."""
    if found is None or found.value is None or found.value != found.value:
        return "n/a"
    value, deviation = found
    size = abs(value)
    digits = 0 if value == round(value) and size >= 100 else 2 if size >= 10 else 4
    text = f"{value:,.{digits}f}"
    return (
        text if deviation is None or deviation != deviation else f"{text} ± {deviation:.{digits}f}"
    )
