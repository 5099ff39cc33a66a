"""Tables of results: as CSV, TSV, JSON and terminal tables, and their summary over pieces."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from musicgen.files import write_text
from musicgen.metrics.intervals import Summary, mean_of_valid
from musicgen.metrics.style import PROFILES
from musicgen.text import csv_cell, printable

TableRow = dict[str, Any]
"""A row of the table of a measure: values by column, such as piece, part and value."""

Rows = Sequence[Mapping[str, Any]]
"""The rows of a table."""

IN_FILES = ("skipped", "std", "draws", "seeds", "baseline_n")
"""Columns of CSV files that a terminal does not show."""


def write_csv(rows: Rows, path: str | Path) -> None:
    """Write rows as a CSV file, atomically, with all columns in the order of their appearance.

    NaN, None and missing values become empty cells.
    """
    write_text(path, _as_text(rows, ","))


def as_tsv(rows: Rows, title: str) -> str:
    """Return rows as tab-separated values, after a line with `#` and the title.

    NaN, None and missing values become empty cells.
    """
    return f"# {title}\n" + _as_text(
        [{k: printable(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows],
        "\t",
    )


def _as_text(rows: Rows, delimiter: str) -> str:
    """Return a line with the names of the columns, and a line per row."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _columns(rows), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {k: "" if _missing(v) else csv_cell(v) for k, v in row.items()} for row in rows
    )
    return text.getvalue()


def without_nan(content: Any) -> Any:
    """Return plain data for JSON, in which NaN becomes null."""
    if isinstance(content, Mapping):
        return {key: without_nan(each) for key, each in content.items()}
    if isinstance(content, list | tuple):
        return [without_nan(each) for each in content]
    return None if _missing(content) else content


def as_table(rows: Rows, title: str | None = None) -> Table:
    """Return rows as a terminal table, with 4 decimals for floats and "n/a" for missing values."""

    def cell(value: object) -> Text:
        if _missing(value):
            return Text("n/a")
        # As `Text`, as file names may contain the markup of rich.
        return Text(f"{value:z.4f}" if isinstance(value, float) else printable(str(value)))

    columns, table = _columns(rows), Table(title=title)
    for name in columns:
        numeric = all(isinstance(row.get(name, 0), int | float) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(row.get(name)) for name in columns))
    return table


def _columns(rows: Rows) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _missing(value: object) -> bool:
    return value is None or value != value  # NaN


def summarise(rows: Sequence[TableRow]) -> list[TableRow]:
    """Return rows with the summary of `value` over pieces; rows without `value` are unchanged.

    Returns:
        A row per combination of the columns other than `piece`, `original` and `value`, with
        the columns of `Summary`. Samples with the same `original` count as one piece with their
        mean.
    """
    groups: dict[tuple[Any, ...], dict[Any, list[float]]] = {}
    for row in rows:
        if "value" not in row:
            return list(rows)
        columns = {k: each for k, each in row.items() if k not in ("piece", "original", "value")}
        samples = groups.setdefault(tuple(columns.items()), {})
        samples.setdefault(row.get("original", row["piece"]), []).append(row["value"])
    summaries = []
    for key, by_piece in groups.items():
        row = dict(key)
        means = map(mean_of_valid, by_piece.values())
        summary = Summary.of(means, similarities=row.get("profile") in PROFILES)
        summaries.append(row | asdict(summary))
    return summaries


def readable(rows: Iterable[TableRow]) -> list[TableRow]:
    """Return rows for a terminal: a mean and its interval in one column, without empty columns.

    The columns in `IN_FILES`, and the name of a single run, are left out. The interval of `mean` is
    from `low` to `high`. The interval of `NAME_mean`, or of `NAME` without such a column, is from
    `NAME_low` to `NAME_high`.
    """
    table = []
    for row in rows:
        readable_row, hidden = dict(row), {*IN_FILES}
        for low in row:
            if low == "low" or low.endswith("_low"):
                prefix = low.removesuffix("low")
                mean, high = f"{prefix}mean", f"{prefix}high"
                name = mean if mean in row else prefix.rstrip("_") or "difference"
                readable_row[name] = interval(row[name], row[low], row[high])
                hidden |= {low, high}
        table.append({name: each for name, each in readable_row.items() if name not in hidden})
    shown = {k for row in table for k, value in row.items() if not (_missing(value) or value == "")}
    if len(table) > 1 and len({row.get("run") for row in table}) == 1:
        shown -= {"run"}
    return [{k: value for k, value in row.items() if k in shown} for row in table]


def interval(mean: float, low: float, high: float) -> str:
    """Return a mean with its interval as text: three decimals, or one if ≥ 10; "" for NaN."""
    if math.isnan(mean):
        return ""
    digits = 1 if abs(mean) >= 10 else 3
    text = f"{mean:z.{digits}f}"
    return text if math.isnan(low) else f"{text} ({low:z.{digits}f} to {high:z.{digits}f})"
