"""The measures of `evaluate`: each returns the rows of its table."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
from omegaconf import DictConfig
from rich.progress import MofNCompleteColumn

from musicgen import load
from musicgen.cli.datasets import open_training_data
from musicgen.cli.generated_files import MANIFEST
from musicgen.cli.output import find_device
from musicgen.console import log, progress_bar
from musicgen.errors import UserError
from musicgen.generation.model import MusicModel
from musicgen.metrics import (
    InterpolatedTrigram,
    Summary,
    chunked_style_similarity,
    kernel_properties,
    length_summaries,
    loss_curve,
    property_rows,
    style_similarity,
)
from musicgen.midi import Score, find_midi, read
from musicgen.models.position_kernels import kernel_axes, position_kernels
from musicgen.report.plots import KernelPlot, plot_kernels, plot_loss_curves
from musicgen.text import pluralize
from musicgen.training.evaluation import position_losses

Row = dict[str, Any]
PROFILES: tuple[Literal["onset_duration", "time_pitch"], ...] = ("onset_duration", "time_pitch")


def style(cfg: DictConfig, out: Path) -> list[Row]:
    """Compute the style similarity of continuations to their references (Cífka et al. 2020).

    Prompts are cut off at the ends that generate.py's manifest states. Quarters of each
    continuation are measured as well.
    """
    if cfg.generated is None or cfg.references is None:
        raise UserError("metrics=style needs generated=DIR and references=DIR")
    pairs = pair_files(Path(cfg.generated).expanduser(), Path(cfg.references).expanduser())
    rows = []
    for profile in PROFILES:
        quarters = np.array([chunked_style_similarity(n, r, profile) for n, r in pairs]).T
        columns: Row = {profile: [style_similarity(new, ref, profile) for new, ref in pairs]}
        columns |= {f"{profile}, part {i} of 4": column for i, column in enumerate(quarters, 1)}
        for name, column in columns.items():
            rows.append({"measure": name, **asdict(Summary.of(column, seed=cfg.seed))})
    return rows


def pair_files(generated: Path, references: Path) -> list[tuple[Score, Score]]:
    """Return each generated piece, without its prompt, and its reference.

    The reference is the prompt that the manifest names, else the file with the longest name that
    the generated file's name starts with.
    """
    by_name = {path.relative_to(references).as_posix(): path for path in find_midi(references)}
    by_stem = {path.stem: path for path in by_name.values()}
    manifest = generated / MANIFEST
    try:
        rows = json.loads(manifest.read_text())["pieces"] if manifest.is_file() else []
        by_file = {row["file"]: row for row in rows}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{manifest} is damaged; remove it, or generate again") from None
    pairs = []
    for path in find_midi(generated):
        row = by_file.get(path.name, {})
        stems = sorted((s for s in by_stem if path.stem.startswith(s)), key=len)
        reference = by_name.get(row.get("prompt", "")) or (by_stem[stems[-1]] if stems else None)
        if reference is None:
            raise UserError(
                f"{path.name}: its name starts with the name of no file in references="
                f"{references}; give the folder of the originals, or rename the piece"
            )
        score = read(path)
        start = row.get("prompt end", 0)
        pairs.append((score.clip(start, score.end + 1), read(reference)))
    return pairs


def position_loss(cfg: DictConfig, out: Path) -> list[Row]:
    """Compute the loss by position over held-out pieces, of the model and of a trigram model.

    The trigram model is interpolated (Witten-Bell) and fitted on the training pieces.
    """
    model = load(cfg.checkpoint).to(find_device(cfg.device))
    data = open_training_data(model, cfg.data.root)
    training_length = model.training_length
    length = round(cfg.max_factor * training_length)
    length = min(length, model.model.position.max_length or length)
    pieces = [data.cache[i][: length + 1] for i in data.split(cfg.split)[: cfg.max_pieces]]
    log(f"{pluralize(len(pieces), f'pieces of {cfg.split}')}, up to {length:,} tokens")
    with progress_bar(MofNCompleteColumn()) as progress:
        model_losses = [
            position_losses(model.model, piece, positions=model.positions(piece), seed=cfg.seed)
            for piece in progress.track(pieces, description="position_loss")
        ]
    trigram = InterpolatedTrigram(len(model.tokenizer.vocabulary))
    trigram.fit([data.cache[i] for i in data.split("train")])
    losses = {"model": model_losses, "trigram": [trigram.losses(p)[1:] for p in pieces]}
    factors = tuple(f for f in (1.5, 2.0, 4.0) if f * training_length <= length)
    rows = [
        {"measure": f"{name}, {part}", **asdict(summary)}
        for name, arrays in losses.items()
        for part, summary in length_summaries(
            arrays, training_length, factors, seed=cfg.seed
        ).items()
    ]
    bucket = max(1, training_length // 16)
    curves = {name: loss_curve(arrays, bucket) for name, arrays in losses.items()}
    plot_loss_curves(curves, out / "position_loss.png", training_length=training_length)
    means = {row["measure"]: row["mean"] for row in rows}
    model_mean, trigram_mean = means["model, trained"], means["trigram, trained"]
    gain = trigram_mean - model_mean
    log(
        f"at trained positions: model {model_mean:.3f}, trigram {trigram_mean:.3f} nats a token; "
        f"the model is {abs(gain):.3f} {'worse' if gain < 0 else 'better'}"
    )
    return rows


def position_properties(cfg: DictConfig, out: Path) -> list[Row]:
    """Measure and plot how the positional encoding, spans and decays weigh a lag.

    Lags are in tokens or in grid steps of musical time; the lag of the other coordinate is 0.
    """
    model = load(cfg.checkpoint).to(find_device(cfg.device))
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
