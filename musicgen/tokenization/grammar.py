"""Which tokens may come next, for a batch of sequences at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from musicgen.errors import UserError
from musicgen.tokenization.vocabulary import Vocabulary


@dataclass
class GrammarState:
    """How far each row of a batch has come: tensors whose first dimension is B.

    Attributes:
        time: grid steps from the first bar, of the token just accepted. [B]
        finished: the row has had its EOS. [B]
        last: the token just accepted; PAD before the first. [B]
    """

    time: Tensor
    finished: Tensor
    last: Tensor

    def _tensors(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def select(self, index: Tensor) -> Self:
        """The rows at `index` [N], which may repeat, as a state of N rows."""
        return type(self)(**{name: tensor[index] for name, tensor in self._tensors().items()})

    def to(self, device: torch.device) -> Self:
        return type(self)(**{name: tensor.to(device) for name, tensor in self._tensors().items()})

    @classmethod
    def cat(cls, states: Sequence[Self]) -> Self:
        """The rows of all states, one after the other."""
        columns: dict[str, Any] = {
            f.name: torch.cat([getattr(state, f.name) for state in states]) for f in fields(cls)
        }
        return cls(**columns)


S = TypeVar("S", bound=GrammarState)


class Grammar(ABC, Generic[S]):
    """The language of a tokenizer's encodings: what it allows, encoding gives back unchanged.

    States are never changed in place, so a generation can be forked by keeping one.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.eos = vocabulary.id("EOS")
        self.pad = vocabulary.pad_id

    @abstractmethod
    def _begin(self, num_rows: int) -> S:
        """The state before any token, on the CPU."""

    @abstractmethod
    def _allowed(self, state: S) -> Tensor:
        """`allowed` for rows that are not finished; PAD's column is False."""

    @abstractmethod
    def _passing(self, state: S, until: Tensor) -> Tensor:
        """Tokens that add nothing, and lead to the time `until` [B] or towards it. -> [B, V]."""

    @abstractmethod
    def advance(self, state: S, tokens: Tensor) -> S:
        """The state after one more token in each row [B]. A finished row takes PAD.

        What follows a token that was not allowed is undefined, but does not raise.
        """

    def _after_prompt(self, state: S, prompts: Tensor) -> S:
        """What a prompt [B, L] settles for its continuation."""
        return state

    def start(self, prompts: Tensor) -> S:
        """The state after prompts [B, L] of ids; L may be 0.

        Raises:
            UserError: a prompt that the grammar does not allow.
        """
        rows = prompts.detach().cpu().long()  # many small steps: quicker off an accelerator
        outside = (rows < 0) | (rows >= len(self.vocabulary))
        if outside.any():
            row, at = outside.nonzero()[0].tolist()
            raise UserError(
                f"prompt {row}, position {at}: no such token id as {int(rows[row, at])}; "
                "use the tokenizer that the model was trained with"
            )
        legal, state = self._walk(rows)
        if not legal.all():
            row, at = (~legal).nonzero()[0].tolist()
            name = self.vocabulary.token(int(rows[row, at]))
            before = self.vocabulary.token(int(rows[row, at - 1])) if at else "the beginning"
            raise UserError(
                f"prompt {row}, position {at}: {name} may not follow {before} here; "
                "cut prompts from the tokenizer's own encodings, where a bar begins"
            )
        return self._after_prompt(state, rows).to(prompts.device)

    def accepts(self, rows: Tensor) -> Tensor:
        """Whether each row [B, L] is a piece or the beginning of one, PAD at its end aside. -> [B].

        The answer is on the CPU. Many rows at a time take hardly longer than one.
        """
        rows = rows.detach().cpu().long()
        inside = (rows >= 0) & (rows < len(self.vocabulary))
        legal, _ = self._walk(torch.where(inside, rows, self.pad))
        ended = (rows == self.pad).flip(1).cumprod(1).flip(1).bool()
        return ((legal & inside) | ended).all(dim=1)

    def _walk(self, rows: Tensor) -> tuple[Tensor, S]:
        """Which tokens [B, L] were allowed where they stand [B, L], and the state after them."""
        state = self._begin(len(rows))
        legal = torch.ones_like(rows, dtype=torch.bool)
        for at in range(rows.shape[1]):
            tokens = rows[:, at]
            legal[:, at] = self.allowed(state).gather(1, tokens[:, None])[:, 0]
            state = self.advance(state, tokens)
        return legal, state

    def allowed(self, state: S, *, end: bool = True, not_before: Tensor | None = None) -> Tensor:
        """Mask of the tokens that may come next, V = len(vocabulary). -> [B, V] bool.

        No row is empty: without `end`, EOS stays where nothing else can follow (a piece at its
        greatest length), and a finished row allows PAD alone.

        Args:
            end: whether EOS may come.
            not_before: musical time [B] before which nothing may be added: until a row gets
                there, only tokens that pass the time.
        """
        mask = self._allowed(state)
        if not_before is not None:
            waiting = (state.time < not_before)[:, None]
            mask &= ~waiting | self._passing(state, not_before)
        if not end:
            others = mask.clone()
            others[:, self.eos] = False
            mask = torch.where(others.any(dim=1, keepdim=True), others, mask)
        mask[:, self.pad] = False
        mask &= ~state.finished[:, None]
        mask[:, self.pad] = state.finished
        return mask
