"""One table and one plot of the race: the runs of `experiment=race/favor` and `race/softmax`.

    python -m benchmarks.race.table outputs/race [--out benchmarks/results/race]

Finished runs below the folder are measured on the held-out pieces of their corpus, up to four times
the training length, and pooled over seeds, by `evaluate.py metrics=position_loss`. Speed and memory
are those of training, from `metrics.csv`: medians over the run and its seeds. Encodings of conf/
that an attention of the race accepts, and that have no finished run, are named. `corpora.md` shows
the losses on several corpora beside each other.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

from benchmarks import measure
from musicgen.errors import UserError
from musicgen.files import atomic_path, write_text
from musicgen.models import check_compatible
from musicgen.package_data import CONF
from musicgen.report.tables import write_csv, write_json, write_latex
from musicgen.run_folders import OVERRIDES

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
FAVOR, DECAYED, SOFTMAX = "favor", "favor, learned decay", "softmax"  # attentions of the race


class Run(NamedTuple):
    """A finished run."""

    folder: Path
    attention: str
    position: str
    corpus: str
    config: Any
    metrics: list[dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("root", type=Path, help="the folder of the multirun, such as outputs/race")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "race")
    args = parser.parse_args()
    runs = finished_runs(args.root)
    if not runs:
        raise SystemExit(f"{args.root}: no finished run; conf/experiment/race says how")
    tables = {}
    for corpus in dict.fromkeys(run.corpus for run in runs):
        ours = [run for run in runs if run.corpus == corpus]
        tables[corpus] = write_tables(ours, args.out / corpus)
        print(f"{corpus}, {len(ours)} runs, in {args.out / corpus}")
        print(as_markdown(tables[corpus]))
        done = {(run.attention, run.position) for run in ours}
        for attention, position in legal_entries():
            if (attention, position) not in done:
                print(f"not run: {attention}, position={position}")
    write_text(args.out / "corpora.md", as_markdown(beside(tables)))


def write_tables(runs: Sequence[Run], out: Path) -> list[dict[str, str]]:
    """Measure the runs on one corpus; write tables, curves and plot; return the table's text."""
    out.mkdir(parents=True, exist_ok=True)
    measured = position_losses(runs)
    rows = table(runs, measured)
    text = [in_words(row) for row in rows]
    write_csv(rows, out / "race.csv")
    write_latex(text, out / "race.tex")
    write_text(out / "race.md", as_markdown(text))
    curves = {f"{r['attention']}: {r['position']}": measured["curves"][r["group"]] for r in rows}
    write_json({"machine": measure.machine("cpu"), "curves": curves}, out / "race.json")
    plot(rows, measured["curves"], runs[0].config.data.length, out / "race.png")
    return text


def beside(tables: Mapping[str, Sequence[Mapping[str, str]]]) -> list[dict[str, str]]:
    """Return the losses of tables by corpus in one table."""
    columns = {f"{corpus}: {column}": "" for corpus in tables for column in LOSSES}
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for corpus, rows in tables.items():
        for row in rows:
            entry = {name: row[name] for name in ("attention", "position")}
            line = lines.setdefault((row["attention"], row["position"]), entry | columns)
            line |= {f"{corpus}: {column}": row[column] for column in LOSSES}
    return list(lines.values())


def legal_entries() -> Iterator[tuple[str, str]]:
    """Yield each attention of the race with each encoding of conf/ that it accepts."""
    favor, softmax = (OmegaConf.load(CONF / f"attention/{x}.yaml") for x in (FAVOR, SOFTMAX))
    attentions = {
        FAVOR: instantiate(favor),
        DECAYED: instantiate(favor, decay="learned"),
        SOFTMAX: instantiate(softmax),
    }
    for attention, build in attentions.items():
        for path in sorted((CONF / "position").glob("*.yaml")):
            try:
                check_compatible(get_class(OmegaConf.load(path)._target_), build)
            except UserError:
                continue
            yield attention, path.stem


def finished_runs(root: Path) -> list[Run]:
    """Return the runs below a folder that took all their steps, by attention and position."""
    runs = []
    for file in root.glob(f"*/{OVERRIDES}"):
        folder = file.parents[len(OVERRIDES.parts) - 1]
        given = dict(str(item).split("=", 1) for item in OmegaConf.load(file))
        if not (folder / "metrics.csv").is_file():
            continue
        config = OmegaConf.load(folder / "config.yaml")
        with (folder / "metrics.csv").open(newline="", encoding="utf-8") as lines:
            metrics = list(csv.DictReader(lines))
        if any(int(row["step"]) + 1 >= config.trainer.max_steps for row in metrics):
            decay = config.model.attention.get("decay", "none")
            softmax = "Softmax" in config.model.attention._target_
            attention = SOFTMAX if softmax else FAVOR if decay == "none" else DECAYED
            corpus = given.get("data", "composer")
            runs.append(Run(folder, attention, given["position"], corpus, config, metrics))
    return sorted(runs, key=lambda run: (run.attention, run.position, run.config.seed))


def position_losses(runs: Sequence[Run]) -> dict[str, Any]:
    """Measure the runs; return what `evaluate.py` wrote as JSON."""
    folders = ",".join(f"'{run.folder}'" for run in runs)
    with TemporaryDirectory() as out:
        arguments = [f"runs=[{folders}]", f"max_factor={FACTOR}", f"out={out}"]
        command = [sys.executable, "evaluate.py", "metrics=position_loss", *arguments]
        subprocess.run(command, check=True, stdout=sys.stderr)
        return json.loads(Path(out, "position_loss.json").read_text(encoding="utf-8"))


def table(runs: Sequence[Run], measured: Mapping[str, Any]) -> list[Row]:
    """Return a row for each attention and position: losses with intervals, speed, memory."""
    groups = {Path(each["run"]): each["group"] for each in measured["runs"]}
    losses = {row["measure"]: row for row in measured["rows"]}
    rows: dict[tuple[str, str], Row] = {}
    for run in runs:
        if (run.attention, run.position) in rows:
            continue
        ours = [r for r in runs if (r.attention, r.position) == (run.attention, run.position)]
        group = groups[run.folder]
        row: Row = {"attention": run.attention, "position": run.position, "group": group}
        row["seeds"] = sum(each["group"] == group for each in measured["runs"])
        for column, name in LOSSES.items():
            found = losses[f"{group}, {name}"]
            row |= {column: found["mean"], f"{column} low": found["low"]}
            row |= {f"{column} high": found["high"], f"{column} seed_std": found["seed_std"]}
        tokens = run.config.data.batch_size * run.config.data.length
        for column, name in RATES.items():
            row[column] = statistics.median(values(ours, name)) / tokens
        row[MEMORY[0]] = max(values(ours, MEMORY[1]))
        rows[run.attention, run.position] = row
    return list(rows.values())


def values(runs: Sequence[Run], name: str) -> list[float]:
    return [float(row[name]) for run in runs for row in run.metrics if row.get(name)]


def in_words(row: Row) -> dict[str, str]:
    """Return a row for print: each loss with its interval, and the deviation over seeds."""
    text = {name: str(row[name]) for name in ("attention", "position", "seeds")}
    for column in LOSSES:
        low, high, deviation = (row[f"{column} {x}"] for x in ("low", "high", "seed_std"))
        text[column] = f"{row[column]:.3f} [{low:.3f}, {high:.3f}]"
        if deviation is not None:
            text[column] += f" ± {deviation:.3f}"
    return text | {column: f"{row[column]:.2f}" for column in (*RATES, MEMORY[0])}


def as_markdown(rows: Sequence[Mapping[str, str]]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plot(rows: Sequence[Row], curves: Mapping[str, Any], length: int, path: Path) -> None:
    """Plot the loss by position: a panel for each attention, a line for each encoding."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    positions = sorted({row["position"] for row in rows})
    attentions = list(dict.fromkeys(row["attention"] for row in rows))
    figure = Figure(figsize=(1.5 + 4 * len(attentions), 5), layout="constrained")
    panels = figure.subplots(1, len(attentions), sharey=True, squeeze=False)[0]
    lines = {}
    for axes, attention in zip(panels, attentions, strict=True):
        for row in rows:
            if row["attention"] == attention:
                color = colormaps["tab20"](positions.index(row["position"]) % 20)
                points = smoothed(curves[row["group"]])
                (lines[row["position"]],) = axes.plot(*points, color=color)
        axes.axvline(length, color="grey", linestyle="--")
        axes.set(title=attention, xlabel="position in tokens; dashed: the training length")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("nats a token")
    figure.legend(*zip(*((lines[p], p) for p in positions), strict=True), loc="outside right")
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
