"""Evaluation of a run, or of several: losses, continuations and a verdict, on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import yaml

from musicgen.console import log
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.position_loss import furthest, plot_loss_curves
from musicgen.evaluation.run_figures import Line, RunFigures, Sizes, held_out, run_figures
from musicgen.evaluation.runs import SAME_PIECES, load_runs, shorten
from musicgen.evaluation.training_data import open_training_data
from musicgen.evaluation.verdict import TRIGRAM, Judgement, interval, judge, judge_differences
from musicgen.files import write_text
from musicgen.generation.model import MusicModel
from musicgen.metrics.differences import holm, paired_difference, unpaired_difference
from musicgen.metrics.position_loss import loss_curve
from musicgen.metrics.summary import CONFIDENCE, Summary, mean_of_valid
from musicgen.package_data import CONF
from musicgen.report import render_report
from musicgen.report.tables import TableRow, write_csv
from musicgen.report.verdict import verdict_section
from musicgen.validation import check_int

PAGE = "index.html"
MAX_FACTOR = 2  # longest position, as a multiple of the training length
MAX_SHOWN = 12  # pieces on the page of several runs


def evaluate_run(run: Path, out: Path, *, device: str, sizes: Mapping[str, int]) -> None:
    """Evaluate one run with the settings of conf/metric/evaluation.yaml.

    Args:
        run: its folder.
        out: the folder of the page, the table and the continuations.
        sizes: arguments of `evaluation` in place of those settings.
    """
    settings = yaml.safe_load((CONF / "metric" / "evaluation.yaml").read_text(encoding="utf-8"))
    del settings["_target_"], settings["_partial_"]
    inputs = Inputs(checkpoint=str(run), split="test", device=device, seed=0)
    write_csv(evaluation(inputs, out, **settings | sizes), out / "evaluation.csv")


def evaluation(
    inputs: Inputs, out: Path, *, num_prompts: int, bars: int, num_pieces: int
) -> list[TableRow]:
    """What a run has learned, and how its continuations of held-out pieces are.

    Writes `index.html`, with the verdict in words and the continuations, `position_loss.png` and
    the continuations as generate.py does. Of several runs, it writes the differences that are
    larger than chance: the same pieces are compared, in `differences.csv`.

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
    found: dict[str, RunFigures] = {}
    for number, (name, model, corpus) in enumerate(zip(names, models, data, strict=True)):
        folder = out / ("continuations" if len(models) == 1 else f"continuations_{number + 1}")
        indices = [corpus.cache.names.index(piece) for piece in pieces]
        found[name] = run_figures(model, corpus, split, indices, sizes, inputs.seed, folder)
    rows = [
        {"run": name, **_row(line, inputs.seed)}
        for name, figures in found.items()
        for line in figures.lines
    ]
    if len(found) == 1:
        (name, figures), title = next(iter(found.items())), f"Verdict on {names[0]}"
        judgements = judge(rows, figures.facts)
        table = _table(rows)
    else:
        title = f"Comparison of {', '.join(names)}"
        differences = _differences(found, inputs.seed)
        write_csv(differences, out / "differences.csv")
        judgements = judge_differences(differences, 1 - CONFIDENCE)
        table = _difference_table(differences)
    plot = out / "position_loss.png"
    _plot(found, models[0], plot)
    notices = [*dict.fromkeys(x for figures in found.values() for x in figures.notices)]
    _write_page(out / PAGE, title, judgements, table, plot, found, notices)
    for notice in notices:
        log(notice)
    for each in judgements:
        log(
            f"{each.question} {each.answer}: {each.figures}"
            + f". {each.advice}." * bool(each.advice)
        )
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
    own, others = (Summary.of(x.values(), seed=seed) for x in (line.values, line.others))
    same_pieces = line.values.keys() == line.others.keys()
    compare = paired_difference if same_pieces else unpaired_difference
    difference = compare(line.values, line.others, seed=seed)
    return {
        "measure": line.measure,
        "n": own.n,
        "mean": own.mean,
        "low": own.low,
        "high": own.high,
        "beside": line.beside,
        "beside_n": others.n,
        "beside_mean": others.mean,
        "beside_low": others.low,
        "beside_high": others.high,
        "difference": difference.mean,
        "difference_low": difference.low,
        "difference_high": difference.high,
    }


def _differences(found: Mapping[str, RunFigures], seed: int) -> list[TableRow]:
    """Return a row for each measure and pair of runs: the second less the first."""
    values = {run: {x.measure: x.values for x in fig.lines} for run, fig in found.items()}
    rows: list[TableRow] = []
    for first, second in combinations(values, 2):
        for measure in (name for name in values[first] if name in values[second]):
            pair = values[second][measure], values[first][measure]
            means = {
                "first_mean": mean_of_valid(np.array([*pair[1].values()])),
                "second_mean": mean_of_valid(np.array([*pair[0].values()])),
            }
            n, mean, low, high, p = paired_difference(*pair, seed=seed)
            names = {"measure": measure, "first": first, "second": second, "n": n}
            rows.append({**names, **means, "difference": mean, "low": low, "high": high, "p": p})
    corrected = holm([row["p"] for row in rows])
    return [{**row, "p": p} for row, p in zip(rows, corrected, strict=True)]


def _table(rows: Sequence[TableRow]) -> list[TableRow]:
    return [
        {
            "measure": row["measure"],
            "n": row["n"],
            "mean": interval(row["mean"], row["low"], row["high"]),
            "beside": row["beside"],
            "its mean": interval(row["beside_mean"], row["beside_low"], row["beside_high"]),
            "difference": interval(
                row["difference"], row["difference_low"], row["difference_high"]
            ),
        }
        for row in rows
    ]


def _difference_table(rows: Sequence[TableRow]) -> list[TableRow]:
    return [
        {
            "measure": row["measure"],
            "n": row["n"],
            "runs": f"{row['first']} → {row['second']}",
            "means": f"{row['first_mean']:.3g} → {row['second_mean']:.3g}",
            "difference": interval(row["difference"], row["low"], row["high"]),
            "p": f"{row['p']:.2g}",
        }
        for row in rows
    ]


def _plot(found: Mapping[str, RunFigures], first: MusicModel, path: Path) -> None:
    """Plot the loss by position of each run, and that of the first one's trigram model."""
    bucket = max(1, first.training_length // 16)
    losses = {name: figures.curves["model"] for name, figures in found.items()}
    losses["trigram"] = next(iter(found.values())).curves[TRIGRAM]
    curves = [
        {"run": name, "R": None, **loss_curve(each, bucket)._asdict()}
        for name, each in losses.items()
    ]
    plot_loss_curves(curves, path, training_length=first.training_length)


def _write_page(
    path: Path,
    title: str,
    judgements: Sequence[Judgement],
    table: Sequence[TableRow],
    plot: Path,
    found: Mapping[str, RunFigures],
    notices: Sequence[str],
) -> None:
    pieces = [
        replace(piece, title=f"{piece.title} ({name})") if len(found) > 1 else piece
        for name, figures in found.items()
        for piece in figures.pieces
    ]
    if len(found) > 1:
        pieces = sorted(pieces, key=lambda piece: piece.title)[:MAX_SHOWN]
    page = render_report(
        title=title,
        pieces=pieces,
        metadata={},
        summary=verdict_section(judgements, table, plot.read_bytes(), notices),
    )
    write_text(path, page)
