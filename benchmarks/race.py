"""Write a table and a plot of a race, that is of a multirun of `experiment=race/…`.

    python -m benchmarks.race outputs/race [--split val] [--out benchmarks/results/race]

`evaluate.py metrics=position_loss` measures all finished runs on the held-out pieces of their
corpus, up to four times the training length, and pools them over seeds. Speed and memory are
medians over the training, from `metrics.csv`. Runs that did not finish are listed. Tables and plots
go to --out, by default the folder of the runs; `corpora.md` compares the losses on several corpora.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from omegaconf import OmegaConf

from musicgen.files import atomic_path, read_csv, write_text
from musicgen.report.tables import write_csv
from musicgen.run_folders import OVERRIDES
from musicgen.text import markdown

Row = dict[str, Any]

FACTOR = 4  # furthest position that is measured, in training lengths
LOSSES = {  # columns of the table, and measures of evaluate.py
    "trained": "trained",
    "2×": "extrapolated 2x",
    "4×": "extrapolated 4x",
    "nats a note": "nats per note",
}
RATES = {"steps/s": "train/tokens_per_second", "steps/CPU s": "train/tokens_per_cpu_second"}
MEMORY = "GB", "train/gigabytes"
# Overrides that are not part of an entry's name: they have their own columns, or never differ.
OTHER_COLUMNS = ("experiment", "attention", "model.attention.decay", "data", "seed")


class Run(NamedTuple):
    """A run of a race.

    Attributes:
        entry: the encoding, and the other settings that the multirun varies.
        finished: it took all its steps.
    """

    folder: Path
    attention: str
    entry: str
    corpus: str
    config: Any
    metrics: list[dict[str, str]]

    @property
    def finished(self) -> bool:
        return any(int(row["step"]) + 1 >= self.config.trainer.max_steps for row in self.metrics)

    def values(self, name: str) -> list[float]:
        return [float(row[name]) for row in self.metrics if row.get(name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("root", type=Path, help="the folder of the multirun, such as outputs/race")
    parser.add_argument("--split", default="test", choices=("val", "test"), help="held-out pieces")
    parser.add_argument("--out", type=Path, help="by default the folder of the runs")
    args = parser.parse_args()
    found, folder = find_runs(args.root), args.out or args.root
    runs = [run for run in found if run.finished]
    if not runs:
        raise SystemExit(f"{args.root}: no finished run; conf/experiment/race says how")
    tables = {}
    for corpus in dict.fromkeys(run.corpus for run in runs):
        ours = [run for run in runs if run.corpus == corpus]
        tables[corpus] = write_tables(ours, args.split, folder / corpus)
        print(f"{corpus}, {len(ours)} runs, in {folder / corpus}")
        print(markdown(tables[corpus]))
    write_text(folder / "corpora.md", markdown(compare_corpora(tables)))
    for run in found:
        if not run.finished:
            print(f"not finished: {run.folder}")


def find_runs(root: Path) -> list[Run]:
    """Return the runs below a folder that have begun to train, by attention and entry."""
    runs = []
    for file in root.glob(f"*/{OVERRIDES}"):
        folder = file.parents[len(OVERRIDES.parts) - 1]
        if not (folder / "metrics.csv").is_file():
            continue
        config = OmegaConf.load(folder / "config.yaml")
        given = dict(str(item).split("=", 1) for item in OmegaConf.load(file))
        metrics = read_csv(folder / "metrics.csv")
        kind = config.model.attention
        feature_map = kind.get("feature_map")  # none with softmax
        attention = feature_map._target_.rpartition(".")[2].lower() if feature_map else "softmax"
        if (decay := kind.get("decay", "none")) != "none":
            attention += f", decay={decay}"
        runs.append(
            Run(folder, attention, name(given), given.get("data", "composer"), config, metrics)
        )
    return sorted(runs, key=lambda run: (run.attention, run.entry, run.config.seed))


def name(given: Mapping[str, str]) -> str:
    """Name an entry by its overrides, as in "rope, coordinates=time"."""
    parts = [given[key] for key in ("position",) if key in given]
    for key, value in given.items():
        if key not in (*OTHER_COLUMNS, "position") and not key.startswith(("data.", "paths.")):
            parts.append(f"{key.rpartition('.')[2]}={value}")
    return ", ".join(parts)


def write_tables(runs: Sequence[Run], split: str, out: Path) -> list[dict[str, str]]:
    """Measure the runs on one corpus; write tables and plot; return the table's text."""
    out.mkdir(parents=True, exist_ok=True)
    measured = position_losses(runs, split)
    rows = table(runs, measured)
    text = [in_words(row) for row in rows]
    write_csv(rows, out / "race.csv")
    write_text(out / "race.md", markdown(text))
    by_run = {curve["run"]: curve for curve in measured["curves"]}
    plot(rows, by_run, runs[0].config.loader.length, out / "race.png")
    return text


def position_losses(runs: Sequence[Run], split: str) -> dict[str, Any]:
    """Measure the runs; return what `evaluate.py` wrote as JSON."""
    folders = ",".join(f"'{run.folder}'" for run in runs)
    with TemporaryDirectory() as out:
        arguments = [f"runs=[{folders}]", f"split={split}", f"out={out}"]
        arguments.append(f"metric.position_loss.max_factor={FACTOR}")
        command = [sys.executable, "evaluate.py", "metrics=position_loss", *arguments]
        subprocess.run(command, check=True, stdout=sys.stderr)
        return json.loads(Path(out, "position_loss.json").read_text(encoding="utf-8"))


def table(runs: Sequence[Run], measured: Mapping[str, Any]) -> list[Row]:
    """Return a row for each attention and entry: losses with intervals, speed, memory."""
    groups = {Path(each["checkpoint"]): each["run"] for each in measured["runs"]}
    losses = {(row["run"], row["part"]): row for row in measured["rows"]}
    entries: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        entries.setdefault((run.attention, run.entry), []).append(run)
    rows = []
    for (attention, entry), ours in entries.items():
        group = groups[ours[0].folder]
        row: Row = {"attention": attention, "entry": entry, "group": group, "seeds": len(ours)}
        for column, part in LOSSES.items():
            found = losses[group, part]
            row |= {column: found["mean"], f"{column} low": found["low"]}
            row |= {f"{column} high": found["high"], f"{column} seed_std": found["seed_std"]}
        tokens = ours[0].config.loader.batch_size * ours[0].config.loader.length
        for column, key in RATES.items():
            row[column] = statistics.median(x for run in ours for x in run.values(key)) / tokens
        row[MEMORY[0]] = max(x for run in ours for x in run.values(MEMORY[1]))
        rows.append(row)
    return rows


def in_words(row: Row) -> dict[str, str]:
    """Return a row for print: each loss with its interval, and the deviation over seeds."""
    text = {key: str(row[key]) for key in ("attention", "entry", "seeds")}
    for column in LOSSES:
        low, high, deviation = (row[f"{column} {x}"] for x in ("low", "high", "seed_std"))
        text[column] = f"{row[column]:.3f}"
        if low is not None:  # of several pieces
            text[column] += f" [{low:.3f}, {high:.3f}]"
        if deviation is not None:
            text[column] += f" ± {deviation:.3f}"
    return text | {column: f"{row[column]:.2f}" for column in (*RATES, MEMORY[0])}


def compare_corpora(tables: Mapping[str, Sequence[Mapping[str, str]]]) -> list[dict[str, str]]:
    """Return one table with the losses on every corpus."""
    columns = {f"{corpus}: {column}": "" for corpus in tables for column in LOSSES}
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for corpus, rows in tables.items():
        for row in rows:
            key = row["attention"], row["entry"]
            line = lines.setdefault(key, {"attention": key[0], "entry": key[1], **columns})
            line |= {f"{corpus}: {column}": row[column] for column in LOSSES}
    return list(lines.values())


def plot(rows: Sequence[Row], curves: Mapping[str, Any], length: int, path: Path) -> None:
    """Plot the loss by position: a panel for each attention, a line for each entry."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    entries = sorted({row["entry"] for row in rows})
    attentions = list(dict.fromkeys(row["attention"] for row in rows))
    figure = Figure(figsize=(1.5 + 4 * len(attentions), 5), layout="constrained")
    panels = figure.subplots(1, len(attentions), sharey=True, squeeze=False)[0]
    lines = {}
    for axes, attention in zip(panels, attentions, strict=True):
        for row in rows:
            if row["attention"] == attention:
                color = colormaps["tab20"](entries.index(row["entry"]) % 20)
                points = smoothed(curves[row["group"]])
                (lines[row["entry"]],) = axes.plot(*points, color=color)
        axes.axvline(length, color="grey", linestyle="--")
        axes.set(title=attention, xlabel="position in tokens; dashed: the training length")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("nats a token")
    figure.legend(*zip(*((lines[x], x) for x in entries), strict=True), loc="outside right")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=120)


def smoothed(curve: Mapping[str, Any], size: int = 4) -> tuple[list[float], list[float]]:
    """Return positions and losses of a curve, with `size` of its buckets in each."""
    places, losses, counts = (np.array(curve[k]) for k in ("position", "loss", "num_targets"))
    parts = [slice(i, i + size) for i in range(0, len(losses), size)]
    weighted = [float(np.average(losses[part], weights=counts[part])) for part in parts]
    return [float(places[part].mean()) for part in parts], weighted


if __name__ == "__main__":
    main()
