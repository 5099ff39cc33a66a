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
from musicgen.report.plots import run_label

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
        rows: with `run`, `R`, `first_query`, `last_query`, `offsets_below`, and both measures. One
            for each model and range; of several offsets the lowest are shown.
    """
    from matplotlib.figure import Figure

    nearest = min(row["offsets_below"] for row in rows)
    rows = [row for row in rows if row["offsets_below"] == nearest]
    ranges = list(dict.fromkeys((row["first_query"], row["last_query"]) for row in rows))
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, (name, letter) in zip(figure.subplots(1, 2), _PROPERTIES.items(), strict=True):
        for label in dict.fromkeys(map(run_label, rows)):
            values = [row[name] for row in rows if run_label(row) == label]
            axes.plot(range(len(values)), values, marker="o", label=label)
        axes.set_xticks(range(len(ranges)), [f"{first}–{last}" for first, last in ranges])
        axes.set(title=f"{name.replace('_', ' ')} {letter} (lower is better)", xlabel="query")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)


def plot_templates(kernels: FloatArray, zero: int, path: str | Path, *, length: int) -> None:
    """Plot kernels as matrices over query and key, as Liutkus et al., figure 7.

    Of many kernels `NUM_TEMPLATES` are drawn at random, the same in every call.

    Args:
        kernels: values over consecutive lags, by layer, head and dimension. [layers, H, K', N']
        zero: the index of lag 0; there are `length` − 1 lags on both sides of it.
        length: positions to show.
    """
    from matplotlib.figure import Figure

    indices = list(np.ndindex(kernels.shape[:3]))
    if len(indices) > NUM_TEMPLATES:
        chosen = np.random.default_rng(0).choice(len(indices), NUM_TEMPLATES, replace=False)
        indices = [indices[i] for i in sorted(chosen)]
    columns = min(8, len(indices))
    rows = -(-len(indices) // columns)
    size = PANEL * columns + 0.8, (PANEL + 0.2) * rows + 0.3
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    position = np.arange(length)
    index = zero + position[:, None] - position
    limit = max(float(np.abs(kernels[each]).max()) for each in indices) or 1.0
    for axes in grid.flat[len(indices) :]:
        axes.set_visible(False)
    for axes, (layer, head, d) in zip(grid.flat, indices, strict=False):
        image = axes.imshow(kernels[layer, head, d][index], cmap="RdBu_r", vmin=-limit, vmax=limit)
        axes.set_title(f"layer {layer}, head {head}, d = {d}", fontsize="xx-small")
        axes.tick_params(labelsize="xx-small")
    figure.supxlabel("key", fontsize="small")
    figure.supylabel("query", fontsize="small")
    figure.colorbar(image, ax=grid.ravel().tolist(), aspect=30, fraction=0.03, pad=0.01)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=120)


def plot_realizations(rows: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Plot losses by the realizations of training and of evaluation, as Liutkus et al., figure 14.

    Args:
        rows: with `run`, `R in training`, `R in evaluation`, and losses in nats at trained
            positions and at further ones, of which the first and the last are shown. Equal numbers
            are bold, and missing pairs white.
    """
    from matplotlib.figure import Figure

    runs = {row["run"]: str(row["R in training"]) for row in rows}
    labels = list(runs.values())
    if len(set(labels)) < len(labels):  # several runs with one R
        labels = [f"{run}: {label}" for run, label in runs.items()]
    tested = list(dict.fromkeys(row["R in evaluation"] for row in rows))
    cells = {(row["run"], row["R in evaluation"]): row for row in rows}
    parts = [name for name in rows[0] if name.startswith(("trained", "extrapolated"))]
    parts = parts[:1] + parts[1:][-1:]
    size = (1.2 + 0.8 * len(tested)) * len(parts) + 1, 1.2 + 0.5 * len(runs)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(parts), squeeze=False)[0]
    for axes, part in zip(panels, parts, strict=True):
        values = np.array([[cells.get((r, R), {}).get(part, np.nan) for R in tested] for r in runs])
        image = axes.imshow(values, cmap="viridis_r", aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                colour = "white" if image.norm(value) > 0.5 else "black"
                same = list(runs.values())[row] == str(tested[column])
                weight = "bold" if same else "normal"
                centre = {"ha": "center", "va": "center", "fontsize": "small"}
                axes.text(column, row, f"{value:.3f}", color=colour, weight=weight, **centre)
        axes.set_xticks(range(len(tested)), list(map(str, tested)))
        axes.set_yticks(range(len(runs)), labels)
        axes.set(title=f"{part} (nats)", xlabel="R in evaluation")
    panels[0].set_ylabel("R in training")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
