"""Sampling of continuations: batches of rows, one token per row and step."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from musicgen.generation.continuation import Continuation
from musicgen.generation.engines import make_engine
from musicgen.generation.form import lag_biases
from musicgen.generation.prompts import Prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampling import sample
from musicgen.midi import TICKS_PER_BEAT
from musicgen.models import ModelState, Transformer
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.grammar import NEVER, Grammar, GrammarState
from musicgen.tokenization.transposition import Transposition


@dataclass(eq=False)
class Row:
    """A continuation that is being sampled.

    Attributes:
        limit: how many tokens may be added.
        numbers: uniform in [0, 1), one for each token.
        end: musical time at which it ends, without the token that reaches it; None: at the limit,
            or where the grammar ends it.
        tokens: the new ids.
    """

    prompt: Prompt
    sample: int
    limit: int
    numbers: Iterator[float]
    end: int | None = None
    tokens: list[int] = field(default_factory=list)

    def add(self, token: int, time: int, finished: bool) -> bool:
        """Add a token that leads to a musical time; return whether the row has ended."""
        if self.end is not None and time >= self.end:
            return True
        self.tokens.append(token)
        return finished or len(self.tokens) >= self.limit


class Sampler:
    """Continues prompts with a model as a request asks.

    Args:
        model: causal, in evaluation mode.
        on_step: called after each step with the number of its rows.
        warn: called with one line if a faster engine fails, see `make_engine`.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        request: GenerationRequest,
        *,
        on_step: Callable[[int], None] = lambda num_tokens: None,
        warn: Callable[[str], object] = warnings.warn,
    ) -> None:
        self.model, self.tokenizer, self.request = model, tokenizer, request
        self.on_step = on_step
        self.engine = make_engine(
            model, NoiseKey((request.seed,)), engine=request.engine, warn=warn
        )
        biases = lag_biases(model, request)
        self._lag_biases = None if biases is None else biases.to(self.engine.device)
        self._sampling = request.sampling
        if model.copy_head is not None and request.sampling.temperature > 0:
            self._sampling = replace(request.sampling, temperature=1.0)  # see `prefill`

    def continuations(self, prompts: Sequence[Prompt]) -> Iterator[Continuation]:
        """Yield `num_samples` continuations of each prompt, each as soon as it is finished.

        Raises:
            UserError: a prompt is not grammatical, or is too long for the request or the model.
        """
        request = self.request
        rows = [self.row(*each) for each in product(prompts, range(request.num_samples))]
        for first in range(0, len(rows), request.batch_size):
            for ended in self.steps(rows[first : first + request.batch_size]):
                for row in ended:
                    prompt = row.prompt
                    tokens = np.append(prompt.tokens, np.array(row.tokens, dtype=np.int64))
                    end = int(self.tokenizer.times(tokens).max()) + 1
                    end = min(request.end_time(prompt) or end, end)
                    bars = -(-(end - prompt.end_time) // prompt.bar_length)
                    yield Continuation(prompt, row.sample, tokens, prompt.decode(tokens), bars)

    def row(self, prompt: Prompt, number: int) -> Row:
        """Return the row of a prompt's sample of this number, as `steps` takes it."""
        limit = self.request.num_new_tokens(prompt, self.model)
        numbers = _uniform_numbers(NoiseKey((self.request.seed, RandomStream.SAMPLING, number)))
        end = None if self.request.ending == "close" else self.request.end_time(prompt)
        return Row(prompt, number, limit, numbers, end)

    @torch.inference_mode()
    def steps(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Draw one more token for each row a step; yield the rows that have ended with it."""
        names, next_coordinates = self.model.coordinate_names, Coordinates(self.tokenizer).next
        # Only the model is on the device: grammar and sampling are small and in fp64.
        grammar = self.tokenizer.grammar()
        prompts = sorted(dict.fromkeys(row.prompt for row in rows), key=lambda p: len(p.tokens))
        of_row = torch.tensor([prompts.index(row.prompt) for row in rows])
        state = self._grammar_state(grammar, prompts).select(of_row)
        guidance = self._sampling.guidance
        # With guidance the model has as many rows again, which hear what is given a tritone away.
        sides = 1 + (guidance != 1 and any(len(prompt.given) for prompt in prompts))
        away = torch.from_numpy(Transposition(self.tokenizer).tritone())
        heard_by = prompts if sides == 1 else [*prompts, *map(self._tritone_away, prompts)]
        of_sides = torch.cat([of_row + side * len(prompts) for side in range(sides)])
        logits, model_state, positions = self.prefill(heard_by, of_sides)
        running, bar_lengths = [*rows], torch.tensor([x.prompt.bar_length for x in rows] * sides)
        while True:
            allowed = grammar.allowed(state)
            uniform = torch.tensor([next(row.numbers) for row in running], dtype=torch.float64)
            if sides == 2:
                own, other = logits.chunk(2)
                logits = other + guidance * (own - other)
            token = heard = sample(logits, self._sampling, allowed=allowed, uniform=uniform)
            if sides == 2:
                is_given = allowed.sum(dim=1) == 1
                heard = torch.cat([token, torch.where(is_given, away[token], token)])

            state = grammar.advance(state, token)
            new = zip(token.tolist(), state.time.tolist(), state.finished.tolist(), strict=True)
            over = [row.add(*each) for row, each in zip(running, new, strict=True)]
            self.on_step(len(running))
            yield [row for row, has_ended in zip(running, over, strict=True) if has_ended]

            if all(over):
                return
            if any(over):  # compute no further tokens of rows that have ended
                kept = (~torch.tensor(over)).nonzero()[:, 0]
                running = [running[i] for i in kept.tolist()]
                state = state.select(kept)
                kept = (~torch.tensor(over * sides)).nonzero()[:, 0]
                heard, positions, bar_lengths = heard[kept], positions[kept], bar_lengths[kept]
                model_state = model_state.select(kept.to(self.engine.device))

            where = np.tile(state.positions, (sides, 1))
            positions = next_coordinates(names, positions, heard, where, bar_lengths)
            logits, model_state = self._step(heard, positions, model_state)

    def _tritone_away(self, prompt: Prompt) -> Prompt:
        """Return a prompt whose last bar, which is to be written, is a tritone away."""
        is_new = self.tokenizer.times(prompt.tokens) >= prompt.end_time
        away = Transposition(self.tokenizer).tritone()[prompt.tokens]
        return replace(prompt, tokens=np.where(is_new, away, prompt.tokens))

    def _grammar_state(self, grammar: Grammar[Any], prompts: Sequence[Prompt]) -> GrammarState:
        """Return the grammar's state after each prompt, with all that the request asks for."""
        request = self.request
        states = [grammar.start(prompt.tokens[None]) for prompt in prompts]
        state: GrammarState = type(states[0]).cat(states)
        if request.sampling.max_notes:
            grammar.bound(request.sampling.max_notes)  # prompts may have more
        if request.sampling.avoid_parallels:
            grammar.forbid_parallels()
        hold_metre = request.hold_metre and not request.keeps  # whose bars are the piece's
        grammar.hold(tempo=request.hold_tempo, metre=hold_metre)
        if request.hold_durations:
            step = TICKS_PER_BEAT // self.tokenizer.steps_per_beat
            notes = [[track.notes for track in prompt.score.tracks] for prompt in prompts]
            longest = [[int(x["duration"].max(initial=0)) // step for x in own] for own in notes]
            state = grammar.shorten(state, longest)
        state = grammar.give(state, [p.given for p in prompts], [p.written for p in prompts])
        state = grammar.harmonise(state, [prompt.progression for prompt in prompts])
        end = np.array([request.end_time(prompt) or NEVER for prompt in prompts])
        may_end = np.full_like(end, 0 if request.allow_end else NEVER)
        if request.ending == "close":
            state = grammar.close(state, end)
            may_end = np.minimum(may_end, end - [prompt.bar_length for prompt in prompts])
        return grammar.between(state, np.array([p.end_time for p in prompts]), may_end)

    def prefill(self, prompts: Sequence[Prompt], rows: Tensor) -> tuple[Tensor, ModelState, Tensor]:
        """Return logits [B, V], the state and positions [B, P] after the prompts at `rows` [B].

        Neighbours of equal length go through the model together.
        """
        coordinates, names = Coordinates(self.tokenizer), self.model.coordinate_names
        device = self.engine.device
        outputs = []
        for _, group in groupby(prompts, lambda p: len(p.tokens)):
            pairs = [
                (p.tokens, coordinates.of(p.tokens, names, bar_length=p.bar_length)) for p in group
            ]
            ids, positions = (torch.from_numpy(np.stack(each)) for each in zip(*pairs, strict=True))
            after = self.engine.prefill(ids.to(device), positions.to(device))
            outputs.append((*after, positions[:, -1]))
        first, states, last = zip(*outputs, strict=True)
        logits = torch.cat(first).cpu()[rows]
        state = ModelState.cat(list(states)).select(rows.to(device))
        temperature = self.request.sampling.temperature
        if state.copied is not None and temperature > 0:  # the copy head has it from now on
            state.copied.temperature.fill_(temperature)
            logits = logits.double() / temperature
        return logits, state, torch.cat(last)[rows]

    def _step(self, token: Tensor, positions: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the logits [B, V], on the CPU, after a token in each row [B], and the state."""
        if self._lag_biases is not None:
            bar = positions[:, self.model.coordinate_names.index("bar")]
            state.lag_bias[: len(bar)] = self._lag_biases[bar % len(self._lag_biases)]
        device = self.engine.device
        logits, state = self.engine.step(token.to(device), positions.to(device), state)
        return logits.cpu(), state


def _uniform_numbers(key: NoiseKey) -> Iterator[float]:
    """Yield numbers in [0, 1)."""
    generator = key.generator()
    while True:
        yield from torch.rand(256, generator=generator).tolist()  # one at a time takes longer
