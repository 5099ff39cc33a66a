"""How full training windows are, and how often each position is trained.

Counts the targets of training batches by position, in eighths of the window, over pieces composed
by the built-in composer or those of a POP909 folder (`--root`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks import measure
from musicgen.batches import IGNORED
from musicgen.data.corpora import POP909, ComposedCorpus, Corpus
from musicgen.tokenization import REMI

PARTS = 8


def main() -> None:
    args = measure.arguments(__doc__, length=2048, pieces=40, windows=4000, root="", cache="")
    with tempfile.TemporaryDirectory() as folder:
        corpus: Corpus = ComposedCorpus(folder, kind="pop", num_pieces=args.pieces, corpus_seed=0)
        if args.root:
            corpus = POP909(args.root, download=False, exclude=None)
        data = measure.data_module(
            corpus,
            REMI(),
            Path(args.cache or folder) / "cache",
            length=args.length,
            batch_size=8,
            batches_per_epoch=args.windows // 8,
            num_workers=0,
        )
        filled, ended = [], 0
        end = data.tokenizer.vocabulary.id("EOS")
        for batch in data.train_dataloader():
            filled += (batch.targets != IGNORED).sum(1).tolist()
            ended += int((batch.targets == end).sum())
    count, length = len(filled), args.length
    targets = np.array(filled)
    trained = (targets[:, None] > np.arange(length)).sum(0)  # windows that reach each position
    parts = [part.sum() for part in np.array_split(trained, PARTS)]
    shares = {
        "less than half full": (targets < length / 2).sum(),
        "less than 0.9 full": (targets < 0.9 * length).sum(),
        "not full": (targets < length).sum(),
        "with the end of the piece": ended,
    }
    rows = [measure.row(f"windows {k}", int(n), count, "windows", "—") for k, n in shares.items()]
    for i, part in enumerate(parts, 1):
        what = f"targets in eighth {i} of the window / in the first"
        rows.append(measure.row(what, int(part), int(parts[0]), "targets", "1"))
    measure.save_results(__file__, rows, args)


if __name__ == "__main__":
    main()
