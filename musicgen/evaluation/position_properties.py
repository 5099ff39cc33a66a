"""The measure `position_properties`: positional kernels, spans and decays of a model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from musicgen import load
from musicgen.console import log
from musicgen.data.corpora.base import evenly_spaced
from musicgen.errors import UserError
from musicgen.evaluation.runs import Inputs, open_training_data
from musicgen.generation.model import MusicModel
from musicgen.metrics.attention_invariance import half_width, monotonicity
from musicgen.midi.score import IntArray
from musicgen.models.inspection import PositionKernel, kernel_axes, position_kernels
from musicgen.report.figures import save_figure
from musicgen.report.tables import TableRow, write_csv
from musicgen.validation import check_float


def position_properties(inputs: Inputs, out: Path, *, max_factor: float) -> list[TableRow]:
    """Return the half width and the monotonicity of positional kernels, spans and decays.

    There is a row per layer and head. Lags are along one coordinate, and 0 in the others. The
    profiles (`PositionKernel`) are plotted and written to `position_kernels.csv`. Monotonicity is
    computed up to the training length as in Wang et al. (2021): it is 0 if a profile never
    increases with the lag, and 1 if it always does.

    Args:
        max_factor: the longest lag, as a multiple of the training length.
    """
    check_float("max_factor", max_factor, 1, maximum=1000)
    path, *others = inputs.checkpoints
    if others:
        raise UserError("metrics=position_properties measures one run; give one run at a time")
    model = load(path).to(inputs.device)
    log(model.content.describe(model.path))
    rows: list[TableRow] = []
    profiles: list[TableRow] = []
    drawings = []
    for axis in kernel_axes(model.model):
        coordinate = model.model.coordinate_names[axis]
        length = coordinate_length(model, inputs, axis) if axis else model.training_length
        reach = max(length, round(max_factor * length))
        first = 0 if model.model.causal else 1 - reach
        lags = np.arange(first, reach)
        for kernel in position_kernels(model.model, lags, axis):
            names = {"kernel": kernel.name, "lag of": coordinate}
            same = {"length": length, "relative": kernel.relative}
            backward = kernel.profile[..., -first:].astype(np.float64)  # at the lags 0, 1, …
            rounding = 1e-6 * np.abs(backward).max(-1)
            widths = half_width(np.abs(backward))
            increases = monotonicity(backward[..., None, :length], rounding)
            lines: list[TableRow] = [{**names, "lag": lag} for lag in lags.tolist()]
            for layer, head in np.ndindex(widths.shape):
                number = layer if len(widths) > 1 else "all"
                width, increase = float(widths[layer, head]), float(increases[layer, head])
                row = {**names, "layer": number, "head": head, **same}
                rows.append({**row, "half width": width, "monotonicity": increase})
                for line, weight in zip(lines, kernel.profile[layer, head].tolist(), strict=True):
                    line[f"layer {number}, head {head}"] = weight
            profiles += lines
            drawings.append((kernel, coordinate, lags, length))
    plot_kernels(drawings, out / "position_properties.png")
    write_csv(profiles, out / "position_kernels.csv")
    return rows


def coordinate_length(model: MusicModel, inputs: Inputs, axis: int) -> int:
    """Return the median range of a coordinate in windows at the beginning of pieces."""
    data = open_training_data(model, inputs.root)
    ranges = []
    for i in evenly_spaced(data.split(inputs.split), inputs.max_pieces):
        window = data.cache[i][: model.training_length]
        ranges.append(np.ptp(model.positions(window, data.cache.bar_lengths[i])[:, axis]))
    return int(np.median(ranges)) + 1


def plot_kernels(
    drawings: Sequence[tuple[PositionKernel, str, IntArray, int]], path: str | Path
) -> None:
    """Plot the profiles of kernels (columns) by layer (rows), with a line per head.

    Args:
        drawings: kernels, each with the coordinate of its lags, the lags, and the training length.
    """
    num_rows = max(len(kernel.profile) for kernel, *_ in drawings)
    figure = Figure((3.2 * len(drawings) + 0.8, 1.6 * num_rows + 0.5), layout="constrained")
    grid = figure.subplots(num_rows, len(drawings), squeeze=False)
    for panels, (kernel, coordinate, lags, length) in zip(grid.T, drawings, strict=True):
        for axes in panels[len(kernel.profile) :]:
            axes.set_visible(False)
        for layer, (axes, profile) in enumerate(zip(panels, kernel.profile, strict=False)):
            axes.set_prop_cycle(color=colormaps["viridis"](np.linspace(0, 0.9, len(profile))))
            axes.plot(lags, profile.T, linewidth=1)
            which = "all layers" if len(kernel.profile) == 1 else f"layer {layer}"
            axes.set_title(f"{kernel.name}, {which}", fontsize="small")
            axes.set_xlabel(f"lag ({coordinate})", fontsize="x-small")
            axes.set_ylabel("weight (head 0: dark)", fontsize="x-small")
            axes.tick_params(labelsize="x-small")
            axes.grid(alpha=0.3)
            for end in (-length, length):
                if lags[0] < end < lags[-1]:
                    axes.axvline(end, color="grey", linestyle="--")
    save_figure(figure, path, dpi=120)
