"""Kernels of positional encodings, drawn over the lag."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

MAX_COLUMNS = 6
PANEL = 2.5, 1.5  # inches


class KernelDrawing(NamedTuple):
    """Kernels of one kind, as `kernel_properties` takes them.

    Attributes:
        title: what they are.
        unit: of the lags.
        summary: what the profile is of the dimensions, such as their mean.
        lags: those to be drawn, successive whole numbers. [N']
        values: p_d, [layers, H, K', N'], with sizes of 1 for what layers, heads or dimensions
            share.
        profile: p, [layers, H, N'].
        training_length: N.
    """

    title: str
    unit: str
    summary: str
    lags: NDArray[np.int64]
    values: NDArray[np.floating]
    profile: NDArray[np.floating]
    training_length: int


def plot_kernels(drawings: Sequence[KernelDrawing], path: str | Path) -> None:
    """Draw kernels: each layer's profiles, a line for each head, above an image of all dimensions.

    In the image dimensions lie below each other, head by head. The training length is marked.
    Written atomically; the suffix of `path` chooses the format (.png, .svg, .pdf).
    """
    from matplotlib.figure import Figure  # slow to import; no pyplot, hence no global state

    grids = [_grid(drawing) for drawing in drawings]
    heights = [0.7 + PANEL[1] * rows for rows, _ in grids]
    width = 1.5 + PANEL[0] * max(3, *(columns for _, columns in grids))
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(drawings), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, drawing, (rows, columns) in zip(parts, drawings, grids, strict=True):
        _draw(part, drawing, rows, columns)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=120)


def _grid(drawing: KernelDrawing) -> tuple[int, int]:
    """Rows and columns of panels: lines, and images where there are several dimensions."""
    layers, _, dims, _ = drawing.values.shape
    rows = -(-layers // MAX_COLUMNS)
    return rows * (1 + (dims > 1)), -(-layers // rows)


def _draw(part: SubFigure, drawing: KernelDrawing, rows: int, columns: int) -> None:
    from matplotlib import colormaps

    lags, values, profile = drawing.lags, drawing.values, drawing.profile
    if (values == values[:, :1]).all():
        values, profile = values[:, :1], profile[:, :1]
    layers, heads, dims, _ = values.shape
    kinds = 1 + (dims > 1)
    colours = colormaps["viridis"](np.linspace(0, 0.9, heads))
    largest = float(np.abs(values).max()) or 1.0
    part.suptitle(drawing.title, fontsize="medium")
    grid = part.subplots(rows, columns, sharex=True, sharey="row", squeeze=False)
    for first in grid[::kinds, 0]:
        first.set_ylabel(drawing.summary if dims > 1 else "", fontsize="small")
    for first in grid[1::kinds, 0] if dims > 1 else ():
        first.set_ylabel("head", fontsize="small")
    image: Any = None
    for panel in range(rows * columns // kinds):
        row, column = divmod(panel, columns)
        own = grid[kinds * row : kinds * (row + 1), column]
        if panel >= layers:
            for axes in own:
                axes.set_visible(False)
            continue
        for head, colour in enumerate(colours):
            name = f"head {head}" if heads > 1 else "all heads"
            own[0].plot(lags, profile[panel, head], color=colour, linewidth=1, label=name)
        own[0].set_title("all layers" if layers == 1 else f"layer {panel}", fontsize="small")
        own[0].grid(alpha=0.3)
        if dims > 1:
            image = own[1].imshow(
                values[panel].reshape(heads * dims, -1),
                aspect="auto",
                extent=(lags[0] - 0.5, lags[-1] + 0.5, heads * dims, 0),
                cmap="RdBu_r",
                vmin=-largest,
                vmax=largest,
            )
            for head in range(1, heads):
                own[1].axhline(head * dims, color="black", linewidth=0.5)
            names = range(heads) if heads > 1 else ["all"]
            own[1].set_yticks(dims * (np.arange(heads) + 0.5), names)
        for axes in own:
            for end in (-drawing.training_length, drawing.training_length):
                if lags[0] < end < lags[-1]:
                    axes.axvline(end, color="grey", linestyle="--", label="training length")
            axes.tick_params(labelsize="x-small")
        own[0].set_xlim(lags[0] - 0.5, lags[-1] + 0.5)
        if panel + columns >= layers:  # the lowest of its column
            own[-1].set_xlabel(f"lag ({drawing.unit})", fontsize="small")
            own[-1].tick_params(labelbottom=True)
    if image is not None:
        bar = part.colorbar(image, ax=grid.ravel().tolist(), aspect=30, fraction=0.03, pad=0.01)
        bar.ax.tick_params(labelsize="x-small")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    named = dict(
        zip(labels, handles, strict=True)
    )  # once, where the length is marked on both sides
    part.legend(named.values(), named, loc="outside right upper", fontsize="small")
