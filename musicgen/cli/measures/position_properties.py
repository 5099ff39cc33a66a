"""The measure `position_properties` of `evaluate`: how a model weighs a lag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from musicgen import load
from musicgen.cli.datasets import open_training_data
from musicgen.cli.output import find_device
from musicgen.console import log
from musicgen.files import atomic_path
from musicgen.generation.model import MusicModel
from musicgen.metrics import kernel_properties, property_rows
from musicgen.models.position_kernels import PositionKernel, kernel_axes, position_kernels
from musicgen.report.matrix_plots import plot_templates
from musicgen.report.plots import KernelPlot, plot_kernels
from musicgen.report.tables import write_csv, write_json

Row = dict[str, Any]
MAX_TEMPLATE = 512  # positions in the pictures of kernels as matrices
# Names of lags along coordinates; those of one unit are told apart.
_UNITS = {
    "index": "tokens",
    "time": "grid steps",
    "bar": "bars",
    "beat": "grid steps in the bar",
    "pitch": "semitones",
    "chord": "chord numbers",
}


def position_properties(cfg: DictConfig, out: Path) -> list[Row]:
    """Measure and plot how the positional encoding, spans and decays weigh a lag.

    Lags are along one coordinate, in its unit; those of the other coordinates are 0. The heads'
    profiles are written as CSV and JSON, and the kernels of all dimensions as arrays.
    """
    model = load(cfg.checkpoint).to(find_device(cfg.device))
    log(model.content.describe(model.path))
    rows, drawings = [], []
    profiles: list[Row] = []
    arrays: dict[str, NDArray[np.generic]] = {}
    for axis in kernel_axes(model.model):
        coordinate = model.model.coordinate_names[axis]
        unit = _UNITS[coordinate]
        length = coordinate_length(model, cfg, axis) if axis else model.training_length
        reach = max(length, round(cfg.max_factor * length))
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


def coordinate_length(model: MusicModel, cfg: DictConfig, axis: int) -> int:
    """Return the median range of a coordinate over the first training windows of pieces."""
    data = open_training_data(model, cfg.data.root)
    ranges = []
    for i in data.split(cfg.split)[: cfg.max_pieces]:
        window = data.cache[i][: model.training_length]
        ranges.append(np.ptp(model.positions(window, data.cache.bar_lengths[i])[:, axis]))
    return int(np.median(ranges)) + 1


def property_tables(rows: list[Row]) -> dict[str, list[Row]]:
    """Return what the terminal shows: medians over all heads, a column for each kernel."""
    totals = [row for row in rows if row["layer"] == row["head"] == "all"]
    names = dict.fromkeys(
        key for row in totals for key, value in row.items() if isinstance(value, float)
    )
    table = [
        {"median over heads": name, **{f"{r['kernel']}, {r['lag']}": r.get(name) for r in totals}}
        for name in names
    ]
    return {"position_properties": table}
