"""Decoding of prompts as a request asks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from musicgen.generation.cadence import Tonic, find_tonic, restfulness
from musicgen.generation.decoding import (
    FinishedRow,
    Step,
    TokenPrompt,
    finished_rows,
    generate_tokens,
)
from musicgen.generation.engines import make_engine
from musicgen.generation.prompts import Prompt
from musicgen.generation.request import ContinuationRequest
from musicgen.generation.selection import Selection, best
from musicgen.models import Transformer
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization.base import TICKS_PER_BEAT, Tokenizer

NUM_ENDINGS = 16
"""Candidates for the last bar of a piece that closes."""


class Draft(NamedTuple):
    """A continuation so far: its tokens [L], the prompt's included, and what chose among several.

    A sample begins as a draft with the prompt's own array.
    """

    prompt: Prompt
    sample: int
    tokens: NDArray[np.int64]
    selections: tuple[Selection, ...] = ()


class Decoder:
    """A model that decodes as a request asks.

    Args:
        on_step: called after each step with the number of rows that got a token.
        warn: called with one line if a requested compilation is not possible.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        request: ContinuationRequest,
        *,
        on_step: Callable[[int], None] = lambda num_tokens: None,
        warn: Callable[[str], object] = warnings.warn,
    ) -> None:
        self.tokenizer, self.request, self.on_step = tokenizer, request, on_step
        self.max_length = model.position.max_length
        self.coordinates = model.coordinate_names
        noise = NoiseKey((request.seed,))
        self.engine = make_engine(model, noise, compile=request.compile, warn=warn)

    @property
    def closes(self) -> bool:
        return self.request.ending == "close"

    def check(self, prompt: Prompt) -> None:
        """Refuse a prompt that is too long, with a `UserError`."""
        self.request.length.limit(prompt, self.max_length)

    def token_prompt(self, draft: Draft, stage: int = 0) -> TokenPrompt:
        """Return the tokens to continue, and how far: to the end of a stage, see `best_of_bars`."""
        start, end, silent_by = self._span(draft.prompt, stage)
        left = self._num_left(draft)
        return self._token_prompt(draft.prompt, draft.tokens, start, end, silent_by, left)

    def is_complete(self, draft: Draft, stage: int) -> bool:
        """Return whether a draft is complete after a stage, but for the bar that closes it."""
        ended = draft.tokens[-1] == self.tokenizer.vocabulary.id("EOS")
        if self.request.best_of_bars is None or ended or self._num_left(draft) < 1:
            return True
        start, end, _ = self._span(draft.prompt, stage + 1)
        return end is not None and end <= start

    def _span(self, prompt: Prompt, stage: int) -> tuple[int, int | None, int | None]:
        """Return the musical times at which a stage begins and ends, and `silent_by`.

        Without `best_of_bars` the only stage is the continuation, to the last bar if that closes.
        """
        start, end, silent_by = prompt.end_time, self.request.length.end_time(prompt), None
        if self.closes:
            assert end is not None
            silent_by, end = end, end - prompt.bar_length
        if self.request.best_of_bars is not None:
            length = self.request.best_of_bars * prompt.bar_length
            start += stage * length
            end = start + length if end is None else min(end, start + length)
        return start, end, silent_by

    def _num_left(self, draft: Draft) -> int:
        """Return how many tokens may still be added."""
        num_new = len(draft.tokens) - len(draft.prompt.tokens)
        return self.request.length.limit(draft.prompt, self.max_length) - num_new

    def key(self, sample: int, candidate: int = 0, stage: int = 0) -> NoiseKey:
        """Return the key of the random numbers of a sample's candidate in a stage."""
        words: tuple[int, ...] = (sample, candidate, stage)
        while len(words) > 1 and words[-1] == 0:  # the first draw is that of a sample alone
            words = words[:-1]
        return NoiseKey((self.request.seed, RandomStream.SAMPLING, *words))

    def steps(
        self, prompts: Sequence[TokenPrompt], rows: Sequence[tuple[int, NoiseKey]]
    ) -> Iterator[Step]:
        """Yield the steps of rows: the number of each one's prompt, and the key of its draws."""
        return self._generate(prompts, rows, log_probs=self.request.best_of > 1)

    def rows(
        self, prompts: Sequence[TokenPrompt], rows: Sequence[tuple[int, NoiseKey]]
    ) -> Iterator[FinishedRow]:
        """Yield the same rows, each as soon as it is finished."""
        return self._finished(self.steps(prompts, rows))

    def stream(self, prompt: Prompt, sample: int = 0) -> Iterator[tuple[int, int]]:
        """Yield each new token of a sample with its musical time; a closing bar as a whole."""
        tokens = prompt.tokens.tolist()
        start = self.token_prompt(Draft(prompt, sample, prompt.tokens))
        for step in self.steps([start], [(0, self.key(sample))]):
            token = int(step.tokens[0])
            if token == self.tokenizer.vocabulary.pad_id:
                break
            tokens.append(token)
            yield token, int(step.times[0])
        if self.closes:
            (closed,) = self.endings([Draft(prompt, sample, np.array(tokens))])
            times = self.tokenizer.times(closed)
            yield from zip(
                closed[len(tokens) :].tolist(), times[len(tokens) :].tolist(), strict=True
            )

    def endings(self, pieces: Sequence[Draft]) -> list[NDArray[np.int64]]:
        """Return the tokens of pieces with a last bar that closes them: [L] each, with EOS.

        Several candidates for the bar are sampled in which the model may end the piece, and must
        by the end of the bar: no note sounds longer, and a bar line counts as the end. Two measures
        choose among them, see `best`: how sure the model is, by itself, that the piece ends after
        the candidate, which approximates sampling conditioned on the end; and how much its bar
        rests on the tonic of the prompt (of the piece, without a prompt), see `restfulness`, as
        small models know endings better than keys. A piece that has ended already stays as it is,
        and so does one that the model's positional encoding or `max_new_tokens` leaves no room for.
        """
        eos, closed = self.tokenizer.vocabulary.id("EOS"), [piece.tokens for piece in pieces]
        open_rows, prompts = [], []
        for i, piece in enumerate(pieces):
            prompt, tokens = piece.prompt, piece.tokens
            end = self.request.length.end_time(prompt)
            assert end is not None
            limit, most = self.request.length.max_tokens_per_bar, self.request.length.max_new_tokens
            if self.max_length is not None:
                limit = min(limit, self.max_length - len(tokens))
            if most is not None:
                limit = min(limit, most + len(prompt.tokens) - len(tokens))
            if tokens[-1] != eos and limit > 0:
                start = end - prompt.bar_length
                prompts.append(self._token_prompt(prompt, tokens, start, end, end, limit))
                open_rows.append((i, piece.sample))
        size = max(1, self.request.batch_size // NUM_ENDINGS)
        for first in range(0, len(open_rows), size):
            group = open_rows[first : first + size]
            words = self.request.seed, RandomStream.ENDING
            rows = [
                (at, NoiseKey((*words, sample, candidate)))
                for at, (_, sample) in enumerate(group)
                for candidate in range(NUM_ENDINGS)
            ]
            steps = self._generate(prompts[first : first + size], rows, close=True, log_probs=True)
            found = sorted(self._finished(steps), key=lambda row: row.row)
            for at, (i, _) in enumerate(group):
                candidates = found[at * NUM_ENDINGS : (at + 1) * NUM_ENDINGS]
                candidates = [row for row in candidates if row.tokens[-1] == eos] or candidates[:1]
                prompt, tokens = pieces[i].prompt, pieces[i].tokens
                tonic = find_tonic(prompt.score) or find_tonic(self.tokenizer.decode(tokens))
                complete = [np.append(tokens, row.tokens) for row in candidates]
                rest = [self._rest(prompt, each, tonic) if tonic else 0.0 for each in complete]
                sure = [row.log_probs[-1] for row in candidates]
                closed[i] = complete[best(list(zip(sure, rest, strict=True)))]
        return closed

    def _rest(self, prompt: Prompt, tokens: NDArray[np.int64], tonic: Tonic) -> float:
        """Return the restfulness of a piece's last bar."""
        end = self.request.length.end_time(prompt)
        assert end is not None
        step = TICKS_PER_BEAT // self.tokenizer.steps_per_beat
        bar = self.tokenizer.decode(tokens).clip((end - prompt.bar_length) * step, end * step)
        return restfulness(bar, tonic, prompt.bar_length * step)

    def _token_prompt(
        self,
        prompt: Prompt,
        tokens: NDArray[np.int64],
        start_time: int,
        end_time: int | None,
        silent_by: int | None,
        limit: int,
    ) -> TokenPrompt:
        bar = prompt.bar_length
        return TokenPrompt(
            torch.from_numpy(tokens),
            torch.from_numpy(self.tokenizer.coordinates(tokens, self.coordinates, bar_length=bar)),
            max_new_tokens=limit,
            start_time=start_time,
            end_time=end_time,
            silent_by=silent_by,
            bar_length=bar,
            times=torch.from_numpy(self.tokenizer.times(tokens)),
            num_given=len(prompt.tokens),
        )

    def _generate(
        self,
        prompts: Sequence[TokenPrompt],
        rows: Sequence[tuple[int, NoiseKey]],
        *,
        close: bool = False,
        log_probs: bool = False,
    ) -> Iterator[Step]:
        return generate_tokens(
            self.engine,
            self.tokenizer.grammar(),
            prompts,
            rows,
            self.request.sampling,
            allow_end=self.request.allow_end,
            hold_tempo=self.request.hold_tempo,
            hold_metre=self.request.hold_metre,
            next_positions=partial(self.tokenizer.next_coordinates, self.coordinates),
            close=close,
            log_probs=log_probs,
        )

    def _finished(self, steps: Iterator[Step]) -> Iterator[FinishedRow]:
        return finished_rows(steps, self.tokenizer.vocabulary.pad_id, self.on_step)
