"""A training step of a trained model, with denormal numbers (below 1e-38) and with zeros instead.

    python -m benchmarks.denormals --model RUN

The commands set zeros: attention weights of distant tokens are denormal once a model is trained.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks import measure
from benchmarks.training_step import step
from musicgen import load
from musicgen.evaluation.training_data import open_training_data
from musicgen.models import Transformer


def main() -> None:
    args = measure.arguments(__doc__, model="latest", length=1024, batch=2, rounds=6)
    model = load(args.model)
    corpus = open_training_data(model)
    pieces = [corpus.cache[i] for i in corpus.split("val")]
    pieces = [piece[: args.length] for piece in pieces if len(piece) >= args.length]
    tokens = torch.stack([torch.from_numpy(piece.copy()) for piece in pieces[: args.batch]])
    model.model.train()
    runs = {
        name: partial(run, model.model, tokens, flush)
        for name, flush in (("denormal", False), ("zero", True))
    }
    times = measure.interleaved(runs, args.rounds, clock=measure.cpu_clock(args.device))
    what = f"{tokens.shape[0]} × {args.length} tokens: denormal / zero"
    rows = [measure.compare(what, times["denormal"], times["zero"], "CPU seconds a step", "—")]
    measure.save_results(__file__, rows, args)


def run(model: Transformer, tokens: torch.Tensor, flush: bool) -> None:
    torch.set_flush_denormal(flush)
    step(model, tokens, 0)


if __name__ == "__main__":
    main()
