"""The measures of `evaluate` about a checkpoint: its loss and its kernels by position."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from musicgen import load
from musicgen.cli.datasets import open_training_data
from musicgen.cli.output import find_device
from musicgen.console import log, progress_bar
from musicgen.errors import UserError
from musicgen.files import atomic_path
from musicgen.generation.model import MusicModel
from musicgen.metrics import (
    InterpolatedTrigram,
    kernel_properties,
    length_summaries,
    loss_curve,
    property_rows,
)
from musicgen.models.position_kernels import PositionKernel, kernel_axes, position_kernels
from musicgen.position import SPE
from musicgen.random import NoiseKey, RandomStream
from musicgen.report.matrix_plots import plot_realizations, plot_templates
from musicgen.report.plots import KernelPlot, plot_kernels, plot_loss_curves
from musicgen.report.tables import write_csv, write_json, write_latex
from musicgen.text import pluralize
from musicgen.training.evaluation import position_losses

Row = dict[str, Any]
MAX_TEMPLATE = 512  # positions in the pictures of kernels as matrices


def position_loss(cfg: DictConfig, out: Path) -> list[Row]:
    """Compute the loss by position over held-out pieces, of models and of a trigram model.

    Each piece has noise of its own in each draw. The trigram model is interpolated (Witten-Bell)
    and fitted on the training pieces. The table is also written as LaTeX, a row for each model, and
    with the loss by position as JSON.
    """
    compared = compared_models(cfg)
    models = {name: each.model for name, each in compared.items()}
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
    grid = _by_realizations(compared, rows)
    if len({row["R in evaluation"] for row in grid}) > 1:
        write_csv(grid, out / "realizations.csv")
        _plot_grid(grid, out / "realizations.png")
    content = {"rows": rows, "curves": arrays, "realizations": grid}
    write_json(content, out / "position_loss.json")
    for name in models:
        gain = trained["trigram"] - trained[name]
        log(
            f"at trained positions: {name} {trained[name]:.3f}, trigram {trained['trigram']:.3f} "
            f"nats a token; the model is {abs(gain):.3f} {'worse' if gain < 0 else 'better'}"
        )
    return rows


class Compared(NamedTuple):
    """A model to compare with others."""

    model: MusicModel
    run: str  # the path of its checkpoint
    trained_realizations: int | None  # SPE's R in training; None: exact, or another encoding


def compared_models(cfg: DictConfig) -> dict[str, Compared]:
    """Return the models to compare by their names: each run with each number of realizations."""
    device = find_device(cfg.device)
    paths = [str(path) for path in cfg.runs or [cfg.checkpoint]]
    given = cfg.num_realizations
    numbers = list(given) if OmegaConf.is_list(given) else [given]
    models: dict[str, Compared] = {}
    for path in paths:
        trained = load(path).to(device)
        realizations = getattr(trained.model.position, "num_realizations", None)
        log(trained.content.describe(trained.path))
        if models and _held_out(trained) != _held_out(next(iter(models.values())).model):
            raise UserError(
                f"runs: {path} was trained with another vocabulary, corpus or split than "
                f"{paths[0]}; compare runs with the same held-out pieces"
            )
        for number in numbers:
            name = path if len(paths) > 1 else "model"
            if len(numbers) > 1:
                name += f", R = {'exact' if number is None else number}"
            changed = number != "trained"
            model = trained.with_realizations(number, seed=cfg.seed) if changed else trained
            models[name] = Compared(model, path, realizations)
    return models


def _by_realizations(compared: dict[str, Compared], rows: list[Row]) -> list[Row]:
    """Return a row for each model with SPE: R in training and evaluation, and mean losses."""
    means: dict[str, dict[str, float]] = {}
    for row in rows:
        name, _, part = row["measure"].rpartition(", ")
        means.setdefault(name, {})[part] = row["mean"]
    return [
        {
            "run": run,
            "R in training": "exact" if trained is None else trained,
            "R in evaluation": model.model.position.num_realizations or "exact",
            **means[name],
        }
        for name, (model, run, trained) in compared.items()
        if isinstance(model.model.position, SPE)
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

    Lags are in tokens or in grid steps of musical time; the lag of the other coordinate is 0. The
    heads' profiles are written as CSV and JSON, and the kernels of all dimensions as arrays.
    """
    model = load(cfg.checkpoint).to(find_device(cfg.device))
    log(model.content.describe(model.path))
    rows, drawings = [], []
    profiles: list[Row] = []
    arrays: dict[str, NDArray[np.generic]] = {}
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
            if not arrays:  # the encoding's own kernel, of the first coordinate
                path, size = out / "position_templates.png", min(length, MAX_TEMPLATE)
                plot_templates(_by_dimension(kernel.values), -int(lags[0]), path, length=size)
            key = f"{kernel.name}, {unit}"
            arrays |= {key: kernel.values, f"{key}, lags": lags}
            profiles += _profile_rows(kernel, lags, unit)
    plot_kernels(drawings, out / "position_properties.png")
    write_csv(profiles, out / "position_kernels.csv")
    write_json({"properties": rows, "profiles": profiles}, out / "position_properties.json")
    with atomic_path(out / "position_kernels.npz") as temporary:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
    return rows


def _profile_rows(kernel: PositionKernel, lags: NDArray[np.int64], unit: str) -> list[Row]:
    """Return a row for each lag, with the profile of each layer and head."""
    heads = list(np.ndindex(kernel.profile.shape[:2]))
    names = [f"layer {layer}, head {head}" for layer, head in heads]
    values = kernel.profile.reshape(len(heads), -1).T.tolist()
    start = {"kernel": kernel.name, "unit": unit}
    return [
        {**start, "lag": lag, **dict(zip(names, line, strict=True))}
        for lag, line in zip(lags.tolist(), values, strict=True)
    ]


def _by_dimension(values: NDArray[np.floating]) -> dict[str, NDArray[np.floating]]:
    """Return each kernel over the lags by its layer, head and dimension."""
    indices = np.ndindex(values.shape[:3])
    return {f"layer {i}, head {h}, d = {d}": values[i, h, d] for i, h, d in indices}


def time_length(model: MusicModel, cfg: DictConfig) -> int:
    """Return the median number of grid steps in the first training window of a piece."""
    data = open_training_data(model, cfg.data.root)
    pieces = [data.cache[i] for i in data.split(cfg.split)[: cfg.max_pieces]]
    times = [model.tokenizer.times(piece[: model.training_length]) for piece in pieces]
    return int(np.median([time.max() for time in times])) + 1
