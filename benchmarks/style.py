"""Teach songs-small a style from a few pieces: its initial state alone, or all weights.

    python -m benchmarks.style FOLDER --styles pop hymns reels

Each subfolder of FOLDER has the pieces of a style; `songs` has songs of held-out composers, whose
loss shows what a training forgets. Of a style, 12 pieces in a random order are for the test, 6 for
validation and the others for training: the first of them, or the first 3, 10 and 40.

- `state`: the initial sums of linear attention, kv and its normaliser in each layer, as in
  MIDI-RWKV (Zhou-Zheng and Pasquier 2025); without them, the model is what it was.
- `all`: all weights.

AdamW at a constant rate, one window of 1,024 tokens a step, transposed as in training. Rows are
nats a token of the first 1,024 tokens of each piece, after seconds of one core in training steps
alone. A training ends when its validation is .1 above its best. Trainings in the results are not
repeated.
"""

import argparse
import fcntl
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import musicgen
from benchmarks import measure
from musicgen.attention.causal_product import LinearState
from musicgen.batches import Batch
from musicgen.data.loading import EvalWindows, TrainingWindows, collate
from musicgen.data.preparation.cache import TokenCache
from musicgen.generation.model import MusicModel
from musicgen.models import Transformer
from musicgen.models.state import ModelState
from musicgen.tokenization.coordinates import Coordinates

LENGTH, WARMUP = 1024, 10
TEST, VALIDATION = 12, 6  # pieces of each style
RATES = {"state": 0.1, "all": 1e-4}
MARKS = (0, 4, 8, 15, 30)  # seconds of training at which losses are measured
WORSE = 0.1  # nats above the best validation that end a training


class InitialState(nn.Module):
    """Initial sums of linear attention in all layers of a model, in place of zeros."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        heads, width = model.layers[0].num_heads, model.layers[0].attention.feature_dim
        values = model.layers[0].out.in_features // heads
        self.kv = nn.Parameter(torch.zeros(len(model.layers), 1, heads, width, values))
        self.k = nn.Parameter(torch.full((len(model.layers), 1, heads, width), -4.0))
        self.reach, self.dim = model.layers[0].short_conv.width - 1, model.dim

    def forward(self) -> ModelState:
        """Return the state of a sequence without tokens."""
        before = self.kv.new_zeros(1, self.reach, self.dim)
        sums = zip(self.kv, F.softplus(self.k), strict=True)
        layers = [(LinearState(kv, k), before) for kv, k in sums]
        return ModelState(layers, None, torch.zeros(1, dtype=torch.long))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="a subfolder for each style, and songs")
    parser.add_argument("--styles", nargs="+", required=True)
    parser.add_argument("--pieces", nargs="+", type=int, default=[1, 3, 10, 40])
    parser.add_argument("--ways", nargs="+", default=[*RATES], choices=[*RATES])
    parser.add_argument("--cache", type=Path, default=Path("outputs/style"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for style in args.styles:
        for number in args.pieces:
            for way in args.ways:
                about = {"style": style, "pieces": number, "way": way}
                done = any(about.items() <= row.items() for row in stored())
                store(args, about, [] if done else [*trained(args, style, number, way)])


def trained(args: argparse.Namespace, style: str, number: int, way: str) -> Iterator[dict]:
    """Train in one way on a number of pieces, and yield the losses at each mark."""
    torch.manual_seed(0)
    model, corpora = musicgen.load("songs-small"), {}
    for name in (style, "songs"):
        corpus = measure.corpus("midi_folder", args.folder / name)
        settings = {"val_fraction": 0.0, "test_fraction": 0.0, "length": LENGTH}
        data = measure.data_module(corpus, model.tokenizer, args.cache, **settings)
        corpora[name] = data.encoded.cache
    order = np.random.default_rng(7).permutation(len(corpora[style].names)).tolist()
    training = order[TEST + VALIDATION :][:number]
    some = {"test": order[:TEST], "validation": order[TEST:][:VALIDATION]}
    parts = {name: windows(model, corpora[style], pieces) for name, pieces in some.items()}
    if way != "state":  # without its file, the model is what it was
        parts["songs"] = windows(model, corpora["songs"], range(len(corpora["songs"].names)))
    parameters, initial = prepared(model.model, way)
    rate = RATES[way]
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    crops = TrainingWindows(corpora[style], training, model.tokenizer, LENGTH, seed=0)
    spent, steps, best = 0.0, 0, np.inf
    for mark in MARKS:
        while spent < mark:
            start = time.process_time()
            optimizer.param_groups[0]["lr"] = rate * min(1, (steps + 1) / WARMUP)
            mixture, own = -log_p(model.model, batch_of(model, crops[steps]), initial)
            optimizer.zero_grad()
            (mixture + own - own.detach()).mean().backward()  # as in musicgen's own training
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            spent, steps = spent + time.process_time() - start, steps + 1
        losses = {name: nats(model.model, each, initial) for name, each in parts.items()}
        yield {"seconds": round(spent, 1), "steps": steps, **losses}
        best = min(best, losses["validation"])
        if losses["validation"] > best + WORSE:
            return


def prepared(
    model: Transformer, way: str
) -> tuple[list[nn.Parameter], Callable[[], ModelState] | None]:
    """Return the parameters that a way trains, and what returns the initial state."""
    if way == "all":
        return [*model.parameters()], None
    model.requires_grad_(False)
    initial = InitialState(model)
    return [*initial.parameters()], initial


def batch_of(model: MusicModel, window: Any) -> Batch:
    coordinates = partial(Coordinates(model.tokenizer).of, names=model.model.coordinate_names)
    return collate([window], model.tokenizer.vocabulary.pad_id, coordinates)


def windows(model: MusicModel, cache: TokenCache, pieces: Sequence[int]) -> list[Batch]:
    """Return the beginning of each piece."""
    data = EvalWindows(cache, [*pieces], LENGTH)
    return [batch_of(model, data[i]) for i in range(len(data))]


def log_p(model: Transformer, batch: Batch, initial: Callable[[], ModelState] | None) -> Tensor:
    """Return log p of the targets of one window, with copies and without: [2, 1, L]."""
    assert model.copy_head is not None
    assert batch.positions is not None
    state = None if initial is None else initial()
    x, _ = model.hidden(batch.tokens, positions=batch.positions, state=state)
    bars, start = batch.positions[..., model.copy_column], torch.zeros(1, dtype=torch.long)
    logits, targets = model.head(x), batch.targets
    return model.copy_head(logits, x, batch.tokens, bars, start, targets=targets)[0]


@torch.no_grad()
def nats(
    model: Transformer, batches: Sequence[Batch], initial: Callable[[], ModelState] | None
) -> float:
    """Return the mean over pieces of their nats a token."""
    return statistics.mean(-log_p(model, each, initial)[0].mean().item() for each in batches)


def store(
    args: argparse.Namespace, training: dict[str, Any], rows: Sequence[dict[str, Any]]
) -> None:
    """Add the rows of a training to the results, also while other processes write them."""
    args.cache.mkdir(parents=True, exist_ok=True)
    with (args.cache / "results.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = {"rows": stored() + [training | row for row in rows]}
        measure.write_results(__file__, content)


def stored() -> list[dict[str, Any]]:
    """Return the rows of the results."""
    path = measure.RESULTS / "style.json"
    return json.loads(path.read_text())["rows"] if path.is_file() else []


if __name__ == "__main__":
    main()
