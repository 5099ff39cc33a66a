"""The measures of `evaluate` about a checkpoint: its loss and its kernels by position."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from musicgen import load
from musicgen.cli.datasets import open_training_data
from musicgen.cli.output import find_device
from musicgen.console import log, progress_bar
from musicgen.errors import UserError
from musicgen.generation.model import MusicModel
from musicgen.metrics import (
    InterpolatedTrigram,
    kernel_properties,
    length_summaries,
    loss_curve,
    property_rows,
)
from musicgen.models.position_kernels import kernel_axes, position_kernels
from musicgen.random import NoiseKey, RandomStream
from musicgen.report.plots import KernelPlot, plot_kernels, plot_loss_curves
from musicgen.report.tables import write_json, write_latex
from musicgen.text import pluralize
from musicgen.training.evaluation import position_losses

Row = dict[str, Any]


def position_loss(cfg: DictConfig, out: Path) -> list[Row]:
    """Compute the loss by position over held-out pieces, of models and of a trigram model.

    Each piece has noise of its own in each draw. The trigram model is interpolated (Witten-Bell)
    and fitted on the training pieces. The table is also written as LaTeX, a row for each model, and
    with the loss by position as JSON.
    """
    models = compared_models(cfg)
    first = next(iter(models.values()))
    data = open_training_data(first, cfg.data.root)
    indices = data.split(cfg.split)[: cfg.max_pieces]
    trigram = InterpolatedTrigram(len(first.tokenizer.vocabulary))
    trigram.fit([data.cache[i] for i in data.split("train")])
    rows: list[Row] = []
    curves, trained = {}, {}
    columns = MofNCompleteColumn(), TimeRemainingColumn()
    with progress_bar(*columns) as progress:
        for name, model in [*models.items(), ("trigram", first)]:
            training_length = model.training_length
            length = round(cfg.max_factor * training_length)
            length = min(length, model.model.position.max_length or length)
            if not rows:
                log(f"{pluralize(len(indices), f'pieces of {cfg.split}')}, up to {length:,} tokens")
            losses = []
            for i in progress.track(indices, description=name):
                piece = data.cache[i][: length + 1]
                if name == "trigram":
                    losses.append(trigram.losses(piece)[None, 1:])
                    continue
                noise = NoiseKey((cfg.seed, RandomStream.EVALUATION, i))
                options = {"positions": model.positions(piece), "num_draws": cfg.num_draws}
                losses.append(position_losses(model.model, piece, noise, **options))
            factors = tuple(f for f in (1.5, 2.0, 4.0) if f * training_length <= length)
            parts = length_summaries(losses, training_length, factors, seed=cfg.seed)
            rows += [{"measure": f"{name}, {k}", **asdict(part)} for k, part in parts.items()]
            curves[name] = loss_curve(losses, max(1, first.training_length // 16))
            trained[name] = parts["trained"].mean
    plot_loss_curves(curves, out / "position_loss.png", training_length=first.training_length)
    write_latex(_by_model(rows), out / "position_loss.tex")
    arrays = {name: {k: v.tolist() for k, v in c._asdict().items()} for name, c in curves.items()}
    write_json({"rows": rows, "curves": arrays}, out / "position_loss.json")
    for name in models:
        gain = trained["trigram"] - trained[name]
        log(
            f"at trained positions: {name} {trained[name]:.3f}, trigram {trained['trigram']:.3f} "
            f"nats a token; the model is {abs(gain):.3f} {'worse' if gain < 0 else 'better'}"
        )
    return rows


def compared_models(cfg: DictConfig) -> dict[str, MusicModel]:
    """Return the models to compare by their names: each run with each number of realizations."""
    device = find_device(cfg.device)
    paths = [str(path) for path in cfg.runs or [cfg.checkpoint]]
    given = cfg.num_realizations
    numbers = list(given) if OmegaConf.is_list(given) else [given]
    models: dict[str, MusicModel] = {}
    for path in paths:
        trained = load(path).to(device)
        log(trained.content.describe(trained.path))
        if models and _held_out(trained) != _held_out(next(iter(models.values()))):
            raise UserError(
                f"runs: {path} was trained with another vocabulary, corpus or split than "
                f"{paths[0]}; compare runs with the same held-out pieces"
            )
        for number in numbers:
            name = path if len(paths) > 1 else "model"
            if len(numbers) > 1:
                name += f", R = {'exact' if number is None else number}"
            changed = number != "trained"
            models[name] = trained.with_realizations(number, seed=cfg.seed) if changed else trained
    return models


def _by_model(rows: list[Row]) -> list[Row]:
    """Return a row for each model, with mean, interval and deviation over draws of each range."""
    table: dict[str, Row] = {}
    for row in rows:
        name, _, part = row["measure"].rpartition(", ")
        text = f"{row['mean']:.3f}"
        if row["n"] > 1:
            text += f" [{row['low']:.3f}, {row['high']:.3f}]"
        if row["draws"] > 1:
            text += f" ± {row['draw_std']:.3f}"
        table.setdefault(name, {"model": name})[part] = text
    return list(table.values())


def _held_out(model: MusicModel) -> list[Any]:
    """Return what decides the tokens of the held-out pieces."""
    data = model.content.config["data"]
    settings = [data.get(key) for key in ("corpus", "val_fraction", "test_fraction", "chords")]
    return [model.content.vocabulary_hash, *settings]


def position_properties(cfg: DictConfig, out: Path) -> list[Row]:
    """Measure and plot how the positional encoding, spans and decays weigh a lag.

    Lags are in tokens or in grid steps of musical time; the lag of the other coordinate is 0.
    """
    model = load(cfg.checkpoint).to(find_device(cfg.device))
    log(model.content.describe(model.path))
    rows, drawings = [], []
    for axis in kernel_axes(model.model):
        in_time = axis == 1
        unit = "grid steps" if in_time else "tokens"
        length = time_length(model, cfg) if in_time else model.training_length
        reach = max(length, round(cfg.max_factor * length))
        lags = np.arange(1 - (length if model.model.causal else reach), reach)
        drawn = slice(length - 1 if model.model.causal else 0, None)
        for kernel in position_kernels(model.model, lags, axis):
            layers = zip(kernel.values, kernel.profile, strict=True)
            found = property_rows([kernel_properties(lags, *layer, length) for layer in layers])
            for row in found:
                row |= {"training_length": length, "translation_invariant": kernel.relative}
                if in_time:
                    row["period_in_beats"] = row["period"] / model.tokenizer.steps_per_beat
                rows.append({"kernel": kernel.name, "lag": unit, **row})
            title = f"{kernel.name}: {kernel.effect}"
            curves = lags[drawn], kernel.values[..., drawn], kernel.profile[..., drawn]
            drawings.append(KernelPlot(title, unit, kernel.summary, *curves, length))
    plot_kernels(drawings, out / "position_properties.png")
    return rows


def time_length(model: MusicModel, cfg: DictConfig) -> int:
    """Return the median number of grid steps in the first training window of a piece."""
    data = open_training_data(model, cfg.data.root)
    pieces = [data.cache[i] for i in data.split(cfg.split)[: cfg.max_pieces]]
    times = [model.tokenizer.times(piece[: model.training_length]) for piece in pieces]
    return int(np.median([time.max() for time in times])) + 1
