"""Rows of a batch that is sampled: what each continues, and what it has drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from musicgen.generation.prompts import Prompt
from musicgen.generation.selection import Selection
from musicgen.models import ModelState
from musicgen.random import NoiseKey
from musicgen.tokenization.gap import Gap
from musicgen.tokenization.vocabulary import IntArray


class Draft(NamedTuple):
    """A continuation so far: its tokens [L], the prompt's included, and what chose among several.

    A sample begins as a draft with the prompt's own array.
    """

    prompt: Prompt
    sample: int
    tokens: IntArray
    selections: tuple[Selection, ...] = ()


@dataclass(eq=False)
class Context:
    """Tokens to continue, and where their continuations begin and end.

    Attributes:
        tokens: [L] ids, the prompt's first.
        start: musical time in grid steps before which nothing may be added.
        end: musical time at which continuations end, without the token that reaches it.
        silent_by: musical time after which no new note sounds, see `Grammar.close`.
        limit: how many tokens may be added.
        gap: what they fill; None: they go on freely.
        follow: returns what comes behind a gap [M], given the ids up to the one that reaches its
            end [L]; it is added, too. None: nothing comes.
        earlier: a context whose tokens these begin with, and which has been read.
        state: of the model after the tokens, once they have been read.
    """

    prompt: Prompt
    tokens: IntArray
    start: int
    end: int | None
    silent_by: int | None
    limit: int
    gap: Gap | None = None
    follow: Callable[[IntArray], IntArray] | None = None
    earlier: Context | None = None
    state: ModelState | None = None


@dataclass(eq=False)
class Row:
    """A row of a batch: what it continues, the key of its random numbers, and what it has drawn.

    Attributes:
        tokens: new ids.
        time: musical time of the last of them, in grid steps.
        log_probs: their log-probabilities under the model alone, in nats, without grammar,
            temperature and filters; empty unless candidates are compared.
        given: the next tokens, -1 for each that the model chooses; when they end it chooses all.
        filled: all ids up to the one that reaches the end of the gap [L]; None: it goes on.
        log_weight: the log-probability under the model that each of its tokens respects the notes
            that are kept in the gap, and of what follows the gap.
    """

    context: Context
    key: NoiseKey
    tokens: list[int] = field(default_factory=list)
    time: int = 0
    log_probs: list[float] = field(default_factory=list)
    given: deque[int] = field(default_factory=deque)
    filled: IntArray | None = None
    log_weight: float = 0.0

    def __post_init__(self) -> None:
        gap = self.context.gap
        if gap is not None and gap.given is not None:
            self.given.extend(gap.given.tolist())

    @property
    def all_tokens(self) -> IntArray:
        return np.append(self.context.tokens, np.array(self.tokens, dtype=np.int64))

    @property
    def weighs(self) -> bool:
        """Whether the next token counts for the weight."""
        gap = self.context.gap
        return self.filled is not None or (gap is not None and gap.num_kept > 0)

    @property
    def is_complete(self) -> bool:
        """Whether its gap is filled, and what follows that has been added."""
        return self.filled is not None and not self.given

    def add(self, token: int, time: int, log_p: float | None, mass: float | None) -> None:
        """Add a token that leads to a time.

        Args:
            log_p: its log-probability under the model alone; None: it is not needed.
            mass: the logarithm of the probability of all tokens that were allowed.
        """
        self.tokens.append(token)
        self.time = time
        if log_p is not None:
            self.log_probs.append(log_p)
        if self.weighs:
            assert mass is not None
            self.log_weight += mass
        if self.given:
            self.given.popleft()

    def leaves_gap(self, token: int, time: int) -> bool:
        """Return whether a token that leads to a time gives way to what follows the gap."""
        assert self.context.follow is not None
        assert self.context.end is not None
        if self.filled is not None or time < self.context.end:
            return False
        self.filled = np.append(self.all_tokens, token)
        self.given.extend(self.context.follow(self.filled).tolist())
        return bool(self.given)
