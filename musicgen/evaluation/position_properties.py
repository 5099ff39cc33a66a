"""Position properties: how a model weighs a lag."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray

from musicgen import load
from musicgen.console import log
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.training_data import open_training_data
from musicgen.files import atomic_path
from musicgen.generation.model import MusicModel
from musicgen.metrics.position_properties import kernel_properties, property_rows
from musicgen.models.position_kernels import PositionKernel, kernel_axes, position_kernels
from musicgen.report.figures import save_figure
from musicgen.report.tables import TableRow, write_csv

NUM_TEMPLATES = 16  # pictures of kernels as matrices
MAX_TEMPLATE = 512  # positions in them
TEMPLATE, PANEL = 1.7, (2.5, 1.5)  # inches
MAX_COLUMNS = 6
# Names of lags along coordinates; those of one unit are told apart.
_UNITS = {
    "index": "tokens",
    "time": "grid steps",
    "bar": "bars",
    "beat": "grid steps in the bar",
    "pitch": "semitones",
    "chord": "chord numbers",
}


def position_properties(inputs: Inputs, out: Path, *, max_factor: float) -> list[TableRow]:
    """How the positional encoding, spans and decays weigh a lag (Liutkus et al. 2021, figure 7).

    Lags are along one coordinate, in its unit; those of the other coordinates are 0. The heads'
    profiles are written as CSV, and the kernels of all dimensions as arrays.

    Args:
        max_factor: the longest lag, as a multiple of the training length.
    """
    model = load(inputs.checkpoint).to(inputs.device)
    log(model.content.describe(model.path))
    rows, drawings = [], []
    profiles: list[TableRow] = []
    arrays: dict[str, NDArray[np.generic]] = {}
    for axis in kernel_axes(model.model):
        coordinate = model.model.coordinate_names[axis]
        unit = _UNITS[coordinate]
        length = coordinate_length(model, inputs, axis) if axis else model.training_length
        reach = max(length, round(max_factor * length))
        lags = np.arange(1 - (length if model.model.causal else reach), reach)
        drawn = slice(length - 1 if model.model.causal else 0, None)
        for kernel in position_kernels(model.model, lags, axis):
            layers = zip(kernel.values, kernel.profile, strict=True)
            found = property_rows([kernel_properties(lags, *layer, length) for layer in layers])
            for row in found:
                row |= {"training_length": length, "translation_invariant": kernel.relative}
                if coordinate in ("time", "beat"):
                    row["period_in_beats"] = row["period"] / model.tokenizer.steps_per_beat
                rows.append({"kernel": kernel.name, "lag": unit, **row})
            shown = kernel._replace(profile=kernel.profile[..., drawn])
            drawings.append((shown, unit, lags[drawn], length))
            if not arrays:  # the encoding's own kernel, of the first coordinate
                path, size = out / "position_templates.png", min(length, MAX_TEMPLATE)
                plot_templates(kernel.values, -int(lags[0]), path, length=size)
            key = f"{kernel.name}, {unit}"
            arrays |= {key: kernel.values, f"{key}, lags": lags}
            profiles += _profile_rows(kernel, lags, unit)
    plot_kernels(drawings, out / "position_properties.png")
    write_csv(profiles, out / "position_kernels.csv")
    with atomic_path(out / "position_kernels.npz") as temporary:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
    return rows


def _profile_rows(kernel: PositionKernel, lags: NDArray[np.int64], unit: str) -> list[TableRow]:
    """Return a row for each lag, with the profile of each layer and head."""
    heads = list(np.ndindex(kernel.profile.shape[:2]))
    names = [f"layer {layer}, head {head}" for layer, head in heads]
    values = kernel.profile.reshape(len(heads), -1).T.tolist()
    start = {"kernel": kernel.name, "unit": unit}
    return [
        {**start, "lag": lag, **dict(zip(names, line, strict=True))}
        for lag, line in zip(lags.tolist(), values, strict=True)
    ]


def coordinate_length(model: MusicModel, inputs: Inputs, axis: int) -> int:
    """Return the median range of a coordinate over the first training windows of pieces."""
    data = open_training_data(model, inputs.root)
    ranges = []
    for i in data.split(inputs.split)[: inputs.max_pieces]:
        window = data.cache[i][: model.training_length]
        ranges.append(np.ptp(model.positions(window, data.cache.bar_lengths[i])[:, axis]))
    return int(np.median(ranges)) + 1


def plot_templates(
    kernels: NDArray[np.floating], zero: int, path: str | Path, *, length: int
) -> None:
    """Plot kernels as matrices over query and key, as Liutkus et al., figure 7.

    Of many kernels `NUM_TEMPLATES` are drawn at random, the same in every call.

    Args:
        kernels: values over consecutive lags, by layer, head and dimension. [layers, H, K', N']
        zero: the index of lag 0; there are `length` − 1 lags on both sides of it.
        length: positions to show.
    """
    indices = list(np.ndindex(kernels.shape[:3]))
    if len(indices) > NUM_TEMPLATES:
        chosen = np.random.default_rng(0).choice(len(indices), NUM_TEMPLATES, replace=False)
        indices = [indices[i] for i in sorted(chosen)]
    columns = min(8, len(indices))
    rows = -(-len(indices) // columns)
    size = TEMPLATE * columns + 0.8, (TEMPLATE + 0.2) * rows + 0.3
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
    save_figure(figure, path, dpi=120)


def plot_kernels(
    drawings: Sequence[tuple[PositionKernel, str, NDArray[np.int64], int]], path: str | Path
) -> None:
    """Plot each layer's profiles, a line per head, with the training length marked.

    Args:
        drawings: kernels, with the unit of their lags, the lags, and the training length.
    """
    grids = []
    for kernel, *_ in drawings:
        rows = -(-len(kernel.profile) // MAX_COLUMNS)
        grids.append((rows, -(-len(kernel.profile) // rows)))
    heights = [0.7 + PANEL[1] * rows for rows, _ in grids]
    width = 1.5 + PANEL[0] * max(3, *(columns for _, columns in grids))
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(drawings), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, grid, (kernel, unit, lags, length) in zip(parts, grids, drawings, strict=True):
        part.suptitle(f"{kernel.name}: {kernel.effect}", fontsize="medium")
        part.supxlabel(f"lag ({unit})", fontsize="small")
        part.supylabel(kernel.summary, fontsize="small")
        layers, heads, _ = kernel.profile.shape
        colours = colormaps["viridis"](np.linspace(0, 0.9, heads))
        labels = [f"head {head}" for head in range(heads)] if heads > 1 else ["all heads"]
        panels = part.subplots(*grid, sharex=True, sharey=True, squeeze=False).ravel()
        for axes in panels[layers:]:
            axes.set_visible(False)
        for layer, (axes, profile) in enumerate(zip(panels, kernel.profile, strict=False)):
            axes.set_prop_cycle(color=colours)
            axes.plot(lags, profile.T, linewidth=1, label=labels)
            axes.set_title("all layers" if layers == 1 else f"layer {layer}", fontsize="small")
            axes.set_xlim(lags[0] - 0.5, lags[-1] + 0.5)
            axes.tick_params(labelsize="x-small")
            axes.grid(alpha=0.3)
            for end in (-length, length):
                if lags[0] < end < lags[-1]:
                    name = "training length" if end > 0 else None
                    axes.axvline(end, color="grey", linestyle="--", label=name)
        handles = panels[0].get_legend_handles_labels()
        part.legend(*handles, loc="outside right upper", fontsize="small")
    save_figure(figure, path, dpi=120)
