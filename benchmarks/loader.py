"""Measure the tokens per second of CPU time of the training loader; the target is a million.

Windows start at a bar, are augmented, and are encoded again where that is necessary.
"""

import json
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure
from musicgen.data.corpora import ComposedCorpus
from musicgen.tokenization import REMI, Groove2Groove

TOKENIZERS = {"remi": REMI, "groove2groove": Groove2Groove}


def run(side: str, length: int, batch: int, pieces: int, batches: int) -> dict[str, float]:
    """Return the tokens per second of one core."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        kind: Any = {"remi": "pop", "groove2groove": "groove"}[side]
        data = measure.data_module(
            ComposedCorpus(folder, kind=kind, num_pieces=pieces, corpus_seed=0),
            TOKENIZERS[side](),
            Path(folder) / "cache",
            length=length,
            batch_size=batch,
            batches_per_epoch=2 * batches,
        )
        loader = iter(data.train_dataloader())
        for _ in islice(loader, batches // 4):  # warm up: the files are in memory afterwards
            pass
        began = time.process_time()
        tokens = sum(int(batch.num_targets) for batch in islice(loader, batches))
        return {"rate": tokens / (time.process_time() - began)}


def main() -> None:
    args = measure.arguments(__doc__, length=2048, batch=8, pieces=40, batches=200, rounds=2)
    if args.side:
        options = {k: v for k, v in vars(args).items() if k not in ("side", "rounds")}
        print(json.dumps(run(args.side, **options)))
        return
    found = measure.sides(__file__, list(TOKENIZERS), args, args.rounds)
    rows = [
        measure.row(f"{name}: a core / a million", side["rate"], 1e6, "tokens/s", "≥ 1")
        for name, side in found.items()
    ]
    measure.save_results(__file__, rows)


if __name__ == "__main__":
    main()
