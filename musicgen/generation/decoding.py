"""Token generation: a parallel pass over each prompt, then steps of constant cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from musicgen.errors import UserError
from musicgen.generation.engines import Engine
from musicgen.generation.repetition import BarRepeats, cap_repeats
from musicgen.generation.sampling import SamplingParams, sample
from musicgen.models import ModelState
from musicgen.random import NoiseKey
from musicgen.tokenization.grammar import Grammar


@dataclass(frozen=True)
class TokenPrompt:
    """Tokens to continue, and where their continuations begin and end.

    Attributes:
        tokens: [L] ids, one or more.
        positions: [L, P], of each token, as the model reads them.
        start_time: musical time in grid steps before which nothing may be added.
        end_time: musical time at which continuations end, without the token that reaches it.
        silent_by: musical time after which no new note sounds, see `Grammar.close`.
        bar_length: grid steps in a bar of the continuation.
        times: [L] musical time of each token; only `max_bar_repeats` reads it.
        num_given: see `Grammar.start`.
    """

    tokens: Tensor
    positions: Tensor
    max_new_tokens: int
    start_time: int = 0
    end_time: int | None = None
    silent_by: int | None = None
    bar_length: int = 1
    times: Tensor | None = None
    num_given: int | None = None


class Step(NamedTuple):
    """One more token of each row.

    Attributes:
        tokens: [B] ids on the CPU; a row that has ended has the pad id.
        times: [B] their musical times in grid steps.
        log_probs: [B] their log-probabilities under the model alone, in nats, without grammar,
            temperature and filters; None unless asked for.
    """

    tokens: Tensor
    times: Tensor
    log_probs: Tensor | None


@torch.inference_mode()
def generate_tokens(
    engine: Engine,
    grammar: Grammar,
    prompts: Sequence[TokenPrompt],
    rows: Sequence[tuple[int, NoiseKey]],
    sampling: SamplingParams,
    *,
    allow_end: bool,
    hold_tempo: bool = False,
    hold_metre: bool = False,
    next_positions: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    close: bool = False,
    log_probs: bool = False,
) -> Iterator[Step]:
    """Continue prompts; iterating is streaming.

    Args:
        rows: the number of each row's prompt, and the key of its random numbers, on which alone
            they depend.
        allow_end: whether the model may end a piece before its time or length.
        hold_tempo, hold_metre: see `Grammar.hold`.
        grammar: one of its own, as the bound of `sampling.max_notes` stays with it.
        next_positions: `TokenCoordinates.next_coordinates` of the coordinates that the model reads.
        close: end each piece with EOS and without sounding notes, by its `silent_by` at the
            latest; the bar line that would come instead of EOS counts for it.
        log_probs: whether to compute those of `Step`.

    Yields:
        Steps; the last when all rows have ended.

    Raises:
        ValueError: a prompt is not grammatical, or a length passes the model's limit.
    """
    longest = max(len(prompt.tokens) + prompt.max_new_tokens for prompt in prompts)
    position = engine.model.position
    if position.max_length is not None and longest > position.max_length:
        raise UserError(
            f"{longest} tokens are more than the max_length={position.max_length} of this "
            f"model's positional encoding ({position.name}). Generate fewer, or train with an "
            "encoding without a limit, such as sine_spe, sinusoidal or none"
        )
    # Only the model is on the device: grammar and sampling are small and in fp64.
    states = [grammar.start(prompt.tokens[None], prompt.num_given) for prompt in prompts]
    if sampling.max_notes:
        grammar.bound(sampling.max_notes)  # of prompts it does not hold
    of_prompt = torch.tensor([number for number, _ in rows])
    grammar_state = type(states[0]).cat(states).select(of_prompt)
    grammar_state = grammar.hold(grammar_state, tempo=hold_tempo, metre=hold_metre)
    logits, state = prefill(engine, prompts, of_prompt)
    num_left = torch.tensor([prompt.max_new_tokens for prompt in prompts])[of_prompt]
    starts = torch.tensor([prompt.start_time for prompt in prompts])[of_prompt]
    never = torch.iinfo(torch.long).max
    ends = torch.tensor([never if p.end_time is None else p.end_time for p in prompts])[of_prompt]
    bar_lengths = torch.tensor([prompt.bar_length for prompt in prompts])[of_prompt]
    positions = torch.stack([prompt.positions[-1] for prompt in prompts])[of_prompt]
    silent_by = [never if p.silent_by is None else p.silent_by for p in prompts]
    grammar_state = grammar.close(grammar_state, torch.tensor(silent_by)[of_prompt])
    active = torch.arange(len(rows))
    repeats = _bar_repeats(grammar, prompts, of_prompt, sampling.max_bar_repeats)
    for uniform in _uniforms([key for _, key in rows]):
        allowed = grammar.allowed(grammar_state, end=allow_end or close, not_before=starts)
        log_p = logits.double().log_softmax(-1) if log_probs else None
        if close:
            closing = [grammar.eos, *grammar.bar_lines]
            logits[:, grammar.eos] = logits[:, closing].logsumexp(-1)
        if repeats:
            time = grammar_state.time
            logits, allowed = cap_repeats(logits, allowed, repeats, time, sampling.temperature)
        token = sample(logits, sampling, allowed=allowed, uniform=uniform[active])
        grammar_state = grammar.advance(grammar_state, token)
        for row, *new in zip(repeats, token.tolist(), grammar_state.time.tolist(), strict=False):
            row.observe(*([value] for value in new))
        over = (grammar_state.time >= ends) & (not close)
        token = torch.where(over, grammar.pad, token)
        num_left = torch.where(over | grammar_state.finished, 0, num_left - 1)
        out = torch.full_like(of_prompt, grammar.pad)
        out[active] = token
        times = torch.zeros_like(out)
        times[active] = grammar_state.time
        if log_p is not None:
            log_p = torch.zeros(len(out), dtype=log_p.dtype).index_copy(
                0, active, log_p.gather(1, token[:, None])[:, 0]
            )
        yield Step(out, times, log_p)

        kept = (num_left > 0).nonzero()[:, 0]
        if not len(kept):
            return
        if len(kept) < len(active):  # compute no further tokens of rows that have ended
            active, token, num_left = active[kept], token[kept], num_left[kept]
            starts, ends, bar_lengths = starts[kept], ends[kept], bar_lengths[kept]
            positions = positions[kept]
            grammar_state = grammar_state.select(kept)
            state = state.select(kept.to(engine.device))
            repeats = repeats and [repeats[i] for i in kept.tolist()]
        positions = next_positions(positions, token, grammar_state.positions, bar_lengths)
        on_device, state = engine.step(token.to(engine.device), positions.to(engine.device), state)
        logits = on_device.cpu()


class FinishedRow(NamedTuple):
    """The new tokens of a row, and their log-probabilities if asked for."""

    row: int
    tokens: list[int]
    log_probs: list[float]


def finished_rows(
    steps: Iterator[Step], pad: int, on_step: Callable[[int], None]
) -> Iterator[FinishedRow]:
    """Yield each row as soon as it gets its first pad.

    Args:
        on_step: called after each step with the number of rows that got a token.
    """
    rows: dict[int, FinishedRow] = {}
    for i, step in enumerate(steps):
        tokens = step.tokens.tolist()
        log_probs = None if step.log_probs is None else step.log_probs.tolist()
        rows = rows if i else {row: FinishedRow(row, [], []) for row in range(len(tokens))}
        for row in list(rows):
            if tokens[row] == pad:
                yield rows.pop(row)
                continue
            rows[row].tokens.append(tokens[row])
            if log_probs is not None:
                rows[row].log_probs.append(log_probs[row])
        on_step(len(rows))
    yield from rows.values()


def prefill(
    engine: Engine, prompts: Sequence[TokenPrompt], rows: Tensor
) -> tuple[Tensor, ModelState]:
    """Return logits [B, V], on the CPU, and the state of the prompts at `rows` [B].

    Prompts of equal length go through the model together.
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].tokens))
    outputs = []
    for _, group in groupby((prompts[i] for i in order), lambda prompt: len(prompt.tokens)):
        pairs = [(prompt.tokens, prompt.positions) for prompt in group]
        tokens, positions = map(torch.stack, zip(*pairs, strict=True))
        outputs.append(engine.prefill(tokens.to(engine.device), positions.to(engine.device)))
    rows = torch.tensor(order).argsort()[rows]
    logits = torch.cat([logits for logits, _ in outputs])
    state = ModelState.cat([state for _, state in outputs])
    return logits.cpu()[rows], state.select(rows.to(engine.device))


def _bar_repeats(
    grammar: Grammar, prompts: Sequence[TokenPrompt], rows: Tensor, max_repeats: int | None
) -> list[BarRepeats]:
    """Return the last bars of the prompts at `rows` [B]; none without a maximum."""
    if max_repeats is None:
        return []
    read = [
        BarRepeats(grammar, max_repeats, prompt.bar_length).observe(
            prompt.tokens.tolist(), [] if prompt.times is None else prompt.times.tolist()
        )
        for prompt in prompts
    ]
    return [read[row].copy() for row in rows.tolist()]


def _uniforms(keys: Sequence[NoiseKey], block: int = 256) -> Iterator[Tensor]:
    """Yield a number in [0, 1) for each row, [B] in fp64, from a generator for each key."""
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    generators = [key.generator() for key in number]
    of_key = torch.tensor([number[key] for key in keys])
    while True:
        draws = torch.stack([torch.rand(block, generator=g) for g in generators])
        yield from draws[of_key].double().unbind(1)
