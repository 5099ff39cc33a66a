"""The base of all measures, their common inputs, and tables of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from musicgen.errors import ParameterError
from musicgen.metrics.summary import CONFIDENCE
from musicgen.validation import check_int

Row = dict[str, Any]
SUMMARY = f"n: pieces; low, high: {CONFIDENCE:.0%} confidence interval of the mean (bootstrap)"


@dataclass(frozen=True)
class Inputs:
    """What to measure: the settings of `conf/evaluate.yaml`; `root` is its `data.root`."""

    checkpoint: str
    split: str
    device: str
    seed: int
    generated: str | None = None
    references: str | Sequence[str] | None = None
    compare: Sequence[str] | None = None
    runs: Sequence[str] | None = None
    root: str | None = None
    max_pieces: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("compare", self.compare), ("runs", self.runs)):
            if isinstance(value, str):
                raise ParameterError(name, value, "expected a list of different folders: [A,B]")
        check_int("max_pieces", self.max_pieces, none_means="all")
        check_int("seed", self.seed, 0)

    @property
    def checkpoints(self) -> list[str]:
        """The paths of `runs`, or that of `checkpoint`."""
        return list(self.runs or [self.checkpoint])


class Measure(ABC):
    """A measure: its settings are the constructor's arguments.

    Attributes:
        name: as on the command line, and of its files.
        legend: what the columns of the table mean.
    """

    name: ClassVar[str]
    legend: ClassVar[str]

    @abstractmethod
    def compute(self, inputs: Inputs, out: Path) -> list[Row]:
        """Return the rows of NAME.csv; write plots and further files to the folder `out`.

        Raises:
            UserError: what it needs is not among the inputs, or cannot be read.
        """

    def tables(self, rows: list[Row]) -> dict[str, list[Row]]:
        """Return what the terminal shows: tables by title."""
        return {self.name: rows}


def pivot(
    rows: Iterable[Row], index: Sequence[str], columns: str, value: Callable[[Row], Any]
) -> list[Row]:
    """Return a row for each combination of the columns `index`, with a column for each `columns`.

    Args:
        value: what stands in a cell.
    """
    table: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        names = {name: row[name] for name in index}
        table.setdefault(tuple(names.values()), names)[row[columns]] = value(row)
    return list(table.values())


def without_empty_columns(rows: Sequence[Row]) -> list[Row]:
    """Leave out the columns in which all rows have None or NaN."""
    kept = {k for row in rows for k, value in row.items() if value is not None and value == value}
    return [{k: value for k, value in row.items() if k in kept} for row in rows]


RUN = ("run", "R")
"""The columns that name a model of a table: its run, and its realizations if it has any."""


def run_label(row: Mapping[str, Any]) -> str:
    """Return the name of a row's `run`, with its realizations `R` if it has any."""
    return row["run"] if row["R"] is None else f"{row['run']}, R = {row['R']}"
