"""Position loss: the cross-entropy of models by position, within the training length and beyond."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch.nn import functional as F

from musicgen.console import log, track
from musicgen.data.preparation import EncodedCorpus
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.runs import load_runs, name_runs
from musicgen.evaluation.training_data import open_training_data
from musicgen.generation.model import MusicModel
from musicgen.metrics.bars import bar_similarities, new_and_returning_bars
from musicgen.metrics.position_loss import (
    InterpolatedTrigram,
    LossSummary,
    length_summaries,
    loss_curve,
    unit_values,
)
from musicgen.models import Transformer
from musicgen.position import SPE
from musicgen.random import NoiseKey, RandomStream
from musicgen.report.figures import save_figure
from musicgen.report.tables import TableRow, write_json
from musicgen.text import pluralize
from musicgen.validation import check_float, check_int

Losses = list[NDArray[np.float64]]  # of pieces: [draws, L] of a run, [seeds, draws, L] of a group
TRIGRAM = "trigram"
UNITS = ("note", "bar", "token of new bars", "token of returning bars")


def position_loss(
    inputs: Inputs, out: Path, *, num_draws: int, num_realizations: Any, max_factor: float
) -> list[TableRow]:
    """Loss by position over held-out pieces, of models and of a trigram model.

    Each piece has noise of its own in each draw. Runs that differ in their seeds alone are one row:
    their mean, with the deviation over seeds. The trigram model is interpolated (Witten-Bell) and
    fitted on the training pieces. The table is also written as JSON, with the loss by position and
    that of each run (Liutkus et al. 2021, figures 3 and 14, table 6).

    Args:
        num_draws: of the noise of an encoding that has any.
        num_realizations: SPE's R: `trained`, a number, None (the exact limit), or a list of these.
        max_factor: the longest position in training lengths; of units, the shortest of all models.
    """
    check_int("num_draws", num_draws)
    check_float("max_factor", max_factor, minimum=1)
    models, numbers = load_runs(inputs), num_realizations
    compared = [
        (path, *names, model if R == "trained" else model.with_realizations(R, seed=inputs.seed))
        for path, model, names in zip(inputs.checkpoints, models, name_runs(models), strict=True)
        for R in (numbers if isinstance(numbers, list) else [numbers])
    ]
    data = open_training_data(models[0], inputs.root)
    indices = data.split(inputs.split)[: inputs.max_pieces]
    shared = min(furthest(model, max_factor) for model in models)
    count = pluralize(len(indices), f"pieces of {inputs.split}")
    log(f"{count}, up to {max_factor:g} times the training length")
    rows, curves, each_run = [], [], []
    groups: dict[tuple[str, Any], tuple[MusicModel, list[Losses]]] = {}

    def summary(group: str, number: Any, losses: Losses, model: MusicModel) -> list[TableRow]:
        """Return the curve of a group, and then its rows."""
        trained, length = model.training_length, furthest(model, max_factor)
        factors = [factor for factor in (1.5, 2.0, 4.0) if factor * trained <= length]
        parts = length_summaries(losses, trained, factors)
        for unit in UNITS:
            values = unit_values(*in_units(losses, data, indices, shared, unit))
            parts[f"nats per {unit}"] = LossSummary.of_runs(values)
        columns = curve_of(losses, trained), *({"part": k, **asdict(x)} for k, x in parts.items())
        return [{"run": group, "R": number, **each} for each in columns]

    for path, group, name, model in compared:
        length = furthest(model, max_factor)
        losses = piece_losses(model, data, indices, length, inputs.seed, name, num_draws)
        position = model.model.position
        number = (position.num_realizations or "exact") if isinstance(position, SPE) else None
        groups.setdefault((group, number), (model, []))[1].append(losses)
        curve, *parts = summary(group, number, losses, model)
        names = {"checkpoint": path, "name": name, "seed": model.content.config.get("seed")}
        each_run.append({**names, **curve, "rows": parts})
    losses = trigram_losses(data, indices, furthest(models[0], max_factor))
    groups[TRIGRAM, None] = models[0], [losses]
    for (group, number), (model, members) in groups.items():
        losses = [np.stack(seeds) for seeds in zip(*members, strict=True)]
        curve, *parts = summary(group, number, losses, model)
        curves.append(curve)
        rows += parts
    plot_loss_curves(curves, out / "position_loss.png", training_length=models[0].training_length)
    write_json({"rows": rows, "curves": curves, "runs": each_run}, out / "position_loss.json")
    return rows


def furthest(model: MusicModel, max_factor: float) -> int:
    """Return the furthest position of a model that is measured."""
    length = round(max_factor * model.training_length)
    return min(length, model.model.position.max_length or length)


def piece_losses(
    model: MusicModel,
    data: EncodedCorpus,
    indices: Sequence[int],
    length: int,
    seed: int,
    name: str,
    num_draws: int = 1,
) -> Losses:
    """Return a model's losses on pieces of a cache up to a position.

    Args:
        name: of the progress bar.
        num_draws: see `position_loss`.
    """
    losses: Losses = []
    for i in track(indices, name):
        noise, piece = NoiseKey((seed, RandomStream.EVALUATION, i)), data.cache[i][: length + 1]
        at = model.positions(piece, data.cache.bar_lengths[i])
        losses.append(position_losses(model.model, piece, noise, positions=at, num_draws=num_draws))
    return losses


def trigram_losses(data: EncodedCorpus, indices: Sequence[int], length: int) -> Losses:
    """Return the losses of a trigram model of the training pieces, up to a position."""
    training = [data.cache[i] for i in data.split("train")]
    trigram = InterpolatedTrigram(len(data.tokenizer.vocabulary), training)
    return [trigram.losses(data.cache[i][: length + 1])[None, 1:] for i in indices]


def in_units(
    losses: Losses, data: EncodedCorpus, indices: Sequence[int], length: int, unit: str
) -> tuple[Losses, list[int]]:
    """Return the losses of tokens that belong to units, and the number of units in each piece.

    Notes are those of `Tokenizer.num_notes`. End tokens are of no unit, nor is a later bar that the
    length cuts. Bars that return are like one `MIN_LAG` bars earlier or more, new ones like none.

    Args:
        length: the furthest position.
        unit: of `UNITS`.
    """
    tokenizer, cache = data.tokenizer, data.cache
    kept, counts = [], []
    for i, nats in zip(indices, losses, strict=True):
        bar_length = cache.bar_lengths[i]
        piece = tokenizer.until_end(cache[i][: length + 1])
        if unit != "note" and len(piece) > length:
            bars = tokenizer.coordinates(piece, ("bar",), bar_length=bar_length)[:, 0]
            piece = piece[(bars < bars.max()) | (bars == 0)]
        flags = np.ones(len(piece) - 1, bool)
        if unit.startswith("token"):
            events = tokenizer.coordinates(piece, ("bar", "beat", "pitch"), bar_length=bar_length)
            notes = events[tokenizer.changes["pitch"][piece] >= 0]
            bars = events[1:, 0]
            similarities = bar_similarities(notes, int(bars.max(initial=0)) + 1)
            new, returning = new_and_returning_bars(similarities)
            flags = (new if "new" in unit else returning)[bars]
        kept.append(nats[..., : len(flags)][..., flags])
        count = int(flags.sum()) if unit.startswith("token") else tokenizer.num_notes(piece)
        counts.append(len(tokenizer.bar_starts(piece, bar_length)) if unit == "bar" else count)
    return kept, counts


def curve_of(losses: Losses, trained: int) -> TableRow:
    """Return `loss_curve` as plain lists; `trained` is the training length."""
    curve = loss_curve(losses, max(1, trained // 16))
    return {name: x.tolist() for name, x in curve.items()}


def plot_loss_curves(
    curves: Sequence[Mapping[str, Any]], path: str | Path, *, training_length: int
) -> None:
    """Plot loss curves and mark the training length.

    Args:
        curves: with `run`, perhaps `R`, which the legend names, and the values of `loss_curve`.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for curve in curves:
        label = curve["run"] + (f", R = {curve['R']}" if curve.get("R") else "")
        axes.plot(curve["position"], curve["loss"], label=label)
    axes.axvline(training_length, color="grey", linestyle="--", label="training length")
    axes.set(xlabel="position (tokens)", ylabel="loss (nats a token)")
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path, dpi=150)


@torch.inference_mode()
def position_losses(
    model: Transformer,
    tokens: NDArray[np.int64],
    noise: NoiseKey,
    *,
    positions: NDArray[np.int64] | None = None,
    num_draws: int = 1,
) -> NDArray[np.float64]:
    """Compute the cross-entropy in nats of each token given those before it, in one pass a draw.

    Args:
        model: causal, in evaluation mode.
        tokens: a piece, [L + 1]. Entry n of a draw is the loss of token n + 1.
        noise: key of the encoding's noise; draws fold in their numbers; random features stay.
        positions: [L + 1, P]; None counts tokens.
        num_draws: of an encoding with noise; one without has a single one.

    Returns:
        [num_draws, L]
    """
    device = next(model.parameters()).device
    ids = torch.from_numpy(tokens).to(device)
    inputs = None if positions is None else torch.from_numpy(positions[None, :-1]).to(device)
    losses = []
    for draw in range(num_draws if model.position.relative == "expected" else 1):
        logits = model(ids[None, :-1], positions=inputs, noise=noise.fold(draw))[0]
        losses.append(F.cross_entropy(logits.float(), ids[1:], reduction="none"))
    return torch.stack(losses).cpu().double().numpy()
