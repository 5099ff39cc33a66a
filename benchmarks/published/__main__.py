"""Published figures beside ours, for what has been run: make table PAPER=spe2021.

    python -m benchmarks.published spe2021 [--outputs outputs] [--evaluated evaluated] [--csv FILE]

conf/experiment/published.csv lists the figures of the papers with the command that makes each. A
run below --outputs counts if it is finished and its configuration is that of the command, but for
places and, where the command gives none, the seed. Losses by position, and T and M, are those that
`evaluate.py` wrote below --evaluated.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.published.commands import Job, treatments
from benchmarks.published.figures import OF_ALL, Figure, as_text, figure, parameters
from benchmarks.published.runs import Run, find_runs
from musicgen.package_data import CONF
from musicgen.report.tables import as_table, write_csv
from musicgen.text import pluralize

PUBLISHED = CONF / "experiment" / "published.csv"
PARAMETERS = "parameters"  # the metric that needs no run


def main() -> None:
    rows = published()
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


def published() -> list[dict[str, str]]:
    """Return the rows of published.csv."""
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def compare(
    rows: Sequence[dict[str, str]], runs: Sequence[Run], evaluated: Path
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a line for each row that has been run, and the commands that have not."""
    lines, missing = [], {}
    for row in rows:
        command, metric = row["command"], row["metric"]
        groups = treatments(command)
        found = [[run for job in group for run in _of(job, runs)] for group in groups]
        wanted = sum(map(len, groups))
        counted = [group for group in found if group]
        ours: Figure | None = None
        if metric == PARAMETERS:
            ours = parameters(groups[0][0])
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


def _of(job: Job, runs: Sequence[Run]) -> list[Run]:
    """Return the newest run of a job, if there is one."""
    return [run for run in runs if run.is_of(job)][-1:]


if __name__ == "__main__":
    main()
