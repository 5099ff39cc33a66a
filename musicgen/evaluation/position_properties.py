"""Position properties: how a model weighs a lag."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from musicgen import load
from musicgen.console import log
from musicgen.evaluation.measure import Inputs, Measure, Row
from musicgen.evaluation.training_data import open_training_data
from musicgen.files import atomic_path
from musicgen.generation.model import MusicModel
from musicgen.metrics import kernel_properties, property_rows
from musicgen.models.position_kernels import PositionKernel, kernel_axes, position_kernels
from musicgen.report.matrix_plots import plot_templates
from musicgen.report.plots import KernelPlot, plot_kernels
from musicgen.report.tables import write_csv, write_json
from musicgen.validation import check_float

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


@dataclass(frozen=True)
class PositionProperties(Measure):
    """How the positional encoding, spans and decays weigh a lag (Liutkus et al. 2021, figure 7).

    Lags are along one coordinate, in its unit; those of the other coordinates are 0. The heads'
    profiles are written as CSV and JSON, and the kernels of all dimensions as arrays.

    Args:
        max_factor: the longest lag, as a multiple of the training length.
    """

    max_factor: float

    name = "position_properties"
    legend = (
        "at_zero: the kernel at lag 0; half_width: the lag at which it is half of that, inf if "
        "there is none; the others: musicgen/metrics/position_properties.py"
    )

    def __post_init__(self) -> None:
        check_float("max_factor", self.max_factor, minimum=1)

    def compute(self, inputs: Inputs, out: Path) -> list[Row]:
        model = load(inputs.checkpoint).to(inputs.device)
        log(model.content.describe(model.path))
        rows, drawings = [], []
        profiles: list[Row] = []
        arrays: dict[str, NDArray[np.generic]] = {}
        for axis in kernel_axes(model.model):
            coordinate = model.model.coordinate_names[axis]
            unit = _UNITS[coordinate]
            length = coordinate_length(model, inputs, axis) if axis else model.training_length
            reach = max(length, round(self.max_factor * length))
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
                    plot_templates(kernel.values, -int(lags[0]), path, length=size)
                key = f"{kernel.name}, {unit}"
                arrays |= {key: kernel.values, f"{key}, lags": lags}
                profiles += _profile_rows(kernel, lags, unit)
        plot_kernels(drawings, out / "position_properties.png")
        write_csv(profiles, out / "position_kernels.csv")
        write_json({"properties": rows, "profiles": profiles}, out / "position_properties.json")
        with atomic_path(out / "position_kernels.npz") as temporary:
            np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
        return rows

    def tables(self, rows: list[Row]) -> dict[str, list[Row]]:
        totals = [row for row in rows if row["layer"] == row["head"] == "all"]
        names = dict.fromkeys(
            key for row in totals for key, value in row.items() if isinstance(value, float)
        )
        table = [
            {"median over heads": n, **{f"{r['kernel']}, {r['lag']}": r.get(n) for r in totals}}
            for n in names
        ]
        return {self.name: table}


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


def coordinate_length(model: MusicModel, inputs: Inputs, axis: int) -> int:
    """Return the median range of a coordinate over the first training windows of pieces."""
    data = open_training_data(model, inputs.root)
    ranges = []
    for i in data.split(inputs.split)[: inputs.max_pieces]:
        window = data.cache[i][: model.training_length]
        ranges.append(np.ptp(model.positions(window, data.cache.bar_lengths[i])[:, axis]))
    return int(np.median(ranges)) + 1
