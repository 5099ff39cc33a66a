"""Plots of the loss by position and of positional kernels over the lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

MAX_COLUMNS = 6
PANEL = 2.5, 1.5  # inches


def run_label(row: Mapping[str, Any]) -> str:
    """Return the name of a row's `run`, with its realizations `R` if it has any."""
    return row["run"] if row["R"] is None else f"{row['run']}, R = {row['R']}"


def plot_loss_curves(
    curves: Sequence[Mapping[str, Any]], path: str | Path, *, training_length: int
) -> None:
    """Plot loss curves and mark the training length.

    The file's suffix chooses the format (.png, .svg, .pdf). It is written atomically.

    Args:
        curves: with `run`, `R` (None: it is not in the legend), and those of `LossCurve`.
    """
    from matplotlib.figure import Figure  # slow to import; pyplot would keep global state

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for curve in curves:
        axes.plot(curve["position"], curve["loss"], label=run_label(curve))
    axes.axvline(training_length, color="grey", linestyle="--", label="training length")
    axes.set(xlabel="position", ylabel="cross-entropy (nats)")
    axes.grid(alpha=0.3)
    axes.legend()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)


def plot_style_over_time(points: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Plot the style similarity of continuations by part, as Liutkus et al., figure 5.

    A dot is a style, and a line connects the means of a model. The file is written like that of
    `plot_loss_curves`.

    Args:
        points: with `generated` (the model), `profile`, `part`, which are sorted by name, and
            `similarity`; NaN is left out.
    """
    from matplotlib.figure import Figure

    parts = sorted({point["part"] for point in points})
    points = [point for point in points if not np.isnan(point["similarity"])]
    models, profiles = (
        list(dict.fromkeys(point[key] for point in points)) for key in ("generated", "profile")
    )
    figure = Figure(figsize=(0.6 + 3.4 * len(profiles), 3.6), layout="constrained")
    panels = figure.subplots(1, len(profiles), sharey=True, squeeze=False)[0]
    for axes, profile in zip(panels, profiles, strict=True):
        for number, model in enumerate(models):
            shift = 0.6 * ((number + 0.5) / len(models) - 0.5)
            values = [
                [
                    point["similarity"]
                    for point in points
                    if (point["generated"], point["profile"], point["part"])
                    == (model, profile, part)
                ]
                for part in parts
            ]
            places = [i + shift for i, found in enumerate(values) if found]
            means = [np.mean(found) for found in values if found]
            (line,) = axes.plot(places, means, marker="_", markersize=12, label=model)
            dots = [(i + shift, value) for i, found in enumerate(values) for value in found]
            axes.scatter(*zip(*dots, strict=True), s=6, alpha=0.4, color=line.get_color())
        axes.set_xticks(range(len(parts)), parts)
        axes.set(title=profile.replace("_", "–"), xlabel="part of the continuation")
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="style similarity (1 is best)", ylim=(0, 1.02))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)


class KernelPlot(NamedTuple):
    """Kernels of the layers and heads of one model part."""

    title: str
    unit: str  # of the lags
    summary: str  # how `profile` summarises the dimensions, such as "mean"
    lags: NDArray[np.int64]  # consecutive: [N']
    values: NDArray[np.floating]  # [layers, H, K', N']; size 1 for axes along which they are equal
    profile: NDArray[np.floating]  # [layers, H, N']
    training_length: int


def plot_kernels(plots: Sequence[KernelPlot], path: str | Path) -> None:
    """Plot each layer's profiles, a line per head, above an image of all dimensions by head.

    The training length is marked. The file is written like that of `plot_loss_curves`.
    """
    from matplotlib.figure import Figure

    grids = [_grid(plot) for plot in plots]
    heights = [0.7 + PANEL[1] * rows for rows, _ in grids]
    width = 1.5 + PANEL[0] * max(3, *(columns for _, columns in grids))
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(plots), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, plot, grid in zip(parts, plots, grids, strict=True):
        _draw(part, plot, *grid)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=120)


def _grid(plot: KernelPlot) -> tuple[int, int]:
    """Return rows and columns of panels: lines, and images if there are several dimensions."""
    layers, _, dims, _ = plot.values.shape
    rows = -(-layers // MAX_COLUMNS)
    return rows * (1 + (dims > 1)), -(-layers // rows)


def _draw(part: SubFigure, plot: KernelPlot, rows: int, columns: int) -> None:
    lags, values, profile = plot.lags, plot.values, plot.profile
    if (values == values[:, :1]).all():  # the same for all heads
        values, profile = values[:, :1], profile[:, :1]
    layers, _, dims, _ = values.shape
    panel_rows = 1 + (dims > 1)
    limit = float(np.abs(values).max()) or 1.0
    part.suptitle(plot.title, fontsize="medium")
    grid = part.subplots(rows, columns, sharex=True, sharey="row", squeeze=False)
    if dims > 1:
        for lines, image_axes in zip(grid[::2, 0], grid[1::2, 0], strict=True):
            lines.set_ylabel(plot.summary, fontsize="small")
            image_axes.set_ylabel("head", fontsize="small")
    image: Any = None
    for panel in range(rows * columns // panel_rows):
        row, column = divmod(panel, columns)
        panel_axes = grid[panel_rows * row : panel_rows * (row + 1), column]
        if panel >= layers:
            for axes in panel_axes:
                axes.set_visible(False)
            continue
        _draw_profile(panel_axes[0], lags, profile[panel])
        panel_axes[0].set_title("all layers" if layers == 1 else f"layer {panel}", fontsize="small")
        if dims > 1:
            image = _draw_image(panel_axes[1], lags, values[panel], limit)
        for axes in panel_axes:
            for end in (-plot.training_length, plot.training_length):
                if lags[0] < end < lags[-1]:
                    axes.axvline(end, color="grey", linestyle="--", label="training length")
            axes.tick_params(labelsize="x-small")
        if panel + columns >= layers:  # the lowest panel of its column
            panel_axes[-1].set_xlabel(f"lag ({plot.unit})", fontsize="small")
            panel_axes[-1].tick_params(labelbottom=True)
    if image is not None:
        bar = part.colorbar(image, ax=grid.ravel().tolist(), aspect=30, fraction=0.03, pad=0.01)
        bar.ax.tick_params(labelsize="x-small")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))  # marks on both sides have one entry
    part.legend(by_label.values(), by_label, loc="outside right upper", fontsize="small")


def _draw_profile(axes: Axes, lags: NDArray[np.int64], profile: NDArray[np.floating]) -> None:
    """Draw one layer's profiles [H, N']."""
    from matplotlib import colormaps

    heads = len(profile)
    for head, colour in enumerate(colormaps["viridis"](np.linspace(0, 0.9, heads))):
        label = f"head {head}" if heads > 1 else "all heads"
        axes.plot(lags, profile[head], color=colour, linewidth=1, label=label)
    axes.grid(alpha=0.3)
    axes.set_xlim(lags[0] - 0.5, lags[-1] + 0.5)


def _draw_image(
    axes: Axes, lags: NDArray[np.int64], values: NDArray[np.floating], limit: float
) -> Any:
    """Draw one layer's kernels [H, K', N'] as an image, with the heads below each other."""
    heads, dims, _ = values.shape
    image = axes.imshow(
        values.reshape(heads * dims, -1),
        aspect="auto",
        extent=(lags[0] - 0.5, lags[-1] + 0.5, heads * dims, 0),
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
    )
    for head in range(1, heads):
        axes.axhline(head * dims, color="black", linewidth=0.5)
    labels = [str(head) for head in range(heads)] if heads > 1 else ["all"]
    axes.set_yticks(dims * (np.arange(heads) + 0.5), labels)
    return image
