"""Attention properties: T and M of attention between copies of one token, and maps of a piece."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from musicgen.console import log, track
from musicgen.errors import ParameterError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.runs import compared_models
from musicgen.evaluation.training_data import open_training_data
from musicgen.files import atomic_path
from musicgen.generation.model import MusicModel
from musicgen.metrics.attention_invariance import invariance_rows
from musicgen.models import Transformer
from musicgen.models.attention_weights import attention_weights, identical_token_weights
from musicgen.random import NoiseKey, RandomStream
from musicgen.report.figures import save_figure
from musicgen.report.tables import (
    RUN,
    TableRow,
    pivot,
    run_label,
    without_empty_columns,
    write_json,
    write_latex,
)
from musicgen.validation import check_int

PANEL = 1.7  # inches
_MEASURES = {"T": "translation_invariance", "M": "monotonicity"}


def attention_properties(
    inputs: Inputs,
    out: Path,
    *,
    form: str,
    num_tokens: int | None,
    length: int | None,
    layers: Sequence[int] | None,
    map_length: int,
    num_realizations: Any,
) -> list[TableRow]:
    """T and M of attention between copies of one token, and attention of a held-out piece.

    For each model, the matrices of both are drawn by layer and head and stored as arrays. T and M
    of the best heads are also written as LaTeX and drawn (Liutkus et al. 2021, figures 1, 4 and 8
    to 12, table 7). It runs on the CPU in fp64, as equal weights must be equal.

    Args:
        form: of the weights of pairs, see `pair_weights`.
        num_tokens: of the vocabulary, each repeated to a sequence; None: all, as published.
        length: of these sequences; None: 1.25 times the training length. Memory: layers × heads ×
            length² × 8 bytes.
        layers: to show, from 0; None: all. T and M are compared in the first of them.
        map_length: first tokens of a held-out piece, whose attention is drawn.
        num_realizations: SPE's R: `trained`, a number, None (the exact limit), or a list of these.
    """
    check_int("num_tokens", num_tokens, none_means="all")
    check_int("length", length, none_means="1.25 times the training length")
    check_int("map_length", map_length)
    models = compared_models(inputs, num_realizations)
    data = open_training_data(models[0].model, inputs.root)
    index = data.split(inputs.split)[0]
    piece, bar_length = data.cache[index][:map_length], data.cache.bar_lengths[index]
    noise = NoiseKey((inputs.seed, RandomStream.EVALUATION))
    rows: list[TableRow] = []
    for number, compared in enumerate(models):
        names = {"run": compared.name, "R": compared.realizations}
        suffix = f"_{number}" if len(models) > 1 else ""
        trained, network = compared.model, copy.deepcopy(compared.model.model).cpu().double()
        shown = _chosen_layers(network, layers)
        probe = _probe(trained, network, shown, noise, form, num_tokens, length)
        of_model = [
            {**names, "layer": layer, **row}
            for layer, matrices in zip(shown, probe, strict=True)
            for row in invariance_rows(matrices, trained.training_length)
        ]
        rows += of_model
        notes = {
            (row["layer"], row["head"]): ", ".join(
                f"{letter} {row[name]:.2f}" for letter, name in _MEASURES.items()
            )
            for row in reversed(of_model)  # the first queries and smallest offsets stay
        }
        plot = partial(
            plot_attention,
            layers=shown,
            training_length=trained.training_length,
            title=compared.name,
        )
        normalised = form == "normalised"
        brightness = (attention_brightness if normalised else relative_brightness)(probe)
        plot(brightness, out / f"attention_identical_tokens{suffix}.png", notes=notes)
        positions = torch.from_numpy(trained.positions(piece, bar_length))[None]
        ids = torch.from_numpy(piece)[None]
        weights = attention_weights(network, ids, layers=shown, positions=positions, noise=noise)
        maps = torch.cat([each for each, _ in weights]).numpy()  # [layers, H, L, L]
        plot(attention_brightness(maps), out / f"attention_maps{suffix}.png")
        with atomic_path(out / f"attention{suffix}.npz") as temporary:
            np.savez_compressed(
                temporary,
                identical_tokens=probe.astype(np.float32),
                piece=maps.astype(np.float32),
            )
    best = best_heads(rows)
    plot_invariance(best, out / "attention_properties.png")
    write_latex(published_form(best), out / "attention_properties.tex")
    runs = [
        {"run": each.name, "R": each.realizations, "checkpoint": each.checkpoint} for each in models
    ]
    content = {"form": form, "runs": runs, "rows": rows, "best_heads": best}
    write_json(content, out / "attention_properties.json")
    return best


def _chosen_layers(network: Transformer, wanted: Sequence[int] | None) -> list[int]:
    existing = range(len(network.layers))
    layers = list(existing if wanted is None else wanted)
    if not layers or any(layer not in existing for layer in layers):
        expected = f"expected some of the layers 0 to {existing[-1]}"
        raise ParameterError("layers", wanted, expected)
    return layers


def _probe(
    model: MusicModel,
    network: Transformer,
    layers: list[int],
    noise: NoiseKey,
    form: str,
    num_tokens: int | None,
    length: int | None,
) -> NDArray[np.float64]:
    """Return the mean matrices of sequences of one token: [layers, H, L, L]."""
    length = length or round(1.25 * model.training_length)
    length = min(length, network.position.max_length or length)
    size = len(model.tokenizer.vocabulary)
    count = min(num_tokens or size, size)
    ids = np.linspace(0, size - 1, count).round().astype(int).tolist()
    log(f"{count} sequences of {length:,} copies of a token")
    return identical_token_weights(
        network, track(ids, "tokens"), length, noise, form=form, layers=layers
    ).numpy()


def best_heads(rows: list[TableRow]) -> list[TableRow]:
    """Return the lowest T and the lowest M of the heads of each model's first layer given."""
    best: dict[tuple[Any, ...], TableRow] = {}
    for row in rows:
        if row["layer"] != rows[0]["layer"]:
            continue
        head = {key: row[key] for key in row if key != "head"}
        key = tuple(head[k] for k in (*RUN, "first_query", "offsets_below"))
        kept = best.setdefault(key, head)
        for name in _MEASURES.values():
            kept[name] = float(np.fmin(kept[name], row[name]))
    return list(best.values())


def published_form(best: list[TableRow]) -> list[TableRow]:
    """Return a row for each model and range of queries, with T and M in each range of offsets."""
    cells = [
        {
            "run": row["run"],
            "R": row["R"],
            "query": f"{row['first_query']}–{row['last_query']}",
            "column": f"{letter}, offset < {row['offsets_below']}",
            "value": row[name],
        }
        for row in best
        for letter, name in _MEASURES.items()
    ]
    return without_empty_columns(pivot(cells, (*RUN, "query"), "column", lambda row: row["value"]))


def attention_brightness(weights: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return min(1, (a / 0.02)^0.4) of normalised weights a, as Liutkus et al., figures 8 to 12."""
    return np.minimum(1, (weights.clip(min=0) / 0.02) ** 0.4)


def relative_brightness(weights: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return ((a − min a) / (max a − min a))^0.4 of each causal matrix [..., L, L] of weights a."""
    seen = np.where(np.tril(np.ones(weights.shape[-2:], bool)), weights, np.nan)
    low, high = (f(seen, (-2, -1), keepdims=True) for f in (np.nanmin, np.nanmax))
    span = np.where(high > low, high - low, 1)
    return ((weights - low) / span).clip(0, 1) ** 0.4


def plot_attention(
    brightness: NDArray[np.floating],
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
    num_layers, heads, length, _ = brightness.shape
    height = PANEL * num_layers + 0.7 + 0.15 * num_layers * bool(notes)
    figure = Figure(figsize=(PANEL * heads + 0.6, height), layout="constrained")
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
    save_figure(figure, path, dpi=120)


def plot_invariance(rows: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Plot T and M of models over the range of queries, as Liutkus et al., figure 4.

    Args:
        rows: with `run`, `R`, `first_query`, `last_query`, `offsets_below`, and both measures. One
            for each model and range; of several offsets the lowest are shown.
    """
    nearest = min(row["offsets_below"] for row in rows)
    rows = [row for row in rows if row["offsets_below"] == nearest]
    ranges = list(dict.fromkeys((row["first_query"], row["last_query"]) for row in rows))
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, (letter, name) in zip(figure.subplots(1, 2), _MEASURES.items(), strict=True):
        for label in dict.fromkeys(map(run_label, rows)):
            values = [row[name] for row in rows if run_label(row) == label]
            axes.plot(range(len(values)), values, marker="o", label=label)
        axes.set_xticks(range(len(ranges)), [f"{first}–{last}" for first, last in ranges])
        axes.set(title=f"{name.replace('_', ' ')} {letter} (lower is better)", xlabel="query")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save_figure(figure, path, dpi=150)
