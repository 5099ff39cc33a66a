"""Grammars: which tokens may follow, for a batch of sequences."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.errors import ParameterError, UserError
from musicgen.tokenization.vocabulary import IntArray, Vocabulary

BoolArray = NDArray[np.bool_]
Ids = Tensor | IntArray
"""Token ids, or musical times, on the CPU."""

NEVER = 2**61  # may be doubled
_MASKS = 128  # of a prompt at a time


@dataclass
class GrammarState:
    """The state of each row of a batch: arrays whose first dimension is B.

    Attributes:
        positions: token index and musical time in grid steps of the token just accepted; PAD does
            not count. Before the first token: -1 and 0. [B, 2]
        finished: whether the row has its EOS. [B]
        last: the token just accepted; PAD before the first. [B]
        limit: musical time by which the piece ends, see `Grammar.close`. [B]
        start: musical time until which tokens only advance the time, see `Grammar.between`. [B]
        may_end: musical time from which EOS may come. [B]
        given: ids by index of the token, -1 for any, see `Grammar.give`. [B, N]
    """

    positions: IntArray
    finished: BoolArray
    last: IntArray
    limit: IntArray
    start: IntArray
    may_end: IntArray
    given: IntArray

    @property
    def time(self) -> IntArray:
        return self.positions[:, 1]

    def select(self, index: Ids) -> Self:
        """Return the rows at `index` [N], which may repeat, as a state of N rows."""
        at = np.asarray(index)
        return type(self)(**{name: array[at] for name, array in vars(self).items()})

    @classmethod
    def cat(cls, states: Sequence[Self]) -> Self:
        """Concatenate the rows of several states."""
        columns = zip(*(vars(state).values() for state in states), strict=True)
        return cls(*map(np.concatenate, columns))


S = TypeVar("S", bound=GrammarState)


class Grammar(ABC, Generic[S]):
    """The language of a tokenizer's encodings: the sequences that decode and encode to themselves.

    States are never changed in place, so a generation can be forked by keeping one. They are numpy
    arrays, in which small steps are fastest; ids and masks are tensors on the CPU.
    """

    num_instruments = 0
    _max_notes: IntArray | None = None  # of each instrument that sound at once

    def __init__(self, vocabulary: Vocabulary, families: Mapping[str, range]) -> None:
        self.vocabulary = vocabulary
        self.eos = vocabulary.id("EOS")
        self.pad = vocabulary.pad_id
        self._slices = {name: slice(ids.start, ids.stop) for name, ids in families.items()}
        self._numbers = {name: number for number, name in enumerate(families)}
        self._family = np.full(len(vocabulary), -1)  # number of a token's family, -1 for PAD [V]
        for name, own in self._slices.items():
            self._family[own] = self._numbers[name]

    def _of(self, *families: str) -> BoolArray:
        """Return which tokens are of some families. [V]"""
        return np.isin(self._family, [self._numbers[name] for name in families])

    @abstractmethod
    def _initial_state(self, num_rows: int) -> S:
        """Return the state before any token."""

    @abstractmethod
    def _allowed(self, state: S) -> BoolArray:
        """Return `allowed` for unfinished rows, as a new array; PAD's column is False."""

    @abstractmethod
    def _time_tokens(self, state: S, until: IntArray) -> BoolArray:
        """Return the tokens that only move the time, at most to `until` [B]. -> [B, V]."""

    @abstractmethod
    def _advance(self, state: S, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        """Return the musical time after each of the ids [L, B], and the fields that `S` adds.

        Each [L, B, ...]; fields that no token changes are left out.
        """

    def advance(self, state: S, tokens: Ids) -> S:
        """Return the state after one more token in each row [B]. A finished row takes PAD.

        After a token that is not allowed the state is undefined, but nothing is raised.
        """
        after = self._after(state, np.asarray(tokens)[None])
        return type(state)(**vars(state) | {name: values[0] for name, values in after.items()})

    def _after(self, state: S, ids: IntArray) -> dict[str, Any]:
        """Return the fields that change, after each of the ids [L, B]. [L, B, ...] each."""
        time, changed = self._advance(state, ids)
        positions = np.empty((*ids.shape, 2), np.int64)
        positions[..., 0] = state.positions[:, 0] + (ids != self.pad).cumsum(axis=0)
        positions[..., 1] = time
        finished = state.finished | np.logical_or.accumulate(ids == self.eos)
        return changed | {"positions": positions, "finished": finished, "last": ids}

    def _initial_fields(self, num_rows: int) -> dict[str, Any]:
        """Return the fields of `GrammarState` before any token."""
        zeros = np.zeros(num_rows, np.int64)
        return {
            "positions": np.stack([zeros - 1, zeros], axis=1),
            "finished": zeros > 0,
            "last": zeros + self.pad,
            "limit": zeros + NEVER,
            "start": zeros,
            "may_end": zeros,
            "given": np.full((num_rows, 1), -1),
        }

    def start(self, prompts: Ids) -> S:
        """Return the state after prompts [B, L] of ids; raise `UserError` if one is not allowed."""
        ids, num_rows = np.asarray(prompts).T, len(prompts)
        state, block = self._initial_state(num_rows), max(1, _MASKS // max(1, num_rows))
        for first in range(0, len(ids), block):
            part = ids[first : first + block]
            after, count = self._after(state, part), len(part)
            states = {  # before the first of these tokens, and after each
                name: np.concatenate([value[None], after[name]])
                if name in after
                else np.repeat(value[None], count + 1, axis=0)
                for name, value in vars(state).items()
            }
            before = {n: x[:-1].reshape(part.size, *x.shape[2:]) for n, x in states.items()}
            mask = self.allowed(type(state)(**before)).numpy()
            legal = mask[np.arange(part.size), part.ravel()].reshape(part.shape)
            if not legal.all():
                at, row = (np.argwhere(~legal)[0] + [first, 0]).tolist()
                name = self.vocabulary.token(int(ids[at, row]))
                previous = self.vocabulary.token(int(ids[at - 1, row])) if at else "the beginning"
                raise UserError(
                    f"prompt {row}, position {at}: {name} may not follow {previous} here; "
                    "cut prompts from the tokenizer's own encodings, where a bar begins"
                )
            state = type(state)(**{name: values[-1] for name, values in states.items()})
        return state

    def harmonise(self, state: S, progressions: Sequence[IntArray]) -> S:
        """Return a state from which the chords are those of a progression for each row.

        Each chord comes at its time, unless it is in force already, and no other. Sequences without
        tokens of chords have none.

        Args:
            progressions: grid step, from now on, and index in `CHORDS` of each [N, 2]; empty: any.
        """
        return state

    def give(self, state: S, given: Sequence[IntArray], written: Sequence[Sequence[int]]) -> S:
        """Return a state whose tokens are those given where they are not -1.

        Args:
            given: ids of each row [L], by index of the token; what follows is free.
            written: the decoded tracks that other tokens may be of, for tokens of parts.
        """
        return replace(state, given=padded(given, -1))

    def _next_given(self, state: S) -> IntArray:
        """Return the index in `state.given` of the token to come. [B]"""
        return state.positions[:, 0] + 1

    def _given(self, state: S) -> IntArray:
        """Return the id that is given now and the one after it, -1 for none. [2, B]"""
        at = np.minimum(self._next_given(state)[:, None] + [0, 1], state.given.shape[1] - 1)
        return np.take_along_axis(state.given, at, axis=1).T

    def between(self, state: S, start: Ids | int = 0, end: Ids | int = 0) -> S:
        """Return a state from which pieces go on at `start` and end at `end` or later.

        Args:
            start: musical time [B] before which only tokens that advance the time are allowed.
            end: musical time [B] before which EOS is allowed only where nothing else may follow.
        """
        times = np.zeros_like(state.time)
        return replace(state, start=times + np.asarray(start), may_end=times + np.asarray(end))

    def close(self, state: S, limit: Ids) -> S:
        """Return a state from which the piece ends by the musical time `limit` [B].

        No note that begins from now on sounds longer, and no bar begins then or later.
        """
        return replace(state, limit=np.minimum(state.limit, np.asarray(limit)))

    def shorten(self, state: S, longest: Sequence[Sequence[int]]) -> S:
        """Return a state in which no note of an instrument is longer than its longest before.

        Sequences that do not say where a note ends keep their lengths.

        Args:
            longest: grid steps of the longest note of each instrument, 0 without one [num_tracks],
                for each row; empty: without notes.
        """
        return state

    def bound(self, max_notes: int | Sequence[int]) -> None:
        """From now on let no note begin while as many of its instrument sound.

        Tokens without instruments have no bound.

        Args:
            max_notes: one number, or one for each instrument.

        Raises:
            ParameterError: it has another length.
        """
        number = self.num_instruments
        each = [max_notes] * number if isinstance(max_notes, int) else [*max_notes]
        if number and len(each) != number:
            expected = f"expected one number, or {number}: one for each instrument"
            raise ParameterError("max_notes", each, expected)
        self._max_notes = np.array(each)

    def hold(self, *, tempo: bool, metre: bool) -> None:
        """From now on let all sequences keep their tempo, or their metre.

        One without notes may still take its first tempo. Sequences without tokens of tempo or metre
        keep both in any case.
        """

    def forbid_parallels(self) -> None:
        """From now on let no two voices move in parallel fifths or octaves.

        Tokens without voices have no such rule.
        """

    def allowed(self, state: S) -> Tensor:
        """Return the mask of tokens that may come next, V = len(vocabulary). -> [B, V] bool.

        No row is empty: EOS is allowed where nothing else can follow (a piece of maximum length),
        and a finished row allows only PAD.
        """
        mask, time = self._allowed(state), state.time
        waiting = time < state.start
        if waiting.any():
            mask &= ~waiting[:, None] | self._time_tokens(state, state.start)
            mask[:, self.eos] |= ~mask.any(axis=1)
        early = time < state.may_end
        if early.any():
            may_end = mask[:, self.eos].copy()
            mask[:, self.eos] &= ~early
            mask[:, self.eos] |= may_end & ~mask.any(axis=1)
        if state.given.shape[1] > 1:
            token = self._given(state)[0][:, None]
            mask = np.where(token < 0, mask, np.arange(mask.shape[1]) == token)
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


def padded(rows: Sequence[IntArray], value: int) -> IntArray:
    """Return arrays [L, ...] as one, in which each ends with a value. [B, longest L + 1, ...]."""
    joined = np.full((len(rows), max(map(len, rows)) + 1, *rows[0].shape[1:]), value)
    for row, own in zip(joined, rows, strict=True):
        row[: len(own)] = own
    return joined
