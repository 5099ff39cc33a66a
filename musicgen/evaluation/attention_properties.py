"""The measure `attention_properties`: translation invariance, monotonicity, attention maps."""

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from musicgen.console import log
from musicgen.errors import ParameterError
from musicgen.evaluation.runs import Inputs, load_runs, name_runs, open_training_data
from musicgen.metrics.attention_invariance import invariance_rows
from musicgen.midi.score import FloatArray
from musicgen.models.inspection import identical_token_weights
from musicgen.random import NoiseKey, RandomStream
from musicgen.report.figures import save_figure
from musicgen.report.tables import TableRow
from musicgen.validation import check_int


def attention_properties(
    inputs: Inputs,
    out: Path,
    *,
    num_tokens: int | None,
    length: int | None,
    layers: Sequence[int] | None,
    map_length: int,
) -> list[TableRow]:
    """Return translation invariance T and monotonicity M of attention by layer; plot its maps.

    T and M are computed from sequences that each repeat one token, see `identical_token_weights`.
    A row has the lowest T and the lowest M over the heads of a layer. The maps show normalised
    weights for such sequences and for a held-out piece (Liutkus et al. 2021, figures 1 and 8 to
    12). Weights are computed on the CPU in fp64, so that equal weights have equal values.

    Args:
        num_tokens: number of tokens of the vocabulary to repeat, one per sequence; None: all,
            as published.
        length: length of these sequences; None: 1.25 times the training length. They need
            8 × layers × heads × length² bytes of memory.
        layers: numbers of the layers, from 0; None: all.
        map_length: number of tokens of the held-out piece on the map.
    """
    check_int("num_tokens", num_tokens, none_means="all")
    check_int("length", length, maximum=2**16, none_means="1.25 times the training length")
    check_int("map_length", map_length)
    models = load_runs(inputs)
    data = open_training_data(models[0], inputs.root)
    piece = data.split(inputs.split)[0]
    noise = NoiseKey((inputs.seed, RandomStream.EVALUATION))
    rows: list[TableRow] = []
    for number, (model, (_, name)) in enumerate(zip(models, name_runs(models), strict=True)):
        network = copy.deepcopy(model.model).cpu().double()
        all_layers = range(len(network.layers))
        chosen = list(all_layers if layers is None else layers)
        if not chosen or not set(chosen) <= set(all_layers):
            expected = f"expected numbers of layers from 0 to {all_layers[-1]}"
            raise ParameterError("layers", layers, expected)
        size, trained = len(model.tokenizer.vocabulary), model.training_length
        count = min(num_tokens or size, size)
        tokens = np.linspace(0, size - 1, count).round().astype(int).tolist()
        reach = min(length or round(1.25 * trained), network.position.max_length or 2**63)
        log(f"{count} sequences, each of {reach:,} copies of one token")
        probe = identical_token_weights(network, tokens, reach, noise, layers=chosen).numpy()
        rows += [
            {"run": name, "layer": layer, **row}
            for layer, matrices in zip(chosen, probe, strict=True)
            for row in invariance_rows(matrices, trained)
        ]
        ids = data.cache[piece][:map_length][: network.position.max_length]
        positions = torch.from_numpy(model.positions(ids, data.cache.bar_lengths[piece]))[None]
        maps = network.attentions(
            torch.from_numpy(ids)[None], layers=chosen, positions=positions, noise=noise
        )[:, 0].numpy()
        suffix = f"_{number}" if len(models) > 1 else ""
        for kind, weights in (("identical_tokens", probe), ("maps", maps)):
            path = out / f"attention_{kind}{suffix}.png"
            plot_attention(weights, path, layers=chosen, training_length=trained)
    return rows


def attention_brightness(weights: FloatArray) -> FloatArray:
    """Return the brightness min(1, (a / 0.02)^0.4) of normalised weights a on attention maps.

    It is the scale of Liutkus et al. 2021, figures 8 to 12.
    """
    return np.minimum(1, (weights.clip(min=0) / 0.02) ** 0.4)


def plot_attention(
    weights: FloatArray, path: str | Path, *, layers: Sequence[int], training_length: int
) -> None:
    """Plot attention maps, with a row per layer and a column per head.

    In a map, queries go down and keys to the right.

    Args:
        weights: [layers, H, L, L]; normalised before plotting.
        path: see `save_figure`.
        layers: numbers of the layers, for the titles.
        training_length: marked by lines if it is below L.
    """
    num_layers, heads, length, _ = weights.shape
    weights = weights / weights.sum(-1, keepdims=True)
    figure = Figure(figsize=(1.7 * heads + 0.6, 1.7 * num_layers + 0.7), layout="constrained")
    grid = figure.subplots(num_layers, heads, sharex=True, sharey=True, squeeze=False)
    future = np.triu(np.ones((length, length), bool), 1)
    for (row, head), axes in np.ndenumerate(grid):
        shown = np.ma.masked_array(attention_brightness(weights[row, head]), future)
        axes.imshow(shown, cmap="viridis", vmin=0, vmax=1)
        if training_length < length:
            for line in (axes.axhline, axes.axvline):
                line(training_length, color="grey", linestyle="--", linewidth=0.7)
        axes.set_title(f"layer {layers[row]}, head {head}", fontsize="x-small")
        axes.tick_params(labelsize="xx-small")
    figure.supxlabel("key", fontsize="small")
    figure.supylabel("query", fontsize="small")
    save_figure(figure, path, dpi=120)
