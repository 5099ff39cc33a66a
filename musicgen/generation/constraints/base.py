"""The interface of constraints, and a grammar with constraints."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.tokenization.grammar import BoolArray, Grammar, GrammarState
from musicgen.tokenization.vocabulary import IntArray

Memory = NDArray[Any] | tuple[NDArray[Any], ...] | None


class Constraint:
    """What a request asks of the tokens, beyond the tokenizer's grammar.

    Override the methods that the constraint needs; the defaults restrict nothing. A constraint does
    not change while decoding. What it remembers of each sequence is its memory: an array, or a
    NamedTuple of arrays, whose first dimension is the batch. Methods take and return it.

    B is the number of sequences in the batch, V the size of the vocabulary.
    """

    def restrict(self, state: Any) -> Any:
        """Return the grammar's state after the prompts with narrower bounds of its own."""
        return state

    def start(self, state: Any, prompts: Sequence[IntArray]) -> Memory:
        """Return the memory after the prompts; None: there is nothing to remember.

        Args:
            state: the grammar's state after the prompts.
            prompts: ids of each prompt. [L]
        """
        return None

    def allowed(self, state: Any, memory: Any) -> BoolArray | None:
        """Return which tokens may come next, [B, V] or [V] for all sequences; None: any."""
        return None

    def earliest(self, state: Any, memory: Any) -> dict[str, IntArray]:
        """Return the musical time before which no token of a family may come, [B], by family.

        With it the grammar looks ahead, so that it begins nothing that would stay empty.
        """
        return {}

    def redirect(self, state: Any, logits: Tensor, allowed: Tensor) -> Tensor:
        """Move the probability of tokens that may not come to other tokens; return logits [B, V].

        The default does nothing; the mask then shares it among all tokens that may come.

        Args:
            logits: of all tokens. [B, V]
            allowed: the tokens that may come next. [B, V]
        """
        return logits

    def advance(self, state: Any, memory: Any, tokens: IntArray) -> Any:
        """Return the memory after one more token of each sequence. [B]

        Args:
            state: the grammar's state after the tokens.
        """
        return memory


@dataclass
class ConstrainedState:
    """The grammar's state of each sequence, and the memory of each constraint."""

    grammar: GrammarState
    memories: list[Memory]

    @property
    def positions(self) -> IntArray:
        """See `GrammarState`. [B, 2]"""
        return self.grammar.positions

    @property
    def time(self) -> IntArray:
        """Musical time of the token just accepted, in grid steps. [B]"""
        return self.grammar.time

    @property
    def finished(self) -> BoolArray:
        """Whether the sequence has its EOS. [B]"""
        return self.grammar.finished

    def select(self, index: Tensor | IntArray) -> "ConstrainedState":
        """Return the states of the sequences at `index` [N], which may repeat."""
        at = np.asarray(index)
        memories = [_selected(memory, at) for memory in self.memories]
        return ConstrainedState(self.grammar.select(at), memories)


def _selected(memory: Memory, index: IntArray) -> Memory:
    if memory is None:
        return None
    if isinstance(memory, tuple):
        return type(memory)(*(array[index] for array in memory))
    return memory[index]


class ConstrainedGrammar:
    """A grammar whose masks are narrowed by constraints.

    Every sequence always has a token that may come next. Where a constraint would leave none, it is
    ignored for this one token; so the first constraints have priority over later ones.
    """

    def __init__(self, grammar: Grammar[Any], constraints: Sequence[Constraint] = ()) -> None:
        self.grammar, self.constraints = grammar, list(constraints)
        self.pad = grammar.pad
        self._looks_ahead = [type(x).earliest is not Constraint.earliest for x in constraints]

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
        for (constraint, memory), looks_ahead in zip(pairs, self._looks_ahead, strict=True):
            if looks_ahead:
                for family, time in constraint.earliest(state.grammar, memory).items():
                    earliest[family] = np.maximum(earliest.get(family, time), time)
        grammatical = self.grammar.allowed(state.grammar, earliest).numpy()
        found = [constraint.allowed(state.grammar, memory) for constraint, memory in pairs]
        masks = [mask for mask in found if mask is not None]
        allowed = grammatical.copy()
        for mask in masks:
            allowed &= mask
        if not allowed.any(axis=1).all():
            allowed = _narrowed_where_possible(grammatical, masks)
        return torch.from_numpy(allowed)

    def masked(self, state: ConstrainedState, logits: Tensor, allowed: Tensor) -> Tensor:
        """Return the logits with -inf for the tokens that are not `allowed`. [B, V] each"""
        for constraint in self.constraints:
            logits = constraint.redirect(state.grammar, logits, allowed)
        return logits.masked_fill(~allowed, -torch.inf)

    def advance(self, state: ConstrainedState, tokens: Tensor | IntArray) -> ConstrainedState:
        """Return the state after one more token of each sequence. [B]"""
        ids = np.asarray(tokens)
        after = self.grammar.advance(state.grammar, ids)
        memories = [
            constraint.advance(after, memory, ids)
            for constraint, memory in zip(self.constraints, state.memories, strict=True)
        ]
        return ConstrainedState(after, memories)


def _narrowed_where_possible(allowed: BoolArray, masks: Sequence[BoolArray]) -> BoolArray:
    """Narrow a mask [B, V] by others, by each only the sequences to which it leaves a token."""
    for mask in masks:
        narrowed = allowed & mask
        allowed = np.where(narrowed.any(axis=1, keepdims=True), narrowed, allowed)
    return allowed
