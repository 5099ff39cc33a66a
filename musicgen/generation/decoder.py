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
from musicgen.generation.selection import best
from musicgen.models import Transformer
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization.base import TICKS_PER_BEAT, Tokenizer

NUM_ENDINGS = 16
"""Candidates for the last bar of a piece that closes."""


class OpenPiece(NamedTuple):
    """The tokens [L] of a piece, prompt included, up to its last bar."""

    prompt: Prompt
    sample: int
    tokens: NDArray[np.int64]


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

    def token_prompt(
        self, prompt: Prompt, tokens: NDArray[np.int64] | None = None, stage: int = 0
    ) -> TokenPrompt:
        """Return the tokens to continue, to the last bar if that closes, else to the end.

        Args:
            tokens: [L] ids of the piece so far; None: the prompt's.
            stage: number of the next of the stages of `best_of_bars`, to whose end it goes then.
        """
        start, end, silent_by = prompt.end_time, self.request.length.end_time(prompt), None
        if self.closes:
            assert end is not None
            silent_by, end = end, end - prompt.bar_length
        if self.request.best_of_bars is not None:
            length = self.request.best_of_bars * prompt.bar_length
            start += stage * length
            end = start + length if end is None else min(end, start + length)
        limit = self.request.length.limit(prompt, self.max_length)
        if tokens is None:
            tokens = prompt.tokens
        limit -= len(tokens) - len(prompt.tokens)
        return self._token_prompt(prompt, tokens, start, end, silent_by, limit)

    def ends(self, prompt: Prompt, tokens: NDArray[np.int64], stage: int) -> bool:
        """Return whether a piece is complete after a stage, but for the bar that closes it."""
        if self.request.best_of_bars is None or tokens[-1] == self.tokenizer.vocabulary.id("EOS"):
            return True
        following = self.token_prompt(prompt, tokens, stage + 1)
        over = following.end_time is not None and following.end_time <= following.start_time
        return over or following.max_new_tokens < 1

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
        for step in self.steps([self.token_prompt(prompt)], [(0, self.key(sample))]):
            token = int(step.tokens[0])
            if token == self.tokenizer.vocabulary.pad_id:
                break
            tokens.append(token)
            yield token, int(step.times[0])
        if self.closes:
            (closed,) = self.endings([OpenPiece(prompt, sample, np.array(tokens))])
            times = self.tokenizer.times(closed)
            yield from zip(
                closed[len(tokens) :].tolist(), times[len(tokens) :].tolist(), strict=True
            )

    def endings(self, pieces: Sequence[OpenPiece]) -> list[NDArray[np.int64]]:
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
