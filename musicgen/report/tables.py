"""Rows of results as CSV files and terminal tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from musicgen.files import write_text
from musicgen.text import csv_cell, printable

Row = Mapping[str, object]

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX["±"] = r"$\pm$"
_LATEX |= {character: "\\" + character for character in "&%$#_{}"}


def write_csv(rows: Sequence[Row], path: str | Path) -> None:
    """Write rows as CSV, atomically. Columns are the rows' keys in order of appearance.

    NaN, None and missing values become empty cells.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {k: "" if _missing(v) else csv_cell(v) for k, v in row.items()} for row in rows
    )
    write_text(path, text.getvalue())


def write_json(content: Any, path: str | Path) -> None:
    """Write plain data as JSON, atomically; NaN becomes null."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return None if _missing(value) else value

    write_text(path, json.dumps(plain(content), indent=1, ensure_ascii=False) + "\n")


def write_latex(rows: Sequence[Row], path: str | Path) -> None:
    """Write rows as a LaTeX tabular with booktabs' rules, atomically: floats with 3 decimals."""

    def cell(value: object) -> str:
        if _missing(value):
            return "n/a"
        text = f"{value:z.3f}" if isinstance(value, float) else str(value)
        return "".join(_LATEX.get(character, character) for character in text)

    columns = _columns(rows)
    lines: list[Sequence[object]] = [
        columns,
        *([row.get(name) for name in columns] for row in rows),
    ]
    head, *body = (" & ".join(map(cell, line)) + r" \\" for line in lines)
    rules = [rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}", r"\toprule", head, r"\midrule"]
    ends = [r"\bottomrule", r"\end{tabular}", ""]
    write_text(path, "\n".join([*rules, *body, *ends]))


def as_table(rows: Sequence[Row], title: str | None = None) -> Table:
    """Return the rows as a terminal table: floats with 4 decimals, missing values as "n/a"."""

    def cell(value: object) -> Text:
        if _missing(value):
            return Text("n/a")
        # Text, because file names may contain rich's markup.
        return Text(f"{value:z.4f}" if isinstance(value, float) else printable(str(value)))

    columns = _columns(rows)
    table = Table(title=title)
    for name in columns:
        numeric = all(isinstance(row.get(name, 0), int | float) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(cell(row.get(name)) for name in columns))
    return table


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _missing(value: object) -> bool:
    return value is None or value != value  # NaN
