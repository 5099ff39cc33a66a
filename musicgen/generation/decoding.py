"""Token generation: a parallel pass over each prompt, then steps of constant cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from musicgen.errors import UserError
from musicgen.generation.engines import Engine
from musicgen.generation.sampling import SamplingParams, sample
from musicgen.models import ModelState
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization.grammar import Grammar


@dataclass(frozen=True)
class TokenPrompt:
    """Tokens to continue, and where their continuations begin and end.

    Attributes:
        tokens: [L] ids, one or more.
        positions: [L, P], of each token, as the model reads them.
        start_time: musical time in grid steps before which nothing may be added.
        end_time: musical time at which continuations end, without the token that reaches it.
        bar_length: grid steps in a bar, if bars are not among the tokens.
    """

    tokens: Tensor
    positions: Tensor
    max_new_tokens: int
    start_time: int = 0
    end_time: int | None = None
    bar_length: int = 1


@torch.inference_mode()
def generate_tokens(
    engine: Engine,
    grammar: Grammar,
    prompts: Sequence[TokenPrompt],
    sampling: SamplingParams,
    samples: Sequence[int],
    *,
    allow_end: bool,
    hold_tempo: bool = False,
    hold_metre: bool = False,
    seed: int,
    next_positions: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
) -> Iterator[Tensor]:
    """Continue each prompt, once per sample; iterating is streaming.

    Rows are ordered by prompt, then sample. The random numbers of sample i depend on the seed
    and i alone.

    Args:
        samples: numbers of the samples of each prompt.
        allow_end: whether the model may end a piece before its time or length.
        hold_tempo, hold_metre: see `Grammar.hold`.
        next_positions: `TokenCoordinates.next_coordinates` of the coordinates that the model reads.

    Yields:
        [B] token ids on the CPU; a row that has ended yields the pad id. Stops when all have.

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
    states = [grammar.start(prompt.tokens[None]) for prompt in prompts]
    rows = torch.arange(len(prompts)).repeat_interleave(len(samples))
    grammar_state = type(states[0]).cat(states).select(rows)
    grammar_state = grammar.hold(grammar_state, tempo=hold_tempo, metre=hold_metre)
    logits, state = prefill(engine, prompts, rows)
    num_left = torch.tensor([prompt.max_new_tokens for prompt in prompts])[rows]
    starts = torch.tensor([prompt.start_time for prompt in prompts])[rows]
    never = torch.iinfo(torch.long).max
    ends = torch.tensor([never if p.end_time is None else p.end_time for p in prompts])[rows]
    bar_lengths = torch.tensor([prompt.bar_length for prompt in prompts])[rows]
    positions = torch.stack([prompt.positions[-1] for prompt in prompts])[rows]
    active = torch.arange(len(rows))
    for uniform in _uniforms(seed, samples):
        allowed = grammar.allowed(grammar_state, end=allow_end, not_before=starts)
        numbers = uniform.repeat(len(prompts))[active]
        token = sample(logits, sampling, allowed=allowed, uniform=numbers)
        grammar_state = grammar.advance(grammar_state, token)
        over = grammar_state.time >= ends
        token = torch.where(over, grammar.pad, token)
        num_left = torch.where(over | grammar_state.finished, 0, num_left - 1)
        out = torch.full_like(rows, grammar.pad)
        out[active] = token
        yield out

        kept = (num_left > 0).nonzero()[:, 0]
        if not len(kept):
            return
        if len(kept) < len(active):  # compute no further tokens of rows that have ended
            active, token, num_left = active[kept], token[kept], num_left[kept]
            starts, ends, bar_lengths = starts[kept], ends[kept], bar_lengths[kept]
            positions = positions[kept]
            grammar_state = grammar_state.select(kept)
            state = state.select(kept.to(engine.device))
        positions = next_positions(positions, token, grammar_state.positions, bar_lengths)
        on_device, state = engine.step(token.to(engine.device), positions.to(engine.device), state)
        logits = on_device.cpu()


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


def _uniforms(seed: int, samples: Sequence[int], block: int = 256) -> Iterator[Tensor]:
    """Yield a number in [0, 1) for each sample, [S] in fp64, from a generator of its own."""
    generators = [NoiseKey((seed, RandomStream.SAMPLING, i)).generator() for i in samples]
    while True:
        draws = torch.stack([torch.rand(block, generator=g) for g in generators])
        yield from draws.double().unbind(1)
