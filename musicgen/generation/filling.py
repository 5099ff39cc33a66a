"""Gaps of pieces, filled with drafts of which one is drawn by the notes around it.

A model that has not learned another order of a piece continues what precedes a gap. A draft is
weighed by how likely it makes the notes that are kept in the gap, and those that follow it:
sampling-importance resampling (Rubin 1988), for each part of the gap in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence

import numpy as np
import torch

from musicgen.generation.prompts import Prompt
from musicgen.generation.rewriting import RewrittenPrompt
from musicgen.generation.rows import Context, Draft, Row
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization.base import IntArray, Tokenizer
from musicgen.tokenization.gap import Gap

NUM_CANDIDATES = 16
FOLLOWING_BEATS = 4
"""Of what follows a gap, by which drafts are weighed."""


def fill_gaps(tokenizer: Tokenizer, draft: Draft, seed: int) -> Generator[list[Row], None, Draft]:
    """Yield candidates for each part of a draft's gaps, to be sampled; return the written piece."""
    prompt, piece, number = draft.prompt, draft.tokens, 0
    assert isinstance(prompt, RewrittenPrompt)

    def key(candidate: int) -> NoiseKey:
        return NoiseKey((seed, RandomStream.SAMPLING, draft.sample, candidate, number))

    for start, end in prompt.gaps:
        tokens = piece[:0]
        parts = tokenizer.gaps(piece, start, end, prompt.written, prompt.bar_length)
        context: Context | None = None
        for part in parts:
            tokens = np.concatenate([tokens, part.tokens])
            last, size = part is parts[-1], 1
            if part.num_kept or (last and tokenizer.end_time(piece) > end):
                size = NUM_CANDIDATES if part.given is None else 1
            earlier = context
            first = start if last else None
            context = gap_context(tokenizer, prompt, prompt.written, piece, part, tokens, first)
            context.earlier = earlier if earlier and len(tokens) > len(earlier.tokens) else None
            rows = [Row(context, key(i)) for i in range(size)]
            yield rows
            context.earlier = None  # it has been read
            weights = torch.tensor([row.log_weight for row in rows]).double().softmax(0)
            row = rows[int(weights.multinomial(1, generator=key(NUM_CANDIDATES).generator()))]
            tokens = row.all_tokens if row.filled is None else row.filled
            number += 1
        piece = tokenizer.close_gap(piece, start, end, prompt.written, tokens)
    return draft._replace(tokens=piece)


def gap_context(
    tokenizer: Tokenizer,
    prompt: Prompt,
    written: Sequence[bool],
    piece: IntArray,
    gap: Gap,
    tokens: IntArray,
    first: int | None,
) -> Context:
    """Return a part of a gap as a context.

    Args:
        piece: the encoding of the piece with the gap. [L]
        tokens: ids up to the part. [M]
        first: musical time at which the gap begins that the part ends; None: others follow.
    """

    def follow(filled: IntArray) -> IntArray:
        assert first is not None
        closed = tokenizer.close_gap(piece, first, gap.end, written, filled)
        closed = tokenizer.until_end(closed)
        until = gap.end + FOLLOWING_BEATS * tokenizer.steps_per_beat
        return closed[len(filled) - 1 : np.searchsorted(tokenizer.times(closed), until)]

    if gap.given is not None:
        return Context(prompt, tokens, 0, None, None, len(gap.given), gap)
    follows = None if first is None else follow
    return Context(prompt, tokens, gap.start, gap.end, None, sys.maxsize, gap, follows)
