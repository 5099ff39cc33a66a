"""Infilling: how much better models know true bars if they have read what follows them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from musicgen.console import track
from musicgen.errors import ParameterError
from musicgen.evaluation.measure import SUMMARY, Inputs, Measure, Row
from musicgen.evaluation.position_loss import position_losses
from musicgen.evaluation.runs import compared_models
from musicgen.evaluation.training_data import open_training_data
from musicgen.generation.model import MusicModel
from musicgen.generation.prompts import Prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import NUM_CANDIDATES, Sampler, gap_context
from musicgen.generation.sampler import Row as Drawn
from musicgen.metrics.summary import Summary
from musicgen.midi import Score
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization.base import IntArray
from musicgen.tokenization.quantization import EncodingSummary
from musicgen.validation import check_int


@dataclass(frozen=True)
class Infilling(Measure):
    """Nats of bars in the middle of held-out pieces.

    Args:
        bars: how many are to be filled.
    """

    bars: int

    name = "infilling"
    legend = (
        "in nats a note of the true bars: known, after what precedes them alone; filled, after what"
        " precedes and what follows them, an upper bound where that draws one of some drafts;"
        f" difference: filled less known; {SUMMARY}"
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

    Where candidates are weighed by what follows, the bars are beside other candidates, which the
    model draws. Their probability is then what it was, times the number of candidates, times their
    share of the weights; as one draw of the others stands for all, the nats are an upper bound.

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
    number, nats = len(gap.following), []
    for before in (tokens[:begin], gap.tokens):
        piece = np.concatenate([before, middle, gap.following])
        positions = model.positions(piece, bar_length)
        losses = position_losses(model.model, piece, noise, positions=positions, num_draws=1)[0]
        nats.append(float(losses[len(before) - 1 :][: len(middle)].sum()))
    if number:
        prompt = Prompt("", gap.tokens, start, 0, bar_length, Score(1), Score(1), EncodingSummary())
        context, request = gap_context(prompt, gap), GenerationRequest(fill=1, engine="eager")
        rows = [Drawn(context, noise.fold(i)) for i in range(1, NUM_CANDIDATES)]
        for _ in Sampler(model.model, tokenizer, request).steps(rows):
            pass
        others = [row.likelihood_of_following for row in rows]
        weights = torch.tensor([-losses[-number:].sum(), *others]).log_softmax(0)
        nats[1] -= float(weights[0]) + math.log(NUM_CANDIDATES)
    num_notes = max(1, tokenizer.num_notes(middle))
    return nats[0] / num_notes, nats[1] / num_notes
