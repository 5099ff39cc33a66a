"""Evaluation of a run, or of several: losses, continuations and a verdict, on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from musicgen.console import log
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.position_loss import furthest, plot_loss_curves
from musicgen.evaluation.run_figures import Line, RunFigures, Sizes, held_out, run_figures
from musicgen.evaluation.runs import SAME_PIECES, load_runs, shorten
from musicgen.evaluation.training_data import open_training_data
from musicgen.evaluation.verdict import TRIGRAM, judge, judge_differences
from musicgen.files import write_text
from musicgen.metrics.differences import holm, paired_difference, unpaired_difference
from musicgen.metrics.position_loss import loss_curve
from musicgen.metrics.summary import CONFIDENCE, Summary, mean_of_valid
from musicgen.report import render_report, verdict_section
from musicgen.report.tables import TableRow, readable, write_csv
from musicgen.validation import check_int

PAGE = "index.html"
MAX_FACTOR = 2  # longest position, as a multiple of the training length
MAX_SHOWN = 12  # pieces on the page of several runs


def evaluation(
    inputs: Inputs, out: Path, *, num_prompts: int, bars: int, num_pieces: int
) -> list[TableRow]:
    """Judge what a run has learned, and its continuations of held-out pieces.

    Writes `index.html`, with the verdict and the continuations, `position_loss.png` and the
    continuations as generate.py does. Of several runs, it measures the same pieces, and returns
    the differences with the p values that chance explains them; `evaluation_runs.csv` has the
    figures of each run.

    Args:
        num_prompts: held-out pieces that are continued.
        bars: that are added to each.
        num_pieces: held-out pieces, and training pieces, of which the loss is computed.
    """
    for name, value in (("num_prompts", num_prompts), ("bars", bars), ("num_pieces", num_pieces)):
        check_int(name, value)
    models = load_runs(inputs, same_tokens=False)
    names = _names([model.path for model in models])
    data = [open_training_data(model, inputs.root) for model in models]
    split, pieces = _common_pieces(data, inputs.split, names)
    # The same tokens of all runs, whatever the lengths that they were trained at.
    length = min(furthest(model, MAX_FACTOR) for model in models)
    trained = min(model.training_length for model in models)
    sizes = Sizes(num_prompts, bars, inputs.max_pieces or num_pieces, length, trained)
    runs: dict[str, RunFigures] = {}
    for number, (name, model, corpus) in enumerate(zip(names, models, data, strict=True), start=1):
        folder = out / ("continuations" if len(models) == 1 else f"continuations_{number}")
        indices = [corpus.cache.names.index(piece) for piece in pieces]
        runs[name] = run_figures(model, corpus, split, indices, sizes, inputs.seed, folder)
    rows = [
        {"run": name, **_row(line, inputs.seed)}
        for name, figures in runs.items()
        for line in figures.lines
    ]
    if len(runs) == 1:
        title, judgements = f"Verdict on {names[0]}", judge(rows)
    else:
        title = f"Comparison of {', '.join(names)}"
        write_csv(rows, out / "evaluation_runs.csv")
        rows = _differences(runs, inputs.seed)
        judgements = judge_differences(rows, 1 - CONFIDENCE)
    bucket = max(1, models[0].training_length // 16)
    losses = {name: figures.curves["model"] for name, figures in runs.items()}
    losses[TRIGRAM] = runs[names[0]].curves[TRIGRAM]
    curves = [
        {"run": name, "R": None, **loss_curve(each, bucket)._asdict()}
        for name, each in losses.items()
    ]
    plot = out / "position_loss.png"
    plot_loss_curves(curves, plot, training_length=models[0].training_length)
    notices = [*dict.fromkeys(x for figures in runs.values() for x in figures.notices)]
    shown = [
        replace(piece, title=f"{piece.title} ({name})") if len(runs) > 1 else piece
        for name, figures in runs.items()
        for piece in figures.pieces
    ]
    if len(runs) > 1:
        shown = sorted(shown, key=lambda piece: piece.title)[:MAX_SHOWN]
    summary = verdict_section(judgements, readable(rows), plot.read_bytes(), notices)
    write_text(out / PAGE, render_report(title=title, pieces=shown, metadata={}, summary=summary))
    for notice in notices:
        log(notice)
    for question, answer, figures, advice in judgements:
        log(f"{question} {answer}: {figures}" + (f". {advice}." if advice else ""))
    log(f"open {out / PAGE}")
    return rows


def _names(paths: Sequence[Path]) -> list[str]:
    """Return short names: those of the runs' folders, or of other checkpoints."""
    folders = [path.parent if path.name == "best.ckpt" else path for path in paths]
    if len(folders) == 1:
        folders = [Path(*folders[0].parts[-3:])]
    return shorten([str(folder) for folder in folders])


def _common_pieces(
    data: Sequence[EncodedCorpus], split: str, names: Sequence[str]
) -> tuple[str, list[str]]:
    """Return the held-out pieces that all runs have, by name, and their split.

    Raises:
        UserError: the runs have no held-out piece in common.
    """
    found = [held_out(corpus, split) for corpus in data]
    pieces = [[corpus.cache.names[i] for i in x[1]] for corpus, x in zip(data, found, strict=True)]
    common = [name for name in pieces[0] if all(name in others for others in pieces)]
    if not common or len({each for each, _ in found}) > 1:
        raise UserError(f"{' and '.join(names)} have other splits; {SAME_PIECES}")
    return found[0][0], common


def _row(line: Line, seed: int) -> TableRow:
    """Return the means of a measure and of what it stands beside, and their difference."""
    compare = unpaired_difference
    if line.values.keys() == line.others.keys():  # the same pieces
        compare = paired_difference
    row: TableRow = {"measure": line.measure}
    for prefix, values in (("", line.values), ("beside_", line.others)):
        found = Summary.of(values.values(), seed=seed)
        row |= {f"{prefix}{name}": getattr(found, name) for name in ("n", "mean", "low", "high")}
        row.setdefault("beside", line.beside)
    difference = compare(line.values, line.others, seed=seed)
    row |= {"difference": difference.mean, "difference_low": difference.low}
    return row | {"difference_high": difference.high}


def _differences(runs: Mapping[str, RunFigures], seed: int) -> list[TableRow]:
    """Return a row for each measure and pair of runs: the second less the first."""
    values = {run: {x.measure: x.values for x in figures.lines} for run, figures in runs.items()}
    rows: list[TableRow] = []
    for first, second in combinations(values, 2):
        for measure in (name for name in values[first] if name in values[second]):
            old, new = values[first][measure], values[second][measure]
            n, mean, low, high, p = paired_difference(new, old, seed=seed)
            names = {"measure": measure, "first": first, "second": second, "n": n}
            means = (mean_of_valid(np.array([*found.values()])) for found in (old, new))
            names |= zip(("first_mean", "second_mean"), means, strict=True)
            rows.append({**names, "difference": mean, "low": low, "high": high, "p": p})
    corrected = holm([row["p"] for row in rows])
    return [{**row, "p": p} for row, p in zip(rows, corrected, strict=True)]
