"""Losses of models on pieces, by position, note and bar, and the measure `position_loss`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

from musicgen.console import log, track
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.preparation import EncodedCorpus
from musicgen.evaluation.groups import run_differences
from musicgen.evaluation.runs import Inputs, load_runs, name_runs, open_training_data
from musicgen.evaluation.verdict import TRIGRAM
from musicgen.files import write_json
from musicgen.generation.model import MusicModel
from musicgen.metrics.intervals import Values
from musicgen.metrics.position_loss import (
    loss_curve,
    loss_summary,
    range_means,
    unit_values,
    witten_bell_losses,
)
from musicgen.metrics.repeated_bars import bar_similarities, new_and_repeated_bars
from musicgen.midi.score import FloatArray, IntArray
from musicgen.models import Transformer
from musicgen.position import SPE
from musicgen.random import NoiseKey, RandomStream
from musicgen.report.figures import save_figure
from musicgen.report.tables import TableRow, without_nan, write_csv
from musicgen.text import pluralize
from musicgen.tokenization.coordinates import Coordinates
from musicgen.validation import check_float, check_int

FACTORS = (1.5, 2.0, 4.0)  # ends of the ranges of positions, in training lengths

Losses = list[FloatArray]
"""Losses in nats of each piece: [draws, L] for one run, [seeds, draws, L] for several seeds."""

Unit = Literal["note", "bar", "token of new bars", "token of repeated bars"]


class Pieces(NamedTuple):
    """Pieces of a corpus, whose tokens up to a position are measured."""

    data: EncodedCorpus
    indices: Sequence[int]  # in the cache of the corpus
    length: int  # number of positions to measure

    def by_name(self, values: FloatArray) -> dict[str, float]:
        """Return the mean over seeds and draws, [pieces, seeds, draws], by the names of pieces."""
        names = [self.data.cache.names[index] for index in self.indices]
        return dict(zip(names, values.mean((1, 2)).tolist(), strict=True))


Groups = dict[tuple[str, Any], tuple[MusicModel, Pieces, list[Losses]]]
"""By the name of a group of runs and R: a model, the pieces, and the losses of all runs."""


def position_loss(
    inputs: Inputs, out: Path, *, num_draws: int, num_realizations: Any, max_factor: float
) -> list[TableRow]:
    """Return the loss on held-out pieces of models and of a trigram model, by range of positions.

    The noise of the positional encoding differs between pieces and draws. Runs that differ only in
    their seeds have one row with their mean and the deviation over seeds. The trigram model is
    interpolated (Witten-Bell) and fitted to the training pieces.

    `position_loss.json` has the table, the loss by position, and both per run, as in Liutkus
    et al. 2021, figures 3 and 14 and table 6. `position_loss.png` and `.pdf` are plots of the loss
    by position. `position_loss_differences.csv` has the differences between each two groups of
    runs, paired by piece, over pieces and seeds; over pieces alone with a list of R.

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
    indices = evenly_spaced(data.split(inputs.split), inputs.max_pieces)
    count = pluralize(len(indices), f"pieces of {inputs.split}")
    log(f"{count}, up to {max_factor:g} times the training length")
    shared = Pieces(data, indices, min(last_position(model, max_factor) for model in models))
    results, groups = _measure_runs(inputs, models, shared, num_draws, num_realizations, max_factor)
    rows, curves = [], []
    values: dict[str, dict[str, list[Values]]] = {}  # of each run, by group and measure
    for (group, realizations), (model, pieces, runs) in groups.items():
        losses = [np.stack(seeds) for seeds in zip(*runs, strict=True)]
        run = {"run": group, "R": realizations}
        result, measures = _result(run, model, pieces, shared, losses)
        rows += result.pop("rows")
        curves.append(result)
        if group != TRIGRAM:
            label = group if realizations is None else f"{group}, R = {realizations}"
            # Groups of other R have the same runs, and are compared by their means.
            parts = 1 if isinstance(num_realizations, list) else len(runs)
            values[label] = {
                name: [pieces.by_name(part) for part in np.split(each, parts, axis=1)]
                for name, each in measures.items()
            }
    for suffix in ("png", "pdf"):
        path = out / f"position_loss.{suffix}"
        plot_loss_curves(curves, path, training_length=models[0].training_length)
    content = {"rows": rows, "curves": curves, "runs": results}
    write_json(out / "position_loss.json", without_nan(content))
    vocabularies = len(values) * [models[0].content.vocabulary_hash]
    differences = run_differences(values, vocabularies, seed=inputs.seed)
    write_csv(differences, out / "position_loss_differences.csv")
    return rows


def _measure_runs(
    inputs: Inputs,
    models: Sequence[MusicModel],
    shared: Pieces,
    num_draws: int,
    num_realizations: Any,
    max_factor: float,
) -> tuple[list[TableRow], Groups]:
    """Return the results of each run, and the losses by group, of the trigram model as well."""
    results: list[TableRow] = []
    groups: Groups = {}
    numbers = num_realizations if isinstance(num_realizations, list) else [num_realizations]
    names = name_runs(models)
    for path, trained, (group, name) in zip(inputs.checkpoints, models, names, strict=True):
        pieces = shared._replace(length=last_position(trained, max_factor))
        for number in numbers:
            model = trained
            if number != "trained":
                model = trained.with_realizations(number, seed=inputs.seed)
            losses = piece_losses(model, pieces, seed=inputs.seed, name=name, num_draws=num_draws)
            position, realizations = model.model.position, None
            if isinstance(position, SPE):
                realizations = position.num_realizations or "exact"
            groups.setdefault((group, realizations), (model, pieces, []))[2].append(losses)
            run = {"run": group, "R": realizations}
            result, _ = _result(run, model, pieces, shared, losses)
            about = {"checkpoint": path, "name": name, "seed": model.content.config.get("seed")}
            results.append({**about, **result})
    pieces = shared._replace(length=last_position(models[0], max_factor))
    groups[TRIGRAM, None] = models[0], pieces, [trigram_losses(pieces)]
    return results, groups


def _result(
    run: TableRow, model: MusicModel, pieces: Pieces, shared: Pieces, losses: Losses
) -> tuple[TableRow, dict[str, FloatArray]]:
    """Return the loss of a run or of a group by position, with its rows, and by range and unit.

    With the training length N, ranges of positions are from 0 to N, and from N to f·N for each f of
    `FACTORS` up to the last position.

    Args:
        run: the columns with its name.
        pieces: up to the last position of the model.
        shared: up to the last position of all models.

    Returns:
        The columns, `loss_curve` and `rows`, a row per range of positions and per unit.
        And the values of each range and unit, [pieces, seeds, draws], by the names of the measures.
    """
    trained = model.training_length
    ranges = {"trained": (0, trained)}
    for factor in FACTORS:
        if (end := round(factor * trained)) <= pieces.length:
            ranges[f"extrapolated {factor:g}x"] = trained, end
    measures, rows = {}, []
    for part, (start, end) in ranges.items():
        values = range_means(losses, start, end)
        measures[f"nats per token, positions {start:,} to {end:,}"] = values
        rows.append({**run, "part": part, **loss_summary(values)})
    for unit in get_args(Unit):
        part = f"nats per {unit}"
        values = measures[part] = unit_values(*losses_by_unit(losses, shared, unit))
        rows.append({**run, "part": part, **loss_summary(values)})
    return {**run, **curve_of(losses, trained), "rows": rows}, measures


def last_position(model: MusicModel, max_factor: float) -> int:
    """Return the number of positions to measure: at most `max_factor` training lengths."""
    length = round(max_factor * model.training_length)
    return min(length, model.model.position.max_length or length)


def piece_losses(
    model: MusicModel, pieces: Pieces, *, seed: int, name: str, num_draws: int = 1
) -> Losses:
    """Return the losses of a model on pieces.

    Args:
        seed: seed of the noise of the positional encoding.
        name: title of the progress bar.
        num_draws: number of draws of this noise per piece.
    """
    cache = pieces.data.cache
    losses: Losses = []
    for index in track(pieces.indices, name):
        tokens = cache[index][: pieces.length + 1]
        nats = position_losses(
            model.model,
            tokens,
            NoiseKey((seed, RandomStream.EVALUATION, index)),
            positions=model.positions(tokens, cache.bar_lengths[index]),
            num_draws=num_draws,
        )
        losses.append(nats)
    return losses


def trigram_losses(pieces: Pieces) -> Losses:
    """Return the losses on pieces of a trigram model that is fitted to the training pieces."""
    data = pieces.data
    training = [data.cache[index] for index in data.split("train")]
    tokens = [data.cache[index][: pieces.length + 1] for index in pieces.indices]
    losses = witten_bell_losses(len(data.tokenizer.vocabulary), training, tokens)
    return [each[None, 1:] for each in losses]


@torch.inference_mode()
def position_losses(
    model: Transformer,
    tokens: IntArray,
    noise: NoiseKey,
    *,
    positions: IntArray | None = None,
    num_draws: int = 1,
) -> FloatArray:
    """Return the cross-entropy in nats of each token given the tokens before it.

    Args:
        model: causal, in evaluation mode.
        tokens: a piece [L + 1].
        noise: noise key of the positional encoding; each draw folds in its number. Random features
            are not drawn again.
        positions: [L + 1, P]; None: token indices.
        num_draws: number of passes with different noise. Without noise, there is one pass.

    Returns:
        [num_draws, L], or [1, L] without noise. Entry n is the loss of token n + 1.
    """
    device = next(model.parameters()).device
    ids = torch.from_numpy(tokens).to(device)
    inputs = None if positions is None else torch.from_numpy(positions[None, :-1]).to(device)
    has_noise = model.position.relative == "expected"
    losses = []
    for draw in range(num_draws if has_noise else 1):
        logits = model(ids[None, :-1], positions=inputs, noise=noise.fold(draw))[0]
        losses.append(F.cross_entropy(logits.float(), ids[1:], reduction="none"))
    return torch.stack(losses).cpu().double().numpy()


def losses_by_unit(losses: Losses, pieces: Pieces, unit: Unit) -> tuple[Losses, list[int]]:
    """Return the losses of the tokens that belong to units, and the number of units per piece.

    Notes are counted by `Tokenizer.num_notes`. End tokens belong to no unit. The last bar belongs
    to no unit if `pieces.length` cuts it. Repeated bars are like a bar at least `MIN_LAG` bars
    earlier, and new bars are like no earlier bar.
    """
    tokenizer, cache = pieces.data.tokenizer, pieces.data.cache
    coordinates = Coordinates(tokenizer)
    selected, counts = [], []
    for index, nats in zip(pieces.indices, losses, strict=True):
        bar_length = cache.bar_lengths[index]
        tokens = tokenizer.until_end(cache[index][: pieces.length + 1])
        if unit != "note" and len(tokens) > pieces.length:  # the first bar is always included
            bars = coordinates.of(tokens, ("bar",), bar_length=bar_length)[:, 0]
            tokens = tokens[(bars < bars.max()) | (bars == 0)]
        mask = np.ones(len(tokens) - 1, bool)
        if unit == "note":
            count = tokenizer.num_notes(tokens)
        elif unit == "bar":
            count = len(tokenizer.bar_starts(tokens, bar_length))
        else:
            events = coordinates.of(tokens, ("bar", "beat", "pitch"), bar_length=bar_length)
            notes, bars = events[coordinates.values["pitch"][tokens] >= 0], events[1:, 0]
            similarities = bar_similarities(notes, int(bars.max(initial=0)) + 1)
            is_new, is_repeated = new_and_repeated_bars(similarities)
            mask = (is_new if unit == "token of new bars" else is_repeated)[bars]
            count = int(mask.sum())
        selected.append(nats[..., : len(mask)][..., mask])
        counts.append(count)
    return selected, counts


def curve_of(losses: Losses, training_length: int) -> TableRow:
    """Return `loss_curve` with 16 buckets up to the training length."""
    return loss_curve(losses, max(1, training_length // 16))


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
