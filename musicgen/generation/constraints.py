"""A grammar with constraints, and the constraints of a request."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from musicgen.generation.prompt import Prompt
from musicgen.generation.request import GenerationRequest
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.constraints import Constraint, Memory, narrowed_where_possible
from musicgen.tokenization.grammar import NEVER, BoolArray, Grammar, GrammarState
from musicgen.tokenization.vocabulary import IntArray


class ConstrainedState:
    """The grammar's state of each sequence, and the memory of each constraint."""

    def __init__(self, grammar: GrammarState, memories: list[Memory]) -> None:
        self.grammar, self.memories = grammar, memories
        self.positions, self.time, self.finished = grammar.positions, grammar.time, grammar.finished

    def select(self, index: Tensor | IntArray) -> "ConstrainedState":
        """Return the states of the sequences at `index` [N], which may repeat."""
        at = np.asarray(index)
        memories = tree_map(lambda x: None if x is None else x[at], self.memories)
        return ConstrainedState(self.grammar.select(at), memories)


class ConstrainedGrammar:
    """A grammar whose masks are narrowed by constraints.

    Every sequence always has a token that may come next. Where a constraint would leave none, it is
    ignored for this one token; so the first constraints have priority over later ones.
    """

    def __init__(self, grammar: Grammar[Any], constraints: Sequence[Constraint] = ()) -> None:
        self.grammar, self.constraints = grammar, list(constraints)
        self.pad = grammar.pad

    def start(self, prompts: Sequence[IntArray]) -> ConstrainedState:
        """Return the state after prompts of any lengths, ids [L] each.

        Raises:
            UserError: a prompt is not grammatical.
        """
        states = [self.grammar.start(np.asarray(tokens)[None]) for tokens in prompts]
        state = type(states[0]).cat(states)
        for constraint in self.constraints:
            state = constraint.restrict(state)
        memories = [constraint.start(state, prompts) for constraint in self.constraints]
        return ConstrainedState(state, memories)

    def allowed(self, state: ConstrainedState) -> Tensor:
        """Return which tokens may come next. [B, V]"""
        pairs = [*zip(self.constraints, state.memories, strict=True)]
        earliest: dict[str, IntArray] = {}
        for constraint, memory in pairs:
            for family, time in constraint.earliest(state.grammar, memory).items():
                earliest[family] = np.maximum(earliest.get(family, time), time)
        grammatical = self.grammar.allowed(state.grammar, earliest).numpy()
        found = [constraint.allowed(state.grammar, memory) for constraint, memory in pairs]
        masks = [mask for mask in found if mask is not None]
        allowed = grammatical.copy()
        for mask in masks:
            allowed &= mask
        if not allowed.any(axis=1).all():
            allowed = narrowed_where_possible(grammatical, masks)
        return torch.from_numpy(allowed)

    def masked(self, state: ConstrainedState, logits: Tensor, allowed: Tensor) -> Tensor:
        """Return the logits in fp64 with -inf for the tokens that are not `allowed`. [B, V] each"""
        logits = logits.double()
        for constraint in self.constraints:
            logits = constraint.redirect(state.grammar, logits, allowed)
        return torch.from_numpy(np.where(allowed.numpy(), logits.numpy(), -np.inf))

    def advance(self, state: ConstrainedState, tokens: Tensor | IntArray) -> ConstrainedState:
        """Return the state after one more token of each sequence. [B]"""
        ids = np.asarray(tokens)
        after = self.grammar.advance(state.grammar, ids)
        memories = [
            constraint.advance(after, memory, ids)
            for constraint, memory in zip(self.constraints, state.memories, strict=True)
        ]
        return ConstrainedState(after, memories)


def request_constraints(
    request: GenerationRequest,
    tokenizer: Tokenizer,
    grammar: Grammar[Any],
    prompts: Sequence[Prompt],
) -> list[Constraint]:
    """Return what a request asks of the tokens after each prompt, its end included.

    The first constraints have priority, see `ConstrainedGrammar`.
    """
    own = tokenizer.constraints(request, prompts)
    begin = np.array([prompt.end.step for prompt in prompts])
    end = np.array([request.end_time(prompt) or NEVER for prompt in prompts])
    may_end = np.full_like(end, 0 if request.decoding.allow_end else NEVER)
    if not request.closes:
        return [*own, *end_constraints(grammar, begin, may_end, None)]
    last_bar = [0 if grammar.holds_last_chord else prompt.bar_length for prompt in prompts]
    may_end = np.minimum(may_end, end - last_bar)
    return [*own, *end_constraints(grammar, begin, may_end, end)]


def end_constraints(
    grammar: Grammar[Any], begin: IntArray, may_end: IntArray, limit: IntArray | None
) -> list[Constraint]:
    """Return the constraints on where new music begins and ends, in grid steps.

    Args:
        begin: where new music begins. [B]
        may_end: where the piece may end at the earliest. [B]
        limit: where it ends at the latest; None: no limit. [B]
    """
    closing = [] if limit is None else [EndBy(grammar, limit)]
    return [*closing, Begin(grammar, begin), NoEarlyEnd(grammar, begin, may_end)]


class Begin(Constraint):
    """Before new music begins, only tokens that advance the time are allowed, or the end.

    Args:
        begin: the grid step at which it begins. [B]
    """

    def __init__(self, grammar: Grammar[Any], begin: IntArray) -> None:
        self.grammar, self.begin = grammar, begin
        self._end = grammar.of_families("EOS")

    def allowed(self, state: GrammarState, memory: IntArray) -> BoolArray | None:
        begin = self.begin[memory]
        waiting = state.time < begin
        if not waiting.any():
            return None
        return ~waiting[:, None] | self._end | self.grammar.time_tokens(state, begin)


class EndBy(Constraint):
    """The piece ends by a musical time: no note sounds longer, and no bar begins then or later.

    Where the piece may end, the probability of tokens beyond that time is added to that of the end.
    A mask alone would share it among the notes that may still come, and they would pile up in the
    last beat.

    Args:
        limit: the time in grid steps. [B]
    """

    def __init__(self, grammar: Grammar[Any], limit: IntArray) -> None:
        self.grammar, self.limit = grammar, limit

    def restrict(self, state: Any) -> Any:
        return self.grammar.end_by(state, self.limit)

    def redirect(self, state: Any, logits: Tensor, allowed: Tensor) -> Tensor:
        eos = self.grammar.eos
        may_end = allowed[:, eos]
        if not may_end.any():
            return logits
        without_limit = replace(state, limit=np.full_like(state.limit, NEVER))
        is_beyond = self.grammar.allowed(without_limit) & ~self.grammar.allowed(state)
        is_beyond &= may_end[:, None]
        going_on = logits.masked_fill(~is_beyond, -torch.inf).logsumexp(dim=1)
        redirected = logits.clone()
        redirected[:, eos] = torch.logaddexp(logits[:, eos], going_on)
        return redirected


class NoEarlyEnd(Constraint):
    """The piece does not end before a musical time, unless nothing else may follow.

    It must be the last one of a request, so that it sees which tokens the others have left.

    Args:
        begin: the grid step at which new music begins. [B]
        may_end: the grid step at which the piece may end at the earliest. [B]
    """

    def __init__(self, grammar: Grammar[Any], begin: IntArray, may_end: IntArray) -> None:
        self.grammar, self.begin, self.may_end = grammar, begin, may_end
        self._others = ~grammar.of_families("EOS")

    def allowed(self, state: GrammarState, memory: IntArray) -> BoolArray | None:
        begin, early = self.begin[memory], state.time < self.may_end[memory]
        if early.all():
            return self._others
        waiting = state.time < begin
        if waiting.any():
            is_next = self.grammar.time_tokens(state, begin)[..., self.grammar.eos]
            early |= waiting & ~is_next
        return ~early[:, None] | self._others if early.any() else None
