"""The measure `position_loss` of `evaluate`: the loss of models by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from musicgen.cli.datasets import open_training_data
from musicgen.cli.measures.compared import Compared, compared_models
from musicgen.console import log, progress_bar
from musicgen.data.preparation import EncodedCorpus
from musicgen.generation.model import MusicModel
from musicgen.metrics import (
    InterpolatedTrigram,
    LossCurve,
    length_summaries,
    loss_curve,
    mean_prediction_losses,
    unit_summary,
)
from musicgen.position import SPE
from musicgen.random import NoiseKey, RandomStream
from musicgen.report.matrix_plots import plot_realizations
from musicgen.report.plots import plot_loss_curves
from musicgen.report.tables import write_csv, write_json, write_latex
from musicgen.text import pluralize
from musicgen.training.evaluation import position_losses

Row = dict[str, Any]
Losses = list[NDArray[np.float64]]  # of pieces: [draws, L] of a run, [seeds, draws, L] of a group
_TRIGRAM = "trigram"


class Result(NamedTuple):
    """The losses of a run or of a group of runs."""

    name: str
    losses: Losses
    training_length: int
    length: int  # the furthest position


def position_loss(cfg: DictConfig, out: Path) -> list[Row]:
    """Compute the loss by position over held-out pieces, of models and of a trigram model.

    Each piece has noise of its own in each draw. Runs that differ in their seeds alone are one row:
    their mean, with the deviation over seeds. The trigram model is interpolated (Witten-Bell) and
    fitted on the training pieces. The table is also written as LaTeX, a row for each group, and
    with the loss by position, and that of each run, as JSON.
    """
    compared = compared_models(cfg)
    first = compared[0].model
    data = open_training_data(first, cfg.data.root)
    indices = data.split(cfg.split)[: cfg.max_pieces]
    pieces = {i: data.cache[i] for i in indices}
    trigram = InterpolatedTrigram(len(first.tokenizer.vocabulary))
    trigram.fit([data.cache[i] for i in data.split("train")])
    lengths = [_furthest(each, cfg) for each in compared]
    count = pluralize(len(indices), f"pieces of {cfg.split}")
    averaged = f", each in {2 * cfg.transpositions + 1} keys" if cfg.transpositions else ""
    log(f"{count}, up to {max(lengths):,} tokens{averaged}")
    runs: list[Result] = []
    with progress_bar(MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        for each, length in zip(compared, lengths, strict=True):
            losses = []
            for i in progress.track(indices, description=each.name):
                piece = pieces[i][: length + 1]
                noise = NoiseKey((cfg.seed, RandomStream.EVALUATION, i))
                losses.append(_losses(each.model, piece, data.cache.bar_lengths[i], noise, cfg))
            runs.append(Result(each.name, losses, each.model.training_length, length))
        losses = [
            trigram.losses(piece[: lengths[0] + 1])[None, 1:]
            for piece in progress.track(list(pieces.values()), description=_TRIGRAM)
        ]
    results = _by_group(compared, runs)
    results.append(Result(_TRIGRAM, losses, first.training_length, lengths[0]))
    bucket = max(1, first.training_length // 16)
    curves = {each.name: loss_curve(each.losses, bucket) for each in results}
    rows = _rows(results, cfg.seed)
    grid = _by_realizations(compared, rows)
    rows += _unit_rows(results, data, indices, cfg.seed)
    plot_loss_curves(curves, out / "position_loss.png", training_length=first.training_length)
    write_latex(_by_model(rows), out / "position_loss.tex")
    if len({row["R in evaluation"] for row in grid}) > 1:
        write_csv(grid, out / "realizations.csv")
        _plot_grid(grid, out / "realizations.png")
    each_run = [
        {
            "run": each.run,
            "name": each.name,
            "group": each.group,
            "seed": each.model.content.config.get("seed"),
            "rows": _rows([run], cfg.seed) + _unit_rows([run], data, indices, cfg.seed),
            "curve": _plain(loss_curve(run.losses, bucket)),
        }
        for each, run in zip(compared, runs, strict=True)
    ]
    arrays = {name: _plain(curve) for name, curve in curves.items()}
    content = {"rows": rows, "curves": arrays, "realizations": grid, "runs": each_run}
    write_json(content, out / "position_loss.json")
    _log_gains(rows)
    return rows


def _furthest(each: Compared, cfg: DictConfig) -> int:
    """Return the last position of pieces that the model reads."""
    length = round(cfg.max_factor * each.model.training_length)
    return min(length, each.model.model.position.max_length or length)


def _losses(
    model: MusicModel,
    piece: NDArray[np.int64],
    bar_length: int,
    noise: NoiseKey,
    cfg: DictConfig,
) -> NDArray[np.float64]:
    """Return the losses of the predictions' mean over the piece's transpositions. [draws, L]."""
    furthest = cfg.transpositions
    losses: Losses = []
    for semitones in sorted(range(-furthest, furthest + 1), key=abs):  # the piece itself first
        moved = model.tokenizer.transpose(piece, semitones)
        if losses and len(moved) < 2:  # its first pitch is out of range: nothing is predicted
            losses.append(losses[0][:, :0])
            continue
        options = {"positions": model.positions(moved, bar_length), "num_draws": cfg.num_draws}
        losses.append(position_losses(model.model, moved, noise, **options))
    return mean_prediction_losses(losses)


def _by_group(compared: Sequence[Compared], runs: Sequence[Result]) -> list[Result]:
    """Return the losses of each group of runs: [seeds, draws, L] for each piece."""
    groups: dict[str, list[Result]] = {}
    for each, run in zip(compared, runs, strict=True):
        groups.setdefault(each.group, []).append(run)
    results = []
    for name, group in groups.items():
        losses = [np.stack(piece) for piece in zip(*(run.losses for run in group), strict=True)]
        results.append(group[0]._replace(name=name, losses=losses))
    return results


def _rows(results: Sequence[Result], seed: int) -> list[Row]:
    """Return a row for each result and range of positions."""
    rows = []
    for name, losses, training_length, length in results:
        factors = tuple(f for f in (1.5, 2.0, 4.0) if f * training_length <= length)
        parts = length_summaries(losses, training_length, factors, seed=seed)
        rows += [{"measure": f"{name}, {part}", **asdict(s)} for part, s in parts.items()]
    return rows


def _unit_rows(
    results: Sequence[Result], data: EncodedCorpus, indices: Sequence[int], seed: int
) -> list[Row]:
    """Return rows of the nats per note and per bar of each result, over all tokens that it reads.

    The notes are those of `Tokenizer.num_notes`. The end token belongs to none, nor to a bar.
    """
    rows: list[Row] = []
    tokenizer, cache = data.tokenizer, data.cache
    for name, losses, _, length in results:
        pieces = [tokenizer.until_end(cache[i][: length + 1]) for i in indices]
        kept = [x[..., : len(piece) - 1] for x, piece in zip(losses, pieces, strict=True)]
        bar_lengths = [cache.bar_lengths[i] for i in indices]
        bars = [len(tokenizer.bar_starts(*x)) for x in zip(pieces, bar_lengths, strict=True)]
        units = {"note": [tokenizer.num_notes(piece) for piece in pieces], "bar": bars}
        for unit, counts in units.items():
            summary = unit_summary(kept, counts, seed=seed)
            rows.append({"measure": f"{name}, nats per {unit}", **asdict(summary)})
    return rows


def _plain(curve: LossCurve) -> Row:
    return {name: values.tolist() for name, values in curve._asdict().items()}


def _by_realizations(compared: Sequence[Compared], rows: list[Row]) -> list[Row]:
    """Return a row for each group with SPE: R in training and evaluation, and mean losses."""
    means: dict[str, dict[str, float]] = {}
    for row in rows:
        name, _, part = row["measure"].rpartition(", ")
        means.setdefault(name, {})[part] = row["mean"]
    groups = {each.group: each for each in reversed(compared)}  # the first run of each
    return [
        {
            "run": name.partition(", R = ")[0],
            "R in training": each.trained_realizations or "exact",
            "R in evaluation": each.model.model.position.num_realizations or "exact",
            **means[name],
        }
        for name, each in reversed(groups.items())
        if isinstance(each.model.model.position, SPE)
    ]


def _plot_grid(grid: list[Row], path: Path) -> None:
    """Plot losses at trained positions and at the furthest ones by both numbers."""
    runs = {row["run"]: str(row["R in training"]) for row in grid}
    tested = list(dict.fromkeys(row["R in evaluation"] for row in grid))
    parts = list(grid[0])[3:]
    losses = {part: np.full((len(runs), len(tested)), np.nan) for part in (parts[0], parts[-1])}
    same = []
    for row in grid:
        cell = list(runs).index(row["run"]), tested.index(row["R in evaluation"])
        for part, values in losses.items():
            values[cell] = row[part]
        if row["R in training"] == row["R in evaluation"]:
            same.append(cell)
    labels = list(runs.values())
    if len(set(labels)) < len(labels):  # several runs with one R
        labels = [f"{run}: {label}" for run, label in runs.items()]
    plot_realizations(losses, path, trained=labels, tested=list(map(str, tested)), same=same)


def _by_model(rows: list[Row]) -> list[Row]:
    """Return a row for each model, with mean, interval and deviations of each range."""
    table: dict[str, Row] = {}
    for row in rows:
        name, _, part = row["measure"].rpartition(", ")
        text = f"{row['mean']:.3f}"
        if row["n"] > 1:
            text += f" [{row['low']:.3f}, {row['high']:.3f}]"
        if row["draws"] > 1:
            text += f" ± {row['draw_std']:.3f}"
        if row["seeds"] > 1:
            text += f" ± {row['seed_std']:.3f} over seeds"
            name += f", {row['seeds']} seeds"
        table.setdefault(name, {"model": name})[part] = text
    return list(table.values())


def loss_tables(rows: list[Row]) -> dict[str, list[Row]]:
    """Return what the terminal shows: a table for each range of positions, in few columns."""
    tables: dict[str, list[Row]] = {}
    for row in rows:
        name, _, part = row["measure"].rpartition(", ")
        line = {"model": _cut(name), **{key: row[key] for key in ("n", "mean", "low", "high")}}
        line |= {key: row[key] for key in ("draw_std", "seed_std") if _any(rows, key)}
        tables.setdefault(f"position_loss, {part}", []).append(line)
    return tables


def _cut(name: str, width: int = 20) -> str:
    half = width // 2
    return name if len(name) <= width else f"{name[: half - 1]}…{name[-half:]}"


def _any(rows: list[Row], key: str) -> bool:
    return any(not np.isnan(row[key]) for row in rows)


def _log_gains(rows: list[Row]) -> None:
    """Say which models are better than the trigram model at trained positions."""
    trained = {}
    for row in rows:
        name, _, part = row["measure"].rpartition(", ")
        if part == "trained":
            trained[name] = row["mean"]
    reference = trained.pop(_TRIGRAM)
    for name, mean in trained.items():
        gain = reference - mean
        log(
            f"at trained positions: {name} {mean:.3f}, trigram {reference:.3f} "
            f"nats a token; the model is {abs(gain):.3f} {'worse' if gain < 0 else 'better'}"
        )
