"""What every measure is reported with: a summary over pieces, and rows as CSV or a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from musicgen.files import write_text

if TYPE_CHECKING:
    from rich.table import Table

CONFIDENCE = 0.95
"""Level of a summary's interval."""

Row = Mapping[str, object]


@dataclass(frozen=True)
class Summary:
    """One measure over many pieces.

    Attributes:
        n: values that count.
        skipped: values that were NaN, such as those of empty tracks.
        mean: NaN without values.
        std: sample standard deviation (divisor n - 1); NaN below two values.
        low, high: bootstrap interval of the mean; NaN below two values.
    """

    n: int
    skipped: int
    mean: float
    std: float
    low: float
    high: float

    @classmethod
    def of(
        cls, values: Iterable[float], *, confidence: float = CONFIDENCE, seed: int = 0
    ) -> Summary:
        """Summarise `values`, leaving out and counting NaN.

        The interval is the percentile bootstrap's (Efron & Tibshirani 1993, section 13.3),
        the same for the same values and seed.
        """
        given = np.fromiter(values, dtype=float)
        kept = given[~np.isnan(given)]
        skipped = len(given) - len(kept)
        if len(kept) < 2:
            mean = float(kept[0]) if len(kept) else math.nan
            return cls(len(kept), skipped, mean, math.nan, math.nan, math.nan)
        from scipy.stats import bootstrap  # most of a second to import

        # The percentile method stays defined on equal values, where BCa divides by zero.
        interval = bootstrap(
            (kept,),
            np.mean,
            confidence_level=confidence,
            method="percentile",
            batch=1000,
            rng=np.random.default_rng(seed),
        ).confidence_interval
        return cls(
            len(kept),
            skipped,
            float(kept.mean()),
            float(kept.std(ddof=1)),
            float(interval.low),
            float(interval.high),
        )

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.std:.3f}"


def write_csv(rows: Sequence[Row], path: str | Path) -> None:
    """Write rows as CSV, atomically. Columns are the rows' keys in order of appearance.

    A value of NaN, or one that a row does not have, is an empty cell.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if _missing(value) else value for key, value in row.items()} for row in rows
    )
    write_text(path, text.getvalue())


def as_table(rows: Sequence[Row], title: str | None = None) -> Table:
    """The rows as a table for the terminal: floats to 4 decimals, NaN as "n/a"."""
    from rich.table import Table
    from rich.text import Text

    columns = _columns(rows)
    table = Table(title=title)
    for name in columns:
        numeric = all(isinstance(row.get(name, 0), int | float) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left")
    for row in rows:
        # As Text, since file names may hold what rich reads as markup.
        table.add_row(*(Text(_cell(row.get(name))) for name in columns))
    return table


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _cell(value: object) -> str:
    if _missing(value):
        return "n/a"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
