"""The sampling loop: batches of sequences, one token of each a step."""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from musicgen.generation.constraints import ConstrainedGrammar, Constraint, request_constraints
from musicgen.generation.continuation import Continuation
from musicgen.generation.decoder import Decoder, GuidedDecoder, lag_biases
from musicgen.generation.engines import Engine, make_engine
from musicgen.generation.logits_processors import (
    LogitsProcessor,
    Processor,
    draw,
    process_checked,
)
from musicgen.generation.prompt import Prompt
from musicgen.generation.request import GenerationRequest
from musicgen.models import Transformer
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization.augmentation import relative_key, tritone
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.constraints import padded
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.vocabulary import IntArray

NUM_CANDIDATES = 8
"""Candidates for bars that others follow. More fit better, and take longer."""

PRIOR = 0.5
"""Weight of how much less probable a candidate is without its future, see `log_weights`. With 0,
gaps copy their future two to three times as often as music does; with 1, which is importance
sampling, they copy it less often than music does."""


@dataclass(eq=False)
class GeneratedSequence:
    """A continuation that is being sampled.

    Attributes:
        sample: its number among those of the prompt.
        candidate: its number among those of the sample, see `choose`.
        limit: how many tokens may be added.
        numbers: uniform in [0, 1), one per token.
        end: musical time at which it ends, without the token that reaches it; None: at the limit,
            or where the grammar ends it.
        tokens: the new ids.
    """

    prompt: Prompt
    sample: int
    candidate: int
    limit: int
    numbers: Iterator[float]
    end: int | None = None
    tokens: list[int] = field(default_factory=list)

    def add(self, token: int, time: int, finished: bool) -> bool:
        """Add a token that leads to a musical time; return whether the sequence has ended."""
        if self.end is not None and time >= self.end:
            return True
        self.tokens.append(token)
        return finished or len(self.tokens) >= self.limit


class Sampler:
    """Continues prompts with a model as a request asks.

    Args:
        model: causal, in evaluation mode.
        logits_processors: called before those of the request, see `logits_processors`.
        constraints: in addition to those of the request, see `Constraint`.
        on_step: called after each step with the number of its sequences.
        warn: called with one line if a faster engine fails, see `make_engine`.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        request: GenerationRequest,
        *,
        logits_processors: Sequence[Processor] = (),
        constraints: Sequence[Constraint] = (),
        on_step: Callable[[int], None] = lambda num_tokens: None,
        warn: Callable[[str], object] = warnings.warn,
    ) -> None:
        self.model, self.tokenizer, self.request = model, tokenizer, request
        self.logits_processors, self.constraints = list(logits_processors), list(constraints)
        self.on_step = on_step
        noise = NoiseKey((request.decoding.seed,))
        self.engine = make_engine(model, noise, engine=request.decoding.engine, warn=warn)
        self.lag_biases = lag_biases(model, request)

    def continuations(self, prompts: Sequence[Prompt]) -> Iterator[Continuation]:
        """Yield `num_samples` continuations of each prompt, each as soon as it is finished.

        Raises:
            UserError: a prompt is not grammatical, or is too long for the request or the model.
        """
        decoding = self.request.decoding
        samples = [
            (prompt, sample, prompt.of_sample(sample))
            for prompt, sample in product(prompts, range(decoding.num_samples))
        ]
        asked = {own: prompt for prompt, _, own in samples}
        sequences = [
            self.sequence(own, sample, candidate)
            for _, sample, own in samples
            for candidate in range(num_candidates(own))
        ]
        ended: dict[tuple[Prompt, int], list[GeneratedSequence]] = defaultdict(list)
        for first in range(0, len(sequences), decoding.batch_size):
            for ending in self.steps(sequences[first : first + decoding.batch_size]):
                for sequence in ending:
                    candidates = ended[sequence.prompt, sequence.sample]
                    candidates.append(sequence)
                    if len(candidates) == num_candidates(sequence.prompt):
                        chosen = self._chosen(candidates)
                        yield self._continuation(chosen, asked[chosen.prompt])

    def sequence(self, prompt: Prompt, sample: int, candidate: int = 0) -> GeneratedSequence:
        """Return a sequence of a prompt's sample, as `steps` takes it."""
        request = self.request
        key = NoiseKey((request.decoding.seed, RandomStream.SAMPLING, sample))
        if candidate:
            key = key.fold(candidate)
        limit, numbers = request.num_new_tokens(prompt, self.model), _uniform_numbers(key)
        end = None if request.closes else request.end_time(prompt)
        return GeneratedSequence(prompt, sample, candidate, limit, numbers, end)

    def _chosen(self, candidates: Sequence[GeneratedSequence]) -> GeneratedSequence:
        """Return one of the candidates of a sample."""
        candidates = sorted(candidates, key=lambda sequence: sequence.candidate)
        prompt, sample = candidates[0].prompt, candidates[0].sample
        tokens = [np.array(sequence.tokens, np.int64) for sequence in candidates]
        key = NoiseKey((self.request.decoding.seed, RandomStream.CANDIDATE, sample))
        return candidates[choose(self.engine, prompt, tokens, key)]

    @torch.inference_mode()
    def steps(self, batch: Sequence[GeneratedSequence]) -> Iterator[list[GeneratedSequence]]:
        """Add a token to each sequence of a batch a step; yield the sequences that have ended."""
        batch = list(batch)
        prompts = sorted(dict.fromkeys(s.prompt for s in batch), key=lambda p: len(p.tokens))
        prompt_of = torch.tensor([prompts.index(sequence.prompt) for sequence in batch])
        grammar = self.constrained_grammar(prompts)
        state = grammar.start([prompt.tokens for prompt in prompts]).select(prompt_of)
        history = History([sequence.prompt.tokens for sequence in batch], grammar.pad)
        processors = self.processors()
        stateful = [x for x in self.logits_processors if isinstance(x, LogitsProcessor)]
        for processor in stateful:
            processor.start(len(batch))
        decoder = self.decoder(prompts)
        logits = decoder.prefill(prompts, prompt_of)
        while True:
            # 1. Mask the tokens that may not come.
            allowed = grammar.allowed(state)
            logits = grammar.masked(state, logits, allowed)
            # 2. Process the logits, with the settings of the request last.
            for custom in self.logits_processors:
                logits = process_checked(custom, history.tokens, logits)
            for process in processors:
                logits = process(history.tokens, logits)
            # 3. Sample a token of each sequence.
            numbers = torch.tensor([next(s.numbers) for s in batch], dtype=torch.float64)
            tokens = draw(logits, numbers)
            # 4. Advance.
            state = grammar.advance(state, tokens)
            history.append(tokens)
            new = zip(tokens.tolist(), state.time.tolist(), state.finished.tolist(), strict=True)
            has_ended = [sequence.add(*each) for sequence, each in zip(batch, new, strict=True)]
            self.on_step(len(batch))
            yield [sequence for sequence, ended in zip(batch, has_ended, strict=True) if ended]
            if all(has_ended):
                return
            # 5. Drop the sequences that have ended.
            if any(has_ended):
                index = (~torch.tensor(has_ended)).nonzero()[:, 0]
                batch = [batch[i] for i in index.tolist()]
                state, tokens, allowed = state.select(index), tokens[index], allowed[index]
                for each in (decoder, history, *stateful):
                    each.select(index)
            # 6. Step the model.
            logits = decoder.step(tokens, state.positions, allowed)

    def constrained_grammar(self, prompts: Sequence[Prompt]) -> ConstrainedGrammar:
        """Return the tokenizer's grammar with the constraints on what follows the prompts."""
        grammar = self.tokenizer.grammar()
        asked = request_constraints(self.request, self.tokenizer, grammar, prompts)
        return ConstrainedGrammar(grammar, asked + self.constraints)

    def processors(self) -> list[Processor]:
        """Return the logits processors of the sampling settings."""
        sampling = self.request.sampling
        if self.model.copy_head is not None and sampling.temperature > 0:
            sampling = replace(sampling, temperature=1.0)  # the decoder applies it
        if self.request.piece.is_whole_piece:  # music for kept parts repeats little without it
            sampling = replace(sampling, variation=None)
        return sampling.processors()

    def decoder(self, prompts: Sequence[Prompt]) -> Decoder | GuidedDecoder:
        """Return what computes the logits of a batch that begins with some of the prompts."""
        sampling = self.request.sampling
        decoder = Decoder(self.engine, self.tokenizer, self.lag_biases, sampling.temperature or 1.0)
        if sampling.guidance == 1:
            return decoder
        if any(map(_guides, prompts)):
            return GuidedDecoder(decoder, sampling.guidance, tritone(self.tokenizer))
        is_new = not any(prompt.score.num_notes for prompt in prompts)
        if is_new and self.request.piece.tonic is not None and "key" in decoder.names:
            return GuidedDecoder(decoder, sampling.guidance, relative_key(self.tokenizer))
        return decoder

    def _continuation(self, sequence: GeneratedSequence, prompt: Prompt) -> Continuation:
        tokens = np.append(sequence.prompt.tokens, np.array(sequence.tokens, dtype=np.int64))
        end = int(self.tokenizer.times(tokens[self.tokenizer.future_length(tokens) :]).max()) + 1
        end = min(self.request.end_time(prompt) or end, end)
        num_bars = -(-(end - prompt.end.step) // prompt.bar_length)
        key = NoiseKey((self.request.decoding.seed, RandomStream.PERFORMANCE, sequence.sample))
        score = prompt.perform(prompt.decode(tokens), key.seed)
        return Continuation(prompt, sequence.sample, tokens, score, num_bars)


class History:
    """The tokens so far of each sequence of a batch, in a tensor that grows.

    Args:
        prompts: ids of each sequence's prompt. [L]
        pad: the id before shorter prompts.
    """

    def __init__(self, prompts: Sequence[np.ndarray], pad: int) -> None:
        self._length = max(map(len, prompts))
        self._buffer = torch.full((len(prompts), 2 * self._length + 64), pad)
        for of_sequence, prompt in zip(self._buffer, prompts, strict=True):
            of_sequence[self._length - len(prompt) : self._length] = torch.from_numpy(prompt)

    @property
    def tokens(self) -> Tensor:
        """The ids of each sequence; shorter ones begin with PAD. [B, L]"""
        return self._buffer[:, : self._length]

    def append(self, tokens: Tensor) -> None:
        """Add a token [B] to each sequence."""
        if self._length == self._buffer.shape[1]:
            self._buffer = torch.cat([self._buffer, torch.empty_like(self._buffer)], dim=1)
        self._buffer[:, self._length] = tokens
        self._length += 1

    def select(self, index: Tensor) -> None:
        """Keep only the sequences at `index`."""
        self._buffer = self._buffer[index]


def _uniform_numbers(key: NoiseKey) -> Iterator[float]:
    """Yield numbers in [0, 1)."""
    generator = key.generator()
    while True:
        yield from torch.rand(256, generator=generator).tolist()  # one at a time takes longer


def _guides(prompt: Prompt) -> bool:
    """Return whether something is kept where new notes come, which a negative prompt changes."""
    return prompt.kept is not None and bool(prompt.score.num_notes)


def num_candidates(prompt: Prompt) -> int:
    """Return how many candidates a sample has: several, if bars of the piece follow."""
    bars_follow = prompt.kept is not None and len(prompt.kept.conditioning.following) > 0
    return NUM_CANDIDATES if bars_follow else 1


def choose(engine: Engine, prompt: Prompt, candidates: Sequence[IntArray], key: NoiseKey) -> int:
    """Draw one of several candidates, ids [L] each, that follow a prompt; return its index.

    Sampling-importance resampling, Rubin 1987, see `log_weights`.
    """
    if len(candidates) == 1:
        return 0
    number = torch.rand(1, generator=key.generator(), dtype=torch.float64)
    return int(draw(log_weights(engine, prompt, candidates)[None], number))


def log_weights(engine: Engine, prompt: Prompt, candidates: Sequence[IntArray]) -> Tensor:
    """Return the log-weight of each candidate c, with which it is drawn. [num_candidates]

        log p(bars after it | past, c) + PRIOR (log p(c | past) - log p(c | prompt))

    The prompt is the past alone, or has the future, too. Then c was drawn by the future already,
    and without the second term copies of it would win, from which it is guessed again.
    """
    assert prompt.kept is not None
    following = prompt.kept.conditioning.following
    past = prompt.tokens[prompt.tokenizer.future_length(prompt.tokens) :]
    whole = [np.concatenate([candidate, following]) for candidate in candidates]
    log_p = _log_probabilities(engine, prompt, past, whole)
    lengths = torch.tensor([len(candidate) for candidate in candidates])
    is_candidate = torch.arange(log_p.shape[1]) < lengths[:, None]
    weights = log_p.masked_fill(is_candidate, 0.0).sum(dim=1)
    if len(past) == len(prompt.tokens):
        return weights
    drawn = _log_probabilities(engine, prompt, prompt.tokens, candidates).sum(dim=1)
    return weights + PRIOR * (log_p.masked_fill(~is_candidate, 0.0).sum(dim=1) - drawn)


@torch.inference_mode()
def _log_probabilities(
    engine: Engine, prompt: Prompt, before: IntArray, sequences: Sequence[IntArray]
) -> Tensor:
    """Return the log-probabilities of the ids of sequences after others, 0 at padding. [B, L]"""
    coordinates, names, batch = (
        Coordinates(prompt.tokenizer),
        engine.model.coordinate_names,
        len(sequences),
    )
    all_ids = [np.concatenate([before, sequence]) for sequence in sequences]
    ids = padded(all_ids, 0)  # padding after a sequence does not change it
    columns = [
        coordinates.of(each, names, bar_length=prompt.bar_length, gap_end=prompt.gap_end)
        for each in all_ids
    ]
    tokens = torch.from_numpy(ids).to(engine.device)
    positions = torch.from_numpy(padded(columns, 0)).to(engine.device)
    start = len(before) - 1  # the first token whose logits are needed
    state = None
    if start:
        _, state = engine.prefill(tokens[:1, :start], positions[:1, :start])
        state = state.select(torch.zeros(batch, dtype=torch.long, device=engine.device))
    logits, _ = engine.model.forward_with_state(
        tokens[:, start:-1], positions=positions[:, start:-1], noise=engine.noise, state=state
    )
    of_tokens = (
        logits.double().log_softmax(dim=-1).gather(2, tokens[:, start + 1 :, None])[..., 0].cpu()
    )
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return of_tokens.masked_fill(torch.arange(of_tokens.shape[1]) >= lengths[:, None], 0.0)
