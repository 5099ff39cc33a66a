"""Tokens per second of CPU time of the training loader, against random crops at any token.

Ours start at a bar, are augmented and re-encoded if necessary, and are a function of the seed. The
other side cuts the same cache at random, which is an upper bound for any loader.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import measure
from musicgen.batches import Batch
from musicgen.data.corpora import ComposedCorpus
from musicgen.data.loading import MusicDataModule, collate
from musicgen.tokenization import REMI, Groove2Groove

TOKENIZERS = {"remi": REMI, "groove2groove": Groove2Groove}
SIDES = [f"{name} {side}" for name in TOKENIZERS for side in ("ours", "plain")]


def plain_crops(data: MusicDataModule) -> Iterator[Batch]:
    """Yield batches of the training tokens, cut anywhere."""
    rng = np.random.default_rng(0)
    tokens = np.concatenate([data.encoded.cache[piece] for piece in data.encoded.split("train")])
    while True:
        starts = rng.integers(0, len(tokens) - data.length, data.batch_size)
        windows = [tokens[start : start + data.length + 1] for start in starts.tolist()]
        yield collate(windows, data.tokenizer.vocabulary.pad_id)


def run(side: str, length: int, batch: int, pieces: int, batches: int) -> dict[str, float]:
    """Return the tokens per second of one core."""
    torch.set_num_threads(1)
    name, loader_side = side.split()
    with tempfile.TemporaryDirectory() as folder:
        kind: Any = {"remi": "pop", "groove2groove": "groove"}[name]
        data = measure.data_module(
            ComposedCorpus(folder, kind=kind, num_pieces=pieces, corpus_seed=0),
            TOKENIZERS[name](),
            Path(folder) / "cache",
            length=length,
            batch_size=batch,
            batches_per_epoch=2 * batches,
        )
        loader = iter(data.train_dataloader() if loader_side == "ours" else plain_crops(data))
        for _ in islice(loader, batches // 4):  # warm up: the files are in memory afterwards
            pass
        began = time.process_time()
        tokens = sum(int(batch.num_targets) for batch in islice(loader, batches))
        return {"rate": tokens / (time.process_time() - began)}


def main() -> None:
    args = measure.arguments(__doc__, length=2048, batch=8, pieces=40, batches=200, rounds=2)
    if args.side:
        options = {k: v for k, v in vars(args).items() if k not in ("side", "rounds", "device")}
        print(json.dumps(run(args.side, **options)))
        return
    found = measure.sides(__file__, SIDES, args, args.rounds)
    rows = []
    for name in TOKENIZERS:
        ours, plain = found[f"{name} ours"]["rate"], found[f"{name} plain"]["rate"]
        rows.append(measure.row(f"{name}: a core / a million", ours, 1e6, "tokens/s", "≥ 1"))
        rows.append(measure.row(f"{name}: ours / crops at any token", ours, plain, "tokens/s", "—"))
    measure.save_results(__file__, rows, args)


if __name__ == "__main__":
    main()
