"""Where the new music begins, and where the piece may and must end."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from musicgen.generation.constraints.base import Constraint
from musicgen.tokenization.grammar import NEVER, BoolArray, Grammar, GrammarState
from musicgen.tokenization.vocabulary import IntArray


class Begin(Constraint):
    """Before a musical time only tokens that advance the time are allowed, or the end.

    Args:
        start: the time at which new music begins, in grid steps. [B]
    """

    def __init__(self, grammar: Grammar[Any], start: IntArray) -> None:
        self.grammar, self.begin = grammar, start
        self._end = grammar.of_families("EOS")

    def start(self, state: GrammarState, prompts: Any) -> IntArray:
        return self.begin

    def allowed(self, state: GrammarState, memory: IntArray) -> BoolArray | None:
        waiting = state.time < memory
        if not waiting.any():
            return None
        return ~waiting[:, None] | self._end | self.grammar.time_tokens(state, memory)


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


class EndMemory(NamedTuple):
    """Musical times in grid steps, of each sequence. [B] each"""

    begin: IntArray  # at which new music begins
    may_end: IntArray  # from which the piece may end


class NoEarlyEnd(Constraint):
    """The piece does not end before a musical time, unless nothing else may follow.

    It must be the last constraint, so that it sees which tokens the others have left.

    Args:
        begin: the time at which new music begins, in grid steps. [B]
        may_end: the time from which the piece may end. [B]
    """

    def __init__(self, grammar: Grammar[Any], begin: IntArray, may_end: IntArray) -> None:
        self.grammar, self.times = grammar, EndMemory(begin, may_end)
        self._others = ~grammar.of_families("EOS")

    def start(self, state: GrammarState, prompts: Any) -> EndMemory:
        return self.times

    def allowed(self, state: GrammarState, memory: EndMemory) -> BoolArray | None:
        early = state.time < memory.may_end
        if early.all():
            return self._others
        waiting = state.time < memory.begin
        if waiting.any():
            is_next = self.grammar.time_tokens(state, memory.begin)[..., self.grammar.eos]
            early |= waiting & ~is_next
        return ~early[:, None] | self._others if early.any() else None


def end_constraints(
    grammar: Grammar[Any], start: IntArray, may_end: IntArray, limit: IntArray | None
) -> list[Constraint]:
    """Return the constraints of a beginning and an end.

    Args:
        start: musical time at which new music begins. [B]
        may_end: musical time from which the piece may end. [B]
        limit: musical time by which it ends; None: no limit. [B]
    """
    closing = [] if limit is None else [EndBy(grammar, limit)]
    return [*closing, Begin(grammar, start), NoEarlyEnd(grammar, start, may_end)]
