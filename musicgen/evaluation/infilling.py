"""Infilling: how much better models know true bars if they have read what follows them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from musicgen.console import track
from musicgen.errors import ParameterError
from musicgen.evaluation.measure import SUMMARY, Inputs, Measure, Row
from musicgen.evaluation.position_loss import position_losses
from musicgen.evaluation.runs import compared_models
from musicgen.evaluation.training_data import open_training_data
from musicgen.generation.model import MusicModel
from musicgen.metrics.summary import Summary
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization.base import IntArray
from musicgen.validation import check_int


@dataclass(frozen=True)
class Infilling(Measure):
    """Nats of bars in the middle of held-out pieces; nothing is sampled.

    Args:
        bars: how many are to be filled.
    """

    bars: int

    name = "infilling"
    legend = (
        "in nats a note of the true bars: known, after what precedes them alone; filled, after what"
        f" precedes and what follows them; difference: filled less known; {SUMMARY}"
    )

    def __post_init__(self) -> None:
        check_int("bars", self.bars)

    def compute(self, inputs: Inputs, out: Path) -> list[Row]:
        compared = compared_models(inputs, "trained")
        for each in compared:
            each.model.tokenizer.check_gaps(keep=False)
        data = open_training_data(compared[0].model, inputs.root)
        indices = data.split(inputs.split)[: inputs.max_pieces]
        rows = []
        for each in compared:
            found = []
            for i in track(indices, each.name):
                noise = NoiseKey((inputs.seed, RandomStream.EVALUATION, i))
                length = data.cache.bar_lengths[i]
                pair = middle_losses(each.model, data.cache[i], length, self.bars, noise)
                found += [pair] if pair is not None else []
            if not found:
                expected = "expected fewer: no held-out piece has bars before and after so many"
                raise ParameterError("bars", self.bars, expected)
            known, filled = np.array(found).T
            summary = asdict(Summary.of(filled - known, seed=inputs.seed))
            means = {"known": float(known.mean()), "filled": float(filled.mean())}
            means["difference"] = summary["mean"]
            chosen = {name: summary[name] for name in ("n", "low", "high")}
            rows.append({"run": each.run, **means, **chosen})
        return rows


def middle_losses(
    model: MusicModel, tokens: IntArray, bar_length: int, num_bars: int, noise: NoiseKey
) -> tuple[float, float] | None:
    """Return the nats a note of the bars in the middle of a piece [L], known and filled.

    None: there are no bars before and after them.
    """
    tokenizer = model.tokenizer
    starts = tokenizer.bar_starts(tokens, bar_length)
    first = (len(starts) - num_bars) // 2
    if first < 1 or first + num_bars >= len(starts):
        return None
    start, end = int(starts[first]), int(starts[first + num_bars])
    begin, stop = np.searchsorted(tokenizer.times(tokens), (start, end))
    middle = tokens[begin:stop]
    every = [True] * len(tokenizer.decode(tokenizer.start_tokens()).tracks)
    gap = tokenizer.gap(tokens, start, end, every, model.training_length + 1)
    nats = []
    for before in (tokens[:begin], gap.tokens):
        piece = np.concatenate([before, middle])
        positions = model.positions(piece, bar_length)
        losses = position_losses(model.model, piece, noise, positions=positions, num_draws=1)
        nats.append(float(losses[0, -len(middle) :].sum()) / max(1, tokenizer.num_notes(middle)))
    return nats[0], nats[1]
