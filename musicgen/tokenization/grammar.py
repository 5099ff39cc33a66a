"""Grammars: which tokens may follow, for a batch of sequences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from musicgen.errors import UserError
from musicgen.tokenization.vocabulary import IntArray, Vocabulary


@dataclass
class GrammarState:
    """The state of each row of a batch: tensors whose first dimension is B.

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

    positions: Tensor
    finished: Tensor
    last: Tensor
    limit: Tensor
    start: Tensor
    may_end: Tensor
    given: Tensor

    @property
    def time(self) -> Tensor:
        return self.positions[:, 1]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fields and `time` as arrays that share memory."""
        found = {name: tensor.numpy() for name, tensor in vars(self).items()}
        found["time"] = found["positions"][:, 1]
        return found

    def select(self, index: Tensor) -> Self:
        """Return the rows at `index` [N], which may repeat, as a state of N rows."""
        return type(self)(**{name: tensor[index] for name, tensor in vars(self).items()})

    @classmethod
    def cat(cls, states: Sequence[Self]) -> Self:
        """Concatenate the rows of several states."""
        columns = zip(*(vars(state).values() for state in states), strict=True)
        return cls(*map(torch.cat, columns))


S = TypeVar("S", bound=GrammarState)

NEVER = 2**61  # a float, too, as padding is, and may be doubled
_BLOCK = 256
"""Tokens of a prompt that are checked at once."""


class Grammar(ABC, Generic[S]):
    """The language of a tokenizer's encodings: the sequences that decode and encode to themselves.

    States are never changed in place, so a generation can be forked by keeping one. All tensors are
    on the CPU, where many small steps are the fastest.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.eos = vocabulary.id("EOS")
        self.pad = vocabulary.pad_id

    @abstractmethod
    def _initial_state(self, num_rows: int) -> S:
        """Return the state before any token."""

    @abstractmethod
    def _allowed(self, state: S) -> Tensor:
        """Return `allowed` for unfinished rows, as a new tensor; PAD's column is False."""

    @abstractmethod
    def _time_tokens(self, state: S, until: Tensor) -> Tensor:
        """Return the tokens that only move the time, at most to `until` [B]. -> [B, V]."""

    @abstractmethod
    def tables(self) -> dict[str, Any]:
        """Return the grammar's constants as plain data, for programs in other languages."""

    @abstractmethod
    def advance(self, state: S, tokens: Tensor) -> S:
        """Return the state after one more token in each row [B]. A finished row takes PAD.

        After a token that is not allowed the state is undefined, but nothing is raised.
        """

    @abstractmethod
    def _scan(self, state: S, tokens: Tensor) -> S:
        """Return the state before each of some tokens [B, L] and after the last, as of `advance`.

        Its fields have the dimensions [B, L + 1, ...].
        """

    def _scan_fields(self, state: S, tokens: Tensor, time: Tensor) -> dict[str, Tensor]:
        """Return the fields of `GrammarState` for `_scan`; musical time [B, L + 1]."""
        index = cumulate(state.positions[:, 0], tokens != self.pad)
        return {
            "positions": torch.stack([index, time], dim=2),
            "finished": cumulate(state.finished.long(), tokens == self.eos) > 0,
            "last": torch.cat([state.last[:, None], tokens], dim=1),
            **{
                name: getattr(state, name)[:, None].expand_as(index)
                for name in ("limit", "start", "may_end")
            },
            "given": state.given[:, None].expand(*index.shape, -1),
        }

    def _initial_fields(self, num_rows: int) -> dict[str, Tensor]:
        """Return the fields of `GrammarState` before any token."""
        return {
            "positions": torch.tensor([[-1, 0]]).repeat(num_rows, 1),
            "finished": torch.zeros(num_rows, dtype=torch.bool),
            "last": torch.full((num_rows,), self.pad),
            "limit": torch.full((num_rows,), NEVER),
            "start": torch.zeros(num_rows, dtype=torch.long),
            "may_end": torch.zeros(num_rows, dtype=torch.long),
            "given": torch.full((num_rows, 1), -1),
        }

    def _next_fields(self, state: S, tokens: Tensor, time: Tensor) -> dict[str, Tensor]:
        """Return the fields of `GrammarState` after tokens [B] at musical time [B]."""
        index = state.positions[:, 0] + (tokens != self.pad)
        return {
            "positions": torch.stack([index, time], dim=1),
            "finished": state.finished | (tokens == self.eos),
            "last": tokens,
        }

    def _after_prompt(self, state: S, prompts: Tensor) -> S:
        """Apply the restrictions of whole prompts [B, L] on their continuations."""
        return state

    def start(self, prompts: Tensor) -> S:
        """Return the state after prompts [B, L] of ids; raise `UserError` if one is not allowed."""
        legal, state = self._walk(prompts)
        if not legal.all():
            row, at = (~legal).nonzero()[0].tolist()
            name = self.vocabulary.token(int(prompts[row, at]))
            before = self.vocabulary.token(int(prompts[row, at - 1])) if at else "the beginning"
            raise UserError(
                f"prompt {row}, position {at}: {name} may not follow {before} here; "
                "cut prompts from the tokenizer's own encodings, where a bar begins"
            )
        return self._after_prompt(state, prompts)

    def hold(self, state: S, *, tempo: bool, metre: bool) -> S:
        """Return a state from which all continuations keep the tempo, or the metre, of their row.

        A row without notes may still take its first tempo. Sequences without tokens of tempo or
        metre keep both in any case.
        """
        return state

    def harmonise(self, state: S, progressions: Sequence[IntArray]) -> S:
        """Return a state from which the chords are those of a progression for each row.

        Each chord comes at its time, unless it is in force already, and no other. Sequences without
        tokens of chords have none.

        Args:
            progressions: grid step, from now on, and index in `CHORDS` of each chord [N, 2]; empty:
                any chords.
        """
        return state

    def give(self, state: S, given: Sequence[IntArray]) -> S:
        """Return a state whose tokens are those given where they are not -1.

        Args:
            given: ids of each row [L], by index of the token; what follows is free.
        """
        rows = pad_sequence(list(map(torch.from_numpy, given)), True, padding_value=-1)
        return replace(state, given=pad(rows, (0, 1), value=-1))

    def between(self, state: S, start: Tensor | int = 0, end: Tensor | int = 0) -> S:
        """Return a state from which pieces go on at `start` and end at `end` or later.

        Args:
            start: musical time [B] before which only tokens that advance the time are allowed.
            end: musical time [B] before which EOS is allowed only where nothing else may follow.
        """
        times = torch.zeros_like(state.time)
        return replace(state, start=times + start, may_end=times + end)

    def close(self, state: S, limit: Tensor) -> S:
        """Return a state from which the piece ends by the musical time `limit` [B].

        No note that begins from now on sounds longer, and no bar begins then or later.
        """
        return replace(state, limit=torch.minimum(state.limit, limit))

    def bound(self, max_notes: int | Sequence[int]) -> None:
        """From now on let no note begin while as many of its instrument sound.

        Tokens without instruments have no bound.

        Args:
            max_notes: one number, or one for each instrument.

        Raises:
            ParameterError: it has another length.
        """

    def forbid_parallels(self) -> None:
        """From now on let no two voices move in parallel fifths or octaves.

        Tokens without voices have no such rule.
        """

    def accepts(self, rows: Tensor) -> Tensor:
        """Return whether each row [B, L] is a prefix of a piece, then PAD. -> [B]."""
        legal, _ = self._walk(rows)
        ended = (rows == self.pad).flip(1).cumprod(1).flip(1).bool()
        return (legal | ended).all(dim=1)

    def _walk(self, rows: Tensor) -> tuple[Tensor, S]:
        """Return whether each token [B, L] was allowed [B, L], and the state after the last."""
        state, legal = self._initial_state(len(rows)), []
        for block in rows.split(max(1, _BLOCK // max(1, len(rows))), dim=1):
            states = vars(self._scan(state, block))
            before = {name: each[:, :-1].flatten(0, 1) for name, each in states.items()}
            allowed = self.allowed(type(state)(**before)).gather(1, block.reshape(-1, 1))
            legal.append(allowed.view(block.shape))
            state = type(state)(**{name: each[:, -1] for name, each in states.items()})
        return torch.cat(legal, dim=1), state

    def allowed(self, state: S) -> Tensor:
        """Return the mask of tokens that may come next, V = len(vocabulary). -> [B, V] bool.

        No row is empty: EOS is allowed where nothing else can follow (a piece of maximum length),
        and a finished row allows only PAD.
        """
        mask, time = self._allowed(state), state.time
        waiting = time < state.start
        if waiting.any():
            mask &= ~waiting[:, None] | self._time_tokens(state, state.start)
            mask[:, self.eos] |= ~mask.any(dim=1)
        early = time < state.may_end
        if early.any():
            may_end = mask[:, self.eos].clone()
            mask[:, self.eos] &= ~early
            mask[:, self.eos] |= may_end & ~mask.any(dim=1)
        num_given = state.given.shape[1] - 1
        if num_given:
            following = (state.positions[:, :1] + 1).clamp(max=num_given)
            token = state.given.gather(1, following)
            is_next = torch.arange(mask.shape[1]) == token
            mask = torch.where(token < 0, mask, is_next)
        if state.finished.any():
            mask[state.finished] = False
            mask[:, self.pad] = state.finished
        return mask


def padded_rows(rows: Sequence[IntArray]) -> Tensor:
    """Return the events [N, K] of each row as one tensor that ends with NEVER. [B, N + 1, K]."""
    tensors = list(map(torch.from_numpy, rows))
    joined = pad_sequence(tensors, batch_first=True, padding_value=NEVER)
    return pad(joined, (0, 0, 0, 1), value=NEVER)


def cumulate(start: Tensor, steps: Tensor) -> Tensor:
    """Return the sums so far, from `start` [B] on, of steps [B, L]. -> [B, L + 1]."""
    return torch.cat([start[:, None], steps], dim=1).cumsum(dim=1)


def latest(start: Tensor, changes: Tensor, values: Tensor) -> Tensor:
    """Return `start` [B], then the last of values [B, L] where `changes`. -> [B, L + 1]."""
    index = torch.arange(1, changes.shape[1] + 1).where(changes, 0)
    at = torch.nn.functional.pad(index, (1, 0)).cummax(dim=1).values
    return torch.cat([start[:, None], values], dim=1).gather(1, at)


def latest_rows(start: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """Return `start` [B, N], then the same with values [B, L] set one by one. -> [B, L + 1, N].

    Args:
        columns: which of the N entries each value replaces; -1: none. [B, L]
    """
    row, at = (columns >= 0).nonzero(as_tuple=True)
    entry = row * start.shape[1] + columns[row, at]
    entry, order = entry.sort(stable=True)
    row, at, after = row[order], at[order], values[row, at][order]
    before = start.flatten()[entry]
    again = (entry.diff() == 0).nonzero()[:, 0]
    before[again + 1] = after[again]
    # Sums along the last dimension are several times as fast as along another.
    steps = start.new_zeros(*start.shape, columns.shape[1] + 1)
    steps[:, :, 0] = start
    steps[row, columns[row, at], at + 1] = after - before
    return steps.cumsum(dim=2).transpose(1, 2).contiguous()
