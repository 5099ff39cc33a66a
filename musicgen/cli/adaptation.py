"""Adapters in training: adapter=lora or adapter=prefix_state, with init=RUN."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from musicgen.adapters import Adapter
from musicgen.checkpoints import CheckpointContent, write_adapter
from musicgen.cli.output import command
from musicgen.console import log
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import ParameterError, UserError
from musicgen.models import Transformer, parameter_count

_NUM_WINDOWS, _WINDOW = 64, 16  # windows of the training set, and tokens in each
_COUNTED = ("index", "time", "bar")  # coordinates that grow from the beginning of a piece


def build_adapter(cfg: DictConfig) -> Adapter | None:
    """Build the adapter of a configuration; None without one.

    Raises:
        UserError: there are no trained weights for it to adapt.
    """
    config = OmegaConf.select(cfg, "adapter")
    if config is None:
        return None
    adapter: Adapter = instantiate(config, _convert_="all")
    if cfg.init is None and cfg.resume is None:
        expected = "it adapts a trained model: give init=RUN too"
        raise ParameterError("adapter", adapter.name, expected)
    return adapter


def begin_adapter(
    adapter: Adapter,
    model: Transformer,
    data: EncodedCorpus,
    content: CheckpointContent,
    saved: CheckpointContent,
) -> str:
    """Attach an adapter to a model with trained weights; say how many weights it trains.

    Raises:
        UserError: the vocabulary is not that of the trained weights, which stay as they are.
    """
    content.check_same_vocabulary(saved)
    total = parameter_count(model)
    adapter.attach(model)
    adapter.initialise(model, *training_windows(data, model.coordinate_names))
    return f"adapter={adapter.name}: trains {parameter_count(model):,} weights beside {total:,}"


def training_windows(data: EncodedCorpus, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return windows of the training set, [N, L], and the named coordinates [N, L, P].

    Those that count, such as bars, count from the beginning of the window.
    """
    counted = np.array([name in _COUNTED for name in names])
    tokens, positions = [], []
    pieces = data.cache.pieces("train") or list(range(len(data.cache)))
    for piece in evenly_spaced(pieces, _NUM_WINDOWS):
        ids = np.asarray(data.cache[piece], dtype=np.int64)
        count = len(ids) // _WINDOW
        bar_length = data.cache.bar_lengths[piece]
        where = data.tokenizer.coordinates(ids, names, bar_length=bar_length)
        where = where[: count * _WINDOW].reshape(count, _WINDOW, len(names))
        tokens += list(ids[: count * _WINDOW].reshape(count, _WINDOW))
        positions += list(where - counted * where[:, :1])
    if not tokens:
        raise UserError(f"no training piece has {_WINDOW} tokens; give longer ones")
    chosen = evenly_spaced(range(len(tokens)), _NUM_WINDOWS)
    stacked = (np.stack([rows[i] for i in chosen]) for rows in (tokens, positions))
    first, second = map(torch.from_numpy, stacked)
    return first, second


def write_adapter_file(folder: Path, adapter: Adapter, init: str | None) -> None:
    """Write the adapter of a run's best checkpoint to its folder; log how it is used."""
    files = [folder / "checkpoints" / f"{name}.ckpt" for name in ("best", "last")]
    path = folder / f"{adapter.name}.safetensors"
    write_adapter(next(file for file in files if file.is_file()), path)
    base = shlex.quote(str(init or "RUN"))
    file = shlex.quote(str(path))
    size = path.stat().st_size / 1e3
    use = f"{command('generate')} checkpoint={base} {adapter.name}={file} prompt=song.mid"
    log(f"{path}: {size:,.0f} kB, for {use}")
