"""Infilling: how much better models know true bars if they have read what follows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from musicgen.console import track
from musicgen.errors import ParameterError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.position_loss import position_losses
from musicgen.evaluation.runs import compared_models
from musicgen.evaluation.training_data import open_training_data
from musicgen.generation.filling import FOLLOWING_BEATS, NUM_CANDIDATES, gap_context
from musicgen.generation.model import MusicModel
from musicgen.generation.prompts import Prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.rewriting import without_notes
from musicgen.generation.rows import Row as Drawn
from musicgen.generation.sampler import Sampler
from musicgen.metrics.summary import Summary
from musicgen.midi import Score
from musicgen.random import NoiseKey, RandomStream
from musicgen.report.tables import TableRow
from musicgen.tokenization.base import TICKS_PER_BEAT, IntArray, Tokenizer
from musicgen.tokenization.quantization import EncodingSummary
from musicgen.validation import check_int


def infilling(inputs: Inputs, out: Path, *, bars: int) -> list[TableRow]:
    """Nats of bars in the middle of held-out pieces.

    Args:
        bars: how many are to be filled.
    """
    check_int("bars", bars)
    compared = compared_models(inputs, "trained")
    data = open_training_data(compared[0].model, inputs.root)
    indices = data.split(inputs.split)[: inputs.max_pieces]
    rows = []
    for each in compared:
        found = []
        for i in track(indices, each.name):
            noise = NoiseKey((inputs.seed, RandomStream.EVALUATION, i))
            length = data.cache.bar_lengths[i]
            pair = middle_losses(each.model, data.cache[i], length, bars, noise)
            found += [pair] if pair is not None else []
        if not found:
            expected = "expected fewer: no held-out piece has bars before and after so many"
            raise ParameterError("bars", bars, expected)
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

    No note sounds across their edges. Filled, they are beside other candidates, which the model
    draws. Their probability is then what it was, times the number of candidates, times their share
    of the weights; as one draw of the others stands for all, the nats are an upper bound.

    None: there are no bars before and after them, or they have several metres.
    """
    tokenizer = model.tokenizer
    starts = tokenizer.bar_starts(tokens, bar_length)
    first = (len(starts) - num_bars) // 2
    if first < 1 or first + num_bars >= len(starts):
        return None
    start, end = int(starts[first]), int(starts[first + num_bars])
    step = TICKS_PER_BEAT // tokenizer.steps_per_beat
    edges, gap = [(each * step, each * step) for each in (start, end)], [(start * step, end * step)]
    tokens = _without(tokenizer, tokens, edges)
    until = end + FOLLOWING_BEATS * tokenizer.steps_per_beat
    begin, stop, last = np.searchsorted(tokenizer.times(tokens), (start, end, until))
    read = tokenizer.until_end(tokens[:last])
    positions = model.positions(read, bar_length)
    losses = position_losses(model.model, read, noise, positions=positions, num_draws=1)[0]
    known = float(losses[begin - 1 : stop - 1].sum())

    empty = _without(tokenizer, tokens, gap)
    prompt = Prompt("", empty, start, 0, bar_length, Score(1), Score(1), EncodingSummary())
    written = [True] * len(tokenizer.decode(tokenizer.start_tokens()).tracks)
    whole, *others = tokenizer.gaps(empty, start, end, written, bar_length)
    if others:
        return None
    context = gap_context(tokenizer, prompt, written, empty, whole, whole.tokens, start)
    rows = [Drawn(context, noise.fold(i)) for i in range(1, NUM_CANDIDATES)]
    request = GenerationRequest(fill=1, engine="eager")
    for _ in Sampler(model.model, tokenizer, request).steps(rows):
        pass
    weights = [-float(losses[stop - 1 :].sum()), *(row.log_weight for row in rows)]
    share = float(torch.tensor(weights).log_softmax(0)[0]) + math.log(NUM_CANDIDATES)
    num_notes = max(1, tokenizer.num_notes(tokens[begin:stop]))
    return known / num_notes, (known - share) / num_notes


def _without(tokenizer: Tokenizer, tokens: IntArray, spans: Sequence[tuple[int, int]]) -> IntArray:
    """Return the encoding of a piece without the notes in some spans of ticks."""
    score = tokenizer.decode(tokens)
    tracks = [without_notes(track, spans) for track in score.tracks]
    return tokenizer.encode(replace(score, tracks=tracks))
