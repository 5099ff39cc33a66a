"""Plots of matrices: attention by layer and head, kernels by query and key, losses by realizations.

Files are written like those of `musicgen.report.plots`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.files import atomic_path

FloatArray = NDArray[np.floating]
PANEL = 1.7  # inches
NUM_TEMPLATES = 16
_PROPERTIES = {"translation_invariance": "T", "monotonicity": "M"}


def attention_brightness(weights: FloatArray) -> FloatArray:
    """Return min(1, (a / 0.02)^0.4) of normalised weights a, as Liutkus et al., figures 8 to 12."""
    return np.minimum(1, (weights.clip(min=0) / 0.02) ** 0.4)


def relative_brightness(weights: FloatArray) -> FloatArray:
    """Return ((a − min a) / (max a − min a))^0.4 of each causal matrix [..., L, L] of weights a."""
    seen = np.tril(np.ones(weights.shape[-2:], bool))
    low, high = (
        f((-2, -1), initial=-s * np.inf, where=seen, keepdims=True)
        for f, s in ((weights.min, -1), (weights.max, 1))
    )
    span = np.where(high > low, high - low, 1)
    return ((weights - low) / span).clip(0, 1) ** 0.4


def plot_attention(
    brightness: FloatArray,
    path: str | Path,
    *,
    layers: Sequence[int],
    training_length: int,
    notes: Mapping[tuple[int, int], str] | None = None,
    title: str = "",
) -> None:
    """Plot matrices of layers (rows) and heads (columns), queries downwards and keys to the right.

    Args:
        brightness: from 0 to 1. [layers, H, L, L]
        layers: their numbers.
        training_length: marked if it is below L.
        notes: a text above the matrix of a layer's number and a head.
    """
    from matplotlib.figure import Figure  # slow to import; pyplot would keep global state

    num_layers, heads, length, _ = brightness.shape
    height = PANEL * num_layers + 0.7 + 0.15 * num_layers * bool(notes)
    figure = Figure(figsize=(PANEL * heads + 0.6, height), layout="constrained")
    if title:
        figure.suptitle(title, fontsize="medium")
    grid = figure.subplots(num_layers, heads, sharex=True, sharey=True, squeeze=False)
    future = np.triu(np.ones((length, length), bool), 1)
    for (row, head), axes in np.ndenumerate(grid):
        shown = np.ma.masked_array(brightness[row, head], future)
        axes.imshow(shown, cmap="viridis", vmin=0, vmax=1)
        if training_length < length:
            for line in (axes.axhline, axes.axvline):
                line(training_length, color="grey", linestyle="--", linewidth=0.7)
        parts = [f"head {head}"] if row == 0 else []
        parts += [(notes or {}).get((layers[row], head), "")]
        axes.set_title("\n".join(filter(None, parts)), fontsize="x-small")
        axes.tick_params(labelsize="xx-small")
        if head == 0:
            axes.set_ylabel(f"layer {layers[row]}\nquery", fontsize="x-small")
        if row == num_layers - 1:
            axes.set_xlabel("key", fontsize="x-small")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=120)


def plot_invariance(rows: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Plot T and M of models over the range of queries, as Liutkus et al., figure 4.

    Args:
        rows: with `model`, `first_query`, `last_query`, `offsets_below`, and both measures. One for
            each model and range; of several offsets the lowest are shown.
    """
    from matplotlib.figure import Figure

    nearest = min(row["offsets_below"] for row in rows)
    rows = [row for row in rows if row["offsets_below"] == nearest]
    ranges = list(dict.fromkeys((row["first_query"], row["last_query"]) for row in rows))
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, (name, letter) in zip(figure.subplots(1, 2), _PROPERTIES.items(), strict=True):
        for model in dict.fromkeys(row["model"] for row in rows):
            values = [row[name] for row in rows if row["model"] == model]
            axes.plot(range(len(values)), values, marker="o", label=model)
        axes.set_xticks(range(len(ranges)), [f"{first}–{last}" for first, last in ranges])
        axes.set(title=f"{name.replace('_', ' ')} {letter} (lower is better)", xlabel="query")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)


def plot_templates(
    kernels: Mapping[str, FloatArray], zero: int, path: str | Path, *, length: int
) -> None:
    """Plot kernels as matrices over query and key, as Liutkus et al., figure 7.

    Of many kernels `NUM_TEMPLATES` are drawn at random, the same in every call.

    Args:
        kernels: values over consecutive lags by title. [N'] each
        zero: the index of lag 0; there are `length` − 1 lags on both sides of it.
        length: positions to show.
    """
    from matplotlib.figure import Figure

    titles = list(kernels)
    if len(titles) > NUM_TEMPLATES:
        chosen = np.random.default_rng(0).choice(len(titles), NUM_TEMPLATES, replace=False)
        titles = [titles[i] for i in sorted(chosen)]
    columns = min(8, len(titles))
    rows = -(-len(titles) // columns)
    size = PANEL * columns + 0.8, (PANEL + 0.2) * rows + 0.3
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    position = np.arange(length)
    index = zero + position[:, None] - position
    limit = max(float(np.abs(kernels[title]).max()) for title in titles) or 1.0
    for axes in grid.flat[len(titles) :]:
        axes.set_visible(False)
    for axes, title in zip(grid.flat, titles, strict=False):
        image = axes.imshow(kernels[title][index], cmap="RdBu_r", vmin=-limit, vmax=limit)
        axes.set_title(title, fontsize="xx-small")
        axes.tick_params(labelsize="xx-small")
    figure.supxlabel("key", fontsize="small")
    figure.supylabel("query", fontsize="small")
    figure.colorbar(image, ax=grid.ravel().tolist(), aspect=30, fraction=0.03, pad=0.01)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=120)


def plot_realizations(
    losses: Mapping[str, FloatArray],
    path: str | Path,
    *,
    trained: Sequence[str],
    tested: Sequence[str],
    same: Sequence[tuple[int, int]] = (),
) -> None:
    """Plot losses by the realizations of training and of evaluation, as Liutkus et al., figure 14.

    Args:
        losses: by title, [trained, tested] each; NaN is left white.
        trained, tested: labels of rows and columns.
        same: rows and columns of equal numbers, which are bold.
    """
    from matplotlib.figure import Figure

    size = (1.2 + 0.8 * len(tested)) * len(losses) + 1, 1.2 + 0.5 * len(trained)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(losses), squeeze=False)[0]
    for axes, (title, values) in zip(panels, losses.items(), strict=True):
        image = axes.imshow(values, cmap="viridis_r", aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                light = image.norm(value) > 0.5
                weight = "bold" if (row, column) in same else "normal"
                colour = "white" if light else "black"
                centre = {"ha": "center", "va": "center", "fontsize": "small"}
                axes.text(column, row, f"{value:.3f}", color=colour, weight=weight, **centre)
        axes.set_xticks(range(len(tested)), tested)
        axes.set_yticks(range(len(trained)), trained)
        axes.set(title=f"{title} (nats)", xlabel="R in evaluation")
    panels[0].set_ylabel("R in training")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
