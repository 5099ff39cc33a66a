"""Grammars: which tokens may come next in each sequence of a batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.errors import UserError
from musicgen.tokenization.gaps import future_length
from musicgen.tokenization.vocabulary import BoolArray, IntArray, Vocabulary

Ids = Tensor | IntArray
"""Token ids, or musical times, on the CPU."""

NEVER = 2**61  # may be doubled
_MASKS = 128  # of a prompt at a time


@dataclass
class GrammarState:
    """The state of each sequence of a batch: arrays whose first dimension is B.

    Attributes:
        positions: token index and musical time in grid steps of the token just accepted; PAD does
            not count, nor does the key of a chorale. Before the first token: -1 and 0. [B, 2]
        finished: whether the sequence has its EOS. [B]
        last: the token just accepted; PAD before the first. [B]
        limit: musical time by which the piece ends, see `Grammar.end_by`. [B]
    """

    positions: IntArray
    finished: BoolArray
    last: IntArray
    limit: IntArray

    @property
    def time(self) -> IntArray:
        return self.positions[:, 1]

    def select(self, index: Ids) -> Self:
        """Return the states of the sequences at `index` [N], which may repeat."""
        at = np.asarray(index)
        return type(self)(**{name: array[at] for name, array in vars(self).items()})

    @classmethod
    def cat(cls, states: Sequence[Self]) -> Self:
        """Concatenate the sequences of several states."""
        columns = zip(*(vars(state).values() for state in states), strict=True)
        return cls(*map(np.concatenate, columns))


S = TypeVar("S", bound=GrammarState)


class Grammar(ABC, Generic[S]):
    """The language of a tokenizer's encodings: the sequences that decode and encode to themselves.

    States are never changed in place, so a generation can be forked by keeping one. They are numpy
    arrays, in which small steps are fastest; ids and masks are tensors on the CPU.
    """

    state_type: type[Any]  # of `S`
    num_instruments = 0  # instruments that `max_notes` applies to
    holds_last_chord = False  # whether closed pieces end with their last bar, not in it
    future_header: tuple[int, ...] = ()  # ids before those of a future
    counts_future = True  # whether the token index goes on after a future, or begins anew

    def __init__(self, vocabulary: Vocabulary, families: Mapping[str, range]) -> None:
        """Number the families of tokens.

        Attributes:
            slices: the ids of each family.
            numbers: the number of each family.
            family: the number of each token's family, -1 for PAD. [V]
            counts: whether each token counts in the index of `positions`: all but PAD. [V]
        """
        self.vocabulary = vocabulary
        self.eos = vocabulary.id("EOS")
        self.pad = vocabulary.pad_id
        self.slices = {name: slice(ids.start, ids.stop) for name, ids in families.items()}
        self._marks = families.get("Gap", range(0))
        self.numbers = {name: number for number, name in enumerate(families)}
        self.family = np.full(len(vocabulary), -1)
        for name, ids in self.slices.items():
            self.family[ids] = self.numbers[name]
        self.counts = self.family >= 0

    def of_families(self, *families: str) -> BoolArray:
        """Return which tokens are of some families. [V]"""
        return np.isin(self.family, [self.numbers[name] for name in families])

    @abstractmethod
    def _allowed(self, state: S, earliest: Mapping[str, IntArray]) -> BoolArray:
        """Return `allowed` for unfinished sequences, as a new array; PAD's column is False."""

    @abstractmethod
    def time_tokens(self, state: S, until: IntArray) -> BoolArray:
        """Return the tokens that only move the time, at most to `until` [B]. -> [B, V]."""

    @abstractmethod
    def _advance(self, state: S, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        """Return the musical time after each of the ids [L, B], and the fields that `S` adds.

        Each [L, B, ...]; fields that no token changes are left out.
        """

    def advance(self, state: S, tokens: Ids) -> S:
        """Return the state after one more token of each sequence [B]; PAD for a finished one.

        After a token that is not allowed the state is undefined, but nothing is raised.
        """
        after = self._after(state, np.asarray(tokens)[None])
        return self._at_end(state, after)

    def _at_end(self, state: S, after: Mapping[str, NDArray[Any]]) -> S:
        """Return the state with the last of the values [L, B, ...] of `_after`."""
        return type(state)(**vars(state) | {name: values[-1] for name, values in after.items()})

    def _after(self, state: S, ids: IntArray) -> dict[str, Any]:
        """Return the fields that change, after each of the ids [L, B]. [L, B, ...] each."""
        time, changed = self._advance(state, ids)
        positions = np.empty((*ids.shape, 2), np.int64)
        positions[..., 0] = state.positions[:, 0] + self.counts[ids].cumsum(axis=0)
        positions[..., 1] = time
        finished = state.finished | np.logical_or.accumulate(ids == self.eos)
        return changed | {"positions": positions, "finished": finished, "last": ids}

    def _initial_fields(self, batch: int) -> dict[str, Any]:
        """Return the fields of the state before any token."""
        zeros = np.zeros(batch, np.int64)
        return {
            "positions": np.stack([zeros - 1, zeros], axis=1),
            "finished": zeros > 0,
            "last": zeros + self.pad,
            "limit": zeros + NEVER,
        }

    def start(self, prompts: Ids) -> S:
        """Return the state after prompts of one length, ids [B, L]. A future is read by itself.

        Raises:
            UserError: a prompt has a token that may not come there.
        """
        ids = np.asarray(prompts)
        lengths = [future_length(row, self._marks) for row in ids]
        if not any(lengths):
            return self._start(ids)
        states = []
        for row, length in zip(ids, lengths, strict=True):
            self._start(np.array([[*self.future_header, *row[1 : length - 1]]]))
            state = self._start(row[None, length:])
            state.positions[:, 0] += length * self.counts_future
            states.append(state)
        return type(states[0]).cat(states)

    def _start(self, prompts: Ids) -> S:
        prompt, batch = np.asarray(prompts).T, len(prompts)
        state: Any = self.state_type(**self._initial_fields(batch))
        block = max(1, _MASKS // max(1, batch))  # tokens at a time
        for first in range(0, len(prompt), block):
            ids = prompt[first : first + block]
            after, before = self._after(state, ids), {}  # the states after and before each token
            for name, value in vars(state).items():
                values = after.get(name, np.broadcast_to(value, (len(ids), *value.shape)))
                shifted = np.concatenate([value[None], values[:-1]])
                before[name] = shifted.reshape(ids.size, *value.shape[1:])
            allowed = self.allowed(self.state_type(**before)).numpy()
            is_legal = allowed[np.arange(ids.size), ids.ravel()].reshape(ids.shape)
            if not is_legal.all():
                at, sequence = np.argwhere(~is_legal)[0].tolist()
                token = self.vocabulary.token(int(ids[at, sequence]))
                previous = int((ids[at - 1] if at else state.last)[sequence])
                last = "the beginning" if previous == self.pad else self.vocabulary.token(previous)
                raise UserError(
                    f"prompt {sequence}, position {first + at}: {token} may not follow {last} "
                    "here; cut prompts from the tokenizer's own encodings, where a bar begins"
                )
            state = self._at_end(state, after)
        return state

    def end_by(self, state: S, limit: Ids) -> S:
        """Return a state from which the piece ends by the musical time `limit`. [B]

        No later note sounds longer, and no bar begins then or later.
        """
        return replace(state, limit=np.minimum(state.limit, np.asarray(limit)))

    def allowed(self, state: S, earliest: Mapping[str, IntArray] | None = None) -> Tensor:
        """Return which tokens may come next. [B, V] bool

        Every sequence has a token that may come: EOS where nothing else can follow (a piece of
        maximum length), and only PAD where it is finished.

        Args:
            earliest: musical time [B] before which no token of a family comes, by family: no beat
                begins for such a token alone.
        """
        mask = self._allowed(state, earliest or {})
        if state.finished.any():
            mask[state.finished] = False
            mask[:, self.pad] = state.finished
        return torch.from_numpy(mask)


def latest(before: NDArray[Any] | int, is_new: BoolArray, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values that are in force after each of L tokens, [L, B, ...].

    Args:
        before: in force before the first token; a number for tokens [L]. [B, ...]
        is_new: which tokens change them, to `values`, which may be broadcast. [L, B, ...]
    """
    if len(is_new) == 1:
        return np.where(is_new, values, before)
    number = np.arange(1, len(is_new) + 1).reshape(-1, *[1] * np.ndim(before))
    at = np.maximum.accumulate(np.where(is_new, number, 0))
    known = np.concatenate([np.asarray(before)[None], np.broadcast_to(values, is_new.shape)])
    return np.take_along_axis(known, at, axis=0)
