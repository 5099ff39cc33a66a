"""The measure `attention_properties` of `evaluate`: attention as matrices."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from musicgen.attention.pair_weights import FORMS
from musicgen.cli.datasets import open_training_data
from musicgen.cli.measures.compared import compared_models
from musicgen.console import log, progress_bar
from musicgen.errors import ParameterError, parameter_of
from musicgen.files import atomic_path
from musicgen.generation.model import MusicModel
from musicgen.memory import total_memory
from musicgen.metrics import by_offset, invariance_rows
from musicgen.models import Transformer
from musicgen.models.attention_weights import attention_weights, identical_token_weights
from musicgen.random import NoiseKey, RandomStream
from musicgen.report.matrix_plots import (
    attention_brightness,
    plot_attention,
    plot_invariance,
    relative_brightness,
)
from musicgen.report.tables import write_json, write_latex
from musicgen.validation import check_choice, check_int

Row = dict[str, Any]
_COPIES = 4  # of the matrices of identical tokens, at most at a time
_MEASURES = ("translation_invariance", "monotonicity")


def attention_properties(cfg: DictConfig, out: Path) -> list[Row]:
    """Compute T and M of attention between copies of one token, and attention of a held-out piece.

    For each model, the matrices of both are drawn by layer and head and stored as arrays. T and M
    of the best heads are also written as LaTeX and drawn. It runs on the CPU in fp64, as equal
    weights must be equal.
    """
    settings = cfg.attention
    check_choice("attention.form", settings.form, FORMS)
    for key, meaning in (("num_tokens", "all"), ("length", "1.25 times the training length")):
        check_int(f"attention.{key}", settings[key], none_means=meaning)
    check_int("attention.map_length", settings.map_length, minimum=2)
    models = compared_models(cfg)
    data = open_training_data(models[0].model, cfg.data.root)
    index = data.split(cfg.split)[0]
    piece, bar_length = data.cache[index][: settings.map_length], data.cache.bar_lengths[index]
    rows: list[Row] = []
    by_distance = {}
    for number, compared in enumerate(models):
        name = compared.name
        suffix = f"_{number}" if len(models) > 1 else ""
        trained, network = compared.model, copy.deepcopy(compared.model.model).cpu().double()
        layers = _layers(settings.layers, network)
        shown: dict[str, Any] = {"layers": layers, "training_length": trained.training_length}
        with parameter_of("attention"):
            probe = _probe(trained, network, cfg, layers)
        of_model: list[Row] = []
        for layer, matrices in zip(layers, probe, strict=True):
            found = invariance_rows(matrices, trained.training_length)
            of_model += [{"model": name, "layer": layer, **row} for row in found]
        rows += of_model
        notes = {
            (row["layer"], row["head"]): "T {:.2f}, M {:.2f}".format(*map(row.get, _MEASURES))
            for row in reversed(of_model)  # the first queries and smallest offsets stay
        }
        normalised = settings.form == "normalised"
        brightness = (attention_brightness if normalised else relative_brightness)(probe)
        path = out / f"attention_identical_tokens{suffix}.png"
        plot_attention(brightness, path, notes=notes, title=name, **shown)
        positions = torch.from_numpy(trained.positions(piece, bar_length))[None]
        maps = _maps(network, cfg, piece, positions, layers)
        path = out / f"attention_maps{suffix}.png"
        plot_attention(attention_brightness(maps), path, title=name, **shown)
        with atomic_path(out / f"attention{suffix}.npz") as temporary:
            np.savez_compressed(
                temporary,
                identical_tokens=probe.astype(np.float32),
                piece=maps.astype(np.float32),
            )
        everywhere = by_offset(maps, slice(None), maps.shape[-1])
        means = np.nanmean(everywhere, axis=-2)
        by_distance[name] = {"layers": layers, "mean_by_offset": means.tolist()}
    best = best_heads(rows)
    plot_invariance(best, out / "attention_properties.png")
    write_latex(published_form(best), out / "attention_properties.tex")
    content = {"form": settings.form, "rows": rows, "best_heads": best, "piece": by_distance}
    content["runs"] = {compared.name: compared.run for compared in models}
    write_json(content, out / "attention_properties.json")
    return rows


def _layers(given: Any, network: Transformer) -> list[int]:
    existing = range(len(network.layers))
    layers = list(existing) if given is None else [given] if isinstance(given, int) else list(given)
    if not layers or any(layer not in existing for layer in layers):
        expected = f"expected some of the layers 0 to {existing[-1]}, as [0,{existing[-1]}]"
        raise ParameterError("attention.layers", given, expected)
    return layers


def _probe(
    model: MusicModel, network: Transformer, cfg: DictConfig, layers: list[int]
) -> NDArray[np.float64]:
    """Return the mean matrices of sequences of one token: [layers, H, L, L]."""
    settings = cfg.attention
    length = settings.length or round(1.25 * model.training_length)
    length = min(length, network.position.max_length or length)
    heads = model.content.model["num_heads"]
    _check_memory(len(layers) * heads * length**2 * 8, length)
    size = len(model.tokenizer.vocabulary)
    count = min(settings.num_tokens or size, size)
    ids = np.linspace(0, size - 1, count).round().astype(int).tolist()
    log(f"{count} sequences of {length:,} copies of a token")
    noise = NoiseKey((cfg.seed, RandomStream.EVALUATION))
    options = {"form": settings.form, "layers": layers}
    with progress_bar(MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        tracked = progress.track(ids, description="tokens")
        return identical_token_weights(network, tracked, length, noise, **options).numpy()


def _check_memory(size: int, length: int) -> None:
    """Refuse matrices of `size` bytes that will not fit; a few copies of them are needed."""
    memory, needed = total_memory(), _COPIES * size
    if memory is not None and needed > memory:
        raise ParameterError(
            "length",
            length,
            "expected a smaller one, or fewer attention.layers, such as [0]: the matrices need "
            f"about {needed / 1e9:,.1f} GB of the machine's {memory / 1e9:,.1f} GB",
        )


def _maps(
    network: Transformer,
    cfg: DictConfig,
    piece: NDArray[np.int64],
    positions: torch.Tensor,
    layers: list[int],
) -> NDArray[np.float64]:
    """Return the normalised attention of a piece: [layers, H, L, L]."""
    tokens = torch.from_numpy(piece)[None]
    noise = NoiseKey((cfg.seed, RandomStream.EVALUATION))
    found = attention_weights(network, tokens, layers=layers, positions=positions, noise=noise)
    return torch.cat([weights for weights, _ in found]).numpy()


def best_heads(rows: list[Row]) -> list[Row]:
    """Return the lowest T and the lowest M of the heads of each model's first layer given."""
    first = {row["model"]: row["layer"] for row in reversed(rows)}
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["layer"] != first[row["model"]]:
            continue
        head = {key: row[key] for key in row if key != "head"}
        key = tuple(head[k] for k in ("model", "first_query", "offsets_below"))
        kept = best.setdefault(key, head)
        for name in _MEASURES:
            kept[name] = float(np.fmin(kept[name], row[name]))
    return list(best.values())


def published_form(best: list[Row]) -> list[Row]:
    """Return a row for each model and range of queries, with T and M in each range of offsets."""
    table: dict[tuple[Any, ...], Row] = {}
    for row in best:
        queries = f"{row['first_query']}–{row['last_query']}"
        line = table.setdefault((row["model"], queries), {"model": row["model"], "query": queries})
        for name, letter in zip(_MEASURES, "TM", strict=True):
            line[f"{letter}, offset < {row['offsets_below']}"] = row[name]
    return list(table.values())


def attention_tables(rows: list[Row]) -> dict[str, list[Row]]:
    """Return what the terminal shows: T and M of the best heads."""
    layer = rows[0]["layer"]
    return {f"attention_properties, best heads of layer {layer}": published_form(best_heads(rows))}
