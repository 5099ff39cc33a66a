"""Tokens from a model: one parallel pass over the prompt, then steps of constant cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from musicgen.errors import UserError
from musicgen.generation.sampling import SamplingParams, sample
from musicgen.models import Decoder, ModelState
from musicgen.position import NoiseKey
from musicgen.tokenization.grammar import Grammar, GrammarState

# Keeps these draws apart from the positional encoding's.
_SAMPLING = -2


def generate(
    decoder: Decoder,
    prompts: Sequence[Tensor],
    *,
    positions: Sequence[Tensor] | None = None,
    grammar: Grammar,
    sampling: SamplingParams,
    max_new_tokens: int | Sequence[int],
    end_times: Sequence[int] | None = None,
    not_before: Sequence[int] | None = None,
    allow_end: bool = False,
    samples: Sequence[int] = (0,),
    seed: int = 0,
) -> Iterator[Tensor]:
    """Continue each prompt, once per sample; iterating is streaming.

    Rows are ordered by prompt, then sample. Sample i of a prompt depends on seed and i, not on
    what else is in the batch.

    Args:
        decoder: of a causal model in evaluation mode.
        prompts: token ids [L] each, one or more of them, of any lengths.
        positions: of the prompts' tokens, [L, 2] each, index and musical time, for a model that
            reads the latter; None counts tokens.
        grammar: says which tokens may come next, and knows the pad id and the musical time.
        sampling: how tokens are drawn.
        max_new_tokens: tokens after which a row ends; one for all prompts or one for each.
        end_times: musical time in grid steps, for each prompt, at which its rows end: the token
            that would reach it is withheld.
        not_before: musical time, for each prompt, before which nothing may be added.
        allow_end: whether the model may end a piece before that.
        samples: numbers of the samples of each prompt.
        seed: of sampling, and of the positional encoding's noise.

    Yields:
        [B] token ids on the CPU; a row that has ended yields the pad id. Stops when all have.

    Raises:
        UserError: a prompt is not grammatical, or the lengths pass the model's limit.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
    longest = max(len(p) + n for p, n in zip(prompts, limits, strict=True))
    position = decoder.model.position
    if position.max_length is not None and longest > position.max_length:
        raise UserError(
            f"{longest} tokens are asked for, but this model's positional encoding "
            f"(position={position.name}) ends at {position.max_length}. Ask for fewer bars, or "
            "train with position=sine_spe, sinusoidal or none, which have no limit"
        )
    return _generate(
        decoder,
        prompts,
        positions,
        grammar,
        sampling,
        limits,
        end_times,
        not_before,
        allow_end,
        samples,
        seed,
    )


@torch.inference_mode()
def _generate(
    decoder: Decoder,
    prompts: Sequence[Tensor],
    positions: Sequence[Tensor] | None,
    grammar: Grammar,
    sampling: SamplingParams,
    limits: Sequence[int],
    end_times: Sequence[int] | None,
    not_before: Sequence[int] | None,
    allow_end: bool,
    samples: Sequence[int],
    seed: int,
) -> Iterator[Tensor]:
    model, device = decoder.model, decoder.device
    noise = NoiseKey((seed,))
    # One prompt at a time: a product's shape, and so its rounding, depends on nothing else.
    logits, grammar_states = [], []
    states: list[ModelState] = []
    for i, prompt in enumerate(prompts):
        grammar_states.append(grammar.start(prompt[None]))
        x, state = model.hidden(
            prompt.to(device)[None],
            positions=None if positions is None else positions[i].to(device)[None],
            noise=noise,
            return_state=True,
        )
        logits.append(model.head(x[:, -1]))
        assert state is not None
        states.append(state)

    # Only the model is on the device: grammar and sampling are small, and want fp64.
    rows = torch.arange(len(prompts)).repeat_interleave(len(samples))
    active = torch.arange(len(rows))
    left = torch.tensor(limits)[rows]
    ends, begins = (
        None if times is None else torch.tensor(times)[rows] for times in (end_times, not_before)
    )
    grammar_state: GrammarState = type(grammar_states[0]).cat(grammar_states).select(rows)
    state = ModelState.cat(states).select(decoder.filled(rows))
    logit = torch.cat(logits).cpu()[rows]
    uniforms = _Uniforms(seed, samples, len(prompts))
    for number in itertools.count():
        allowed = grammar.allowed(grammar_state, end=allow_end, not_before=begins)
        token = sample(logit, sampling, allowed=allowed, uniform=uniforms.next()[active])
        grammar_state = grammar.advance(grammar_state, token)
        left = torch.where(grammar_state.finished, 0, left - 1)
        if ends is not None:
            over = grammar_state.time >= ends
            token, left = torch.where(over, grammar.pad, token), torch.where(over, 0, left)
        out = torch.full_like(rows, grammar.pad)
        out[active] = token
        yield out

        keep = (left > 0).nonzero()[:, 0]
        if not len(keep):
            return
        if len(keep) < len(active):  # rows that have ended are computed no further
            active, left, token = active[keep], left[keep], token[keep]
            ends, begins = (None if x is None else x[keep] for x in (ends, begins))
            grammar_state = grammar_state.select(keep)
            state = state.select(decoder.filled(keep))
        times = None if positions is None else decoder.filled(grammar_state.time)
        filled, state = decoder.step(number, decoder.filled(token), state, noise, times)
        logit = filled.cpu()[: len(active)]


class _Uniforms:
    """For each row its own stream of numbers, from seed and sample number."""

    block = 256

    def __init__(self, seed: int, samples: Sequence[int], num_prompts: int) -> None:
        self.generators = [NoiseKey((seed, _SAMPLING, i)).generator() for i in samples]
        self.num_prompts = num_prompts
        self.place = self.block

    def next(self) -> Tensor:
        """The next number of each row, [B] in fp64."""
        if self.place == self.block:
            draws = [torch.rand(self.block, generator=g).double() for g in self.generators]
            self.table = torch.stack(draws * self.num_prompts)
            self.place = 0
        self.place += 1
        return self.table[:, self.place - 1]
