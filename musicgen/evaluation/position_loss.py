"""The measure `position_loss`: loss by position, within the training length and beyond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from musicgen.console import log
from musicgen.evaluation.comparison import Comparison, run_differences
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.losses import (
    UNITS,
    Losses,
    Pieces,
    last_position,
    losses_by_unit,
    piece_losses,
    trigram_losses,
)
from musicgen.evaluation.names import TRIGRAM
from musicgen.evaluation.runs import load_runs, name_runs
from musicgen.evaluation.training_data import open_training_data
from musicgen.files import write_json
from musicgen.generation.model import MusicModel
from musicgen.metrics.position_loss import (
    LossSummary,
    length_summaries,
    loss_curve,
    range_means,
    unit_values,
)
from musicgen.position import SPE
from musicgen.report.figures import save_figure
from musicgen.report.tables import TableRow, without_nan, write_csv
from musicgen.text import pluralize
from musicgen.validation import check_float, check_int

FACTORS = (1.5, 2.0, 4.0)  # ends of the ranges of positions, in training lengths


class Measured(NamedTuple):
    """The losses of one run with one number of realizations."""

    group: str  # the same for runs that differ only in their seeds
    realizations: Any  # R of SPE; "exact" for R → ∞; None for another encoding
    losses: Losses
    training_length: int
    pieces: Pieces
    vocabulary: str  # hash of the vocabulary

    @classmethod
    def of(cls, model: MusicModel, group: str, losses: Losses, pieces: Pieces) -> Measured:
        """Return the record of a model in a group, from its losses on pieces."""
        position = model.model.position
        realizations = (position.num_realizations or "exact") if isinstance(position, SPE) else None
        vocabulary = model.content.vocabulary_hash
        return cls(group, realizations, losses, model.training_length, pieces, vocabulary)


def position_loss(
    inputs: Inputs, out: Path, *, num_draws: int, num_realizations: Any, max_factor: float
) -> list[TableRow]:
    """Return the loss on held-out pieces of models and of a trigram model, by range of positions.

    The noise of the positional encoding differs between pieces and draws. Runs that differ only in
    their seeds have one row with their mean and the deviation over seeds. The trigram model is
    interpolated (Witten-Bell) and fitted to the training pieces.

    `position_loss.json` has the table, the loss by position, and both for each run, as in Liutkus
    et al. 2021, figures 3 and 14 and table 6. `position_loss.png` and `.pdf` are plots of the loss
    by position. `position_loss_differences.csv` has the differences between each two groups of
    runs, paired by piece.

    Args:
        num_draws: number of draws of the noise, for encodings with noise.
        num_realizations: R of SPE: `trained`, a number, None (R → ∞), or a list of these.
        max_factor: the last position, in training lengths. Losses per note, per bar and per token
            of new and repeated bars are measured up to the smallest last position of all models.
    """
    check_int("num_draws", num_draws)
    check_float("max_factor", max_factor, minimum=1)
    models = load_runs(inputs)
    data = open_training_data(models[0], inputs.root)
    indices = data.split(inputs.split)[: inputs.max_pieces]
    count = pluralize(len(indices), f"pieces of {inputs.split}")
    log(f"{count}, up to {max_factor:g} times the training length")
    shared = Pieces(data, indices, min(last_position(model, max_factor) for model in models))
    measured: list[Measured] = []
    results_of_runs: list[TableRow] = []
    numbers = num_realizations if isinstance(num_realizations, list) else [num_realizations]
    for path, trained_model, name in zip(
        inputs.checkpoints, models, name_runs(models), strict=True
    ):
        for number in numbers:
            model = _with_realizations(trained_model, number, inputs.seed)
            pieces = Pieces(data, indices, last_position(model, max_factor))
            losses = piece_losses(
                model, pieces, seed=inputs.seed, name=name.name, num_draws=num_draws
            )
            result = Measured.of(model, name.group, losses, pieces)
            measured.append(result)
            run = {"checkpoint": path, "name": name.name, "seed": model.content.config.get("seed")}
            rows = _rows(result, _by_unit(result, shared))
            results_of_runs.append({**run, **_curve(result), "rows": rows})
    pieces = Pieces(data, indices, last_position(models[0], max_factor))
    measured.append(_trigram(models[0], pieces))
    groups = _over_seeds(measured)
    units = [_by_unit(group, shared) for group in groups]
    rows = [row for each in zip(groups, units, strict=True) for row in _rows(*each)]
    curves = [_curve(group) for group in groups]
    length = models[0].training_length
    for suffix in ("png", "pdf"):
        plot_loss_curves(curves, out / f"position_loss.{suffix}", training_length=length)
    content = {"rows": rows, "curves": curves, "runs": results_of_runs}
    write_json(out / "position_loss.json", without_nan(content))
    differences = _differences(groups[:-1], units[:-1], seed=inputs.seed)
    write_csv(differences, out / "position_loss_differences.csv")
    return rows


def _with_realizations(model: MusicModel, number: Any, seed: int) -> MusicModel:
    """Return a model with another number of SPE's realizations; the same one for `trained`."""
    return model if number == "trained" else model.with_realizations(number, seed=seed)


def _trigram(model: MusicModel, pieces: Pieces) -> Measured:
    """Return the losses of the trigram model, in the ranges of a model's training length."""
    measured = Measured.of(model, TRIGRAM, trigram_losses(pieces), pieces)
    return measured._replace(realizations=None)


def _over_seeds(measured: Sequence[Measured]) -> list[Measured]:
    """Return one record for each group and number of realizations: losses [seeds, draws, L]."""
    groups: dict[tuple[str, Any], list[Measured]] = {}
    for each in measured:
        groups.setdefault((each.group, each.realizations), []).append(each)
    joined = []
    for runs in groups.values():
        by_piece = zip(*(run.losses for run in runs), strict=True)
        losses = [np.stack(seeds) for seeds in by_piece]
        joined.append(runs[0]._replace(losses=losses))
    return joined


def _by_unit(measured: Measured, shared: Pieces) -> dict[str, NDArray[np.float64]]:
    """Return `unit_values` of each unit, [pieces, seeds, draws], by the names of the measures.

    Args:
        shared: the pieces up to the last position of all models.
    """
    return {
        f"nats per {unit}": unit_values(*losses_by_unit(measured.losses, shared, unit))
        for unit in UNITS
    }


def _rows(measured: Measured, by_unit: Mapping[str, NDArray[np.float64]]) -> list[TableRow]:
    """Return a row for each range of positions and for each unit."""
    reached, trained = measured.pieces.length, measured.training_length
    factors = [factor for factor in FACTORS if factor * trained <= reached]
    summaries = length_summaries(measured.losses, trained, factors)
    summaries |= {name: LossSummary.of_runs(values) for name, values in by_unit.items()}
    run = {"run": measured.group, "R": measured.realizations}
    return [{**run, "part": part, **asdict(each)} for part, each in summaries.items()]


def _differences(
    measured: Sequence[Measured],
    units: Sequence[Mapping[str, NDArray[np.float64]]],
    *,
    seed: int,
) -> list[TableRow]:
    """Return the differences between each two groups of runs, paired by piece.

    Losses per token are compared between equal ranges of positions only.
    """
    comparisons: dict[str, list[Comparison]] = {}
    for each, by_unit in zip(measured, units, strict=True):
        values: dict[str, NDArray[np.float64]] = {}
        trained = each.training_length
        for start, factor in ((0, 1.0), *((trained, factor) for factor in FACTORS)):
            end = round(factor * trained)
            if end <= each.pieces.length:
                name = f"nats per token, positions {start:,} to {end:,}"
                values[name] = range_means(each.losses, start, end)
        values |= by_unit
        names = [each.pieces.data.cache.names[index] for index in each.pieces.indices]
        realizations = "" if each.realizations is None else f", R = {each.realizations}"
        comparisons[each.group + realizations] = [
            Comparison(measure, dict(zip(names, losses.mean((1, 2)), strict=True)), "", {})
            for measure, losses in values.items()
        ]
    return run_differences(comparisons, [each.vocabulary for each in measured], seed=seed)


def _curve(measured: Measured) -> TableRow:
    """Return the loss by position of a group of runs, as plain lists."""
    run = {"run": measured.group, "R": measured.realizations}
    return {**run, **curve_of(measured.losses, measured.training_length)}


def curve_of(losses: Losses, training_length: int) -> TableRow:
    """Return `loss_curve` as plain lists, with 16 buckets up to the training length."""
    curve = loss_curve(losses, max(1, training_length // 16))
    return {name: column.tolist() for name, column in curve.items()}


def plot_loss_curves(
    curves: Sequence[Mapping[str, Any]], path: str | Path, *, training_length: int
) -> None:
    """Plot loss curves with their intervals over pieces, and mark the training length.

    Args:
        curves: the values of `loss_curve`, with `run`, and `R` for SPE, for the legend.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for curve in curves:
        label = curve["run"] + (f", R = {curve['R']}" if curve.get("R") else "")
        (line,) = axes.plot(curve["position"], curve["loss"], label=label)
        axes.fill_between(
            curve["position"], curve["low"], curve["high"], color=line.get_color(), alpha=0.15
        )
    axes.axvline(training_length, color="grey", linestyle="--", label="training length")
    axes.set(xlabel="position (tokens)", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path, dpi=150)
