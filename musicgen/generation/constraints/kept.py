"""Tokens that are kept: a piece of which some parts stay and the others are written."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from musicgen.generation.constraints.base import Constraint
from musicgen.tokenization.grammar import BoolArray, Grammar, GrammarState, padded
from musicgen.tokenization.songs.grammar import SongsGrammar, SongsState
from musicgen.tokenization.vocabulary import IntArray

FREE = -1  # in place of a token that the model writes


def target_parts(num_parts: int, targets: Sequence[Sequence[int]]) -> BoolArray:
    """Return which of some parts or tracks are written. [B, num_parts]

    Args:
        targets: indices of those of each sequence; empty: all.
    """
    parts = np.arange(num_parts)
    return np.stack([np.isin(parts, some if len(some) else parts) for some in targets])


class KeptTokens(Constraint):
    """The tokens are those of a piece, except where the model writes; for tokens of chorales.

    Args:
        conditioning: ids of each sequence by index, FREE where the model writes; later tokens are
            free. [L]
    """

    def __init__(self, grammar: Grammar[Any], conditioning: Sequence[IntArray]) -> None:
        self.conditioning = padded(conditioning, FREE)
        self._tokens = np.arange(len(grammar.vocabulary))

    def start(self, state: GrammarState, prompts: Any) -> IntArray:
        return self.conditioning

    def allowed(self, state: GrammarState, memory: IntArray) -> BoolArray:
        at = np.minimum(state.positions[:, :1] + 1, memory.shape[1] - 1)
        token = np.take_along_axis(memory, at, axis=1)
        return (token == FREE) | (self._tokens == token)


class TargetParts(Constraint):
    """Only some of the parts of songs, or of the tracks of bands, are written.

    Args:
        family: the tokens that begin a part, or the notes of a track; as many of each.
        targets: which are written. [B, num_parts]
    """

    def __init__(self, grammar: Grammar[Any], family: str, targets: BoolArray) -> None:
        ids = grammar.slices[family]
        ids_of_each = (ids.stop - ids.start) // targets.shape[1]
        self.mask = np.ones((len(targets), len(grammar.vocabulary)), bool)
        self.mask[:, ids] = targets.repeat(ids_of_each, axis=1)

    def start(self, state: GrammarState, prompts: Any) -> BoolArray:
        return self.mask

    def allowed(self, state: GrammarState, memory: BoolArray) -> BoolArray:
        return memory


class KeptSongPartsMemory(NamedTuple):
    """Where each sequence is among its conditioning tokens."""

    next: IntArray  # index of the conditioning token to come, or of the FREE in its place [B, 1]
    conditioning: IntArray  # ids, FREE where the model writes [B, L]
    targets: BoolArray  # the parts that are written [B, num_parts]

    def tokens(self) -> tuple[IntArray, IntArray]:
        """Return the next two conditioning tokens, FREE for none. [B, 1] each"""
        at = np.minimum(self.next + np.arange(2), self.conditioning.shape[1] - 1)
        now, after = np.split(np.take_along_axis(self.conditioning, at, axis=1), 2, axis=1)
        return now, after


class KeptSongParts(Constraint):
    """Some parts of a song are kept; after them in each bar the others are written.

    In place of each FREE any number of tokens of the target parts, and of chords, may come. The
    token after FREE, which begins the next bar, ends them. If the next bar has another time
    signature, its token also gets the probability of a bar in the present time signature. A mask
    alone would share that among the notes, and they would pile up.

    Args:
        conditioning: ids of each sequence, FREE where the model writes. [L]
        targets: the parts that are written. [B, num_parts]
    """

    def __init__(
        self, grammar: SongsGrammar, conditioning: Sequence[IntArray], targets: BoolArray
    ) -> None:
        self.grammar, self.targets = grammar, targets
        self.conditioning = padded(conditioning, FREE)
        self._tokens = np.arange(len(grammar.vocabulary))
        self._in_part = ~grammar.of_families("Bar", "Key", "Tempo", "Part", "EOS")  # [V]
        self._is_bar = torch.from_numpy(grammar.of_families("Bar"))  # [V]

    def start(self, state: SongsState, prompts: Any) -> KeptSongPartsMemory:
        return KeptSongPartsMemory(state.positions[:, :1] + 1, self.conditioning, self.targets)

    def advance(
        self, state: SongsState, memory: KeptSongPartsMemory, tokens: IntArray
    ) -> KeptSongPartsMemory:
        now, after = memory.tokens()
        ends_free = (now == FREE) & (tokens[:, None] == after)
        passed = np.where(now != FREE, 1, 2 * ends_free)
        return memory._replace(next=memory.next + passed)

    def allowed(self, state: SongsState, memory: KeptSongPartsMemory) -> BoolArray:
        now, after = memory.tokens()
        if (now != FREE).all():
            return self._tokens == now
        targets = memory.targets
        free = (after == FREE) | (self._tokens == after)  # [B, V]
        part = np.maximum(state.part, 0)[:, None]
        free |= np.take_along_axis(targets, part, axis=1) & self._in_part
        parts = self.grammar.slices["Part"]
        # Kept parts come before target parts.
        free[:, parts] |= targets
        free[:, parts] &= self.grammar.may_follow(state.part, leading=~targets)
        return np.where(now == FREE, free, self._tokens == now)

    def redirect(self, state: SongsState, logits: Tensor, allowed: Tensor) -> Tensor:
        first = self.grammar.slices["Bar"].start
        same = torch.from_numpy(first + np.maximum(state.time_signature, 0))[:, None]
        next_bar = allowed & self._is_bar
        is_other = next_bar.any(dim=1, keepdim=True) & ~next_bar.gather(1, same)
        if not is_other.any():
            return logits
        together = torch.logaddexp(logits, logits.gather(1, same))
        return torch.where(next_bar & is_other, together, logits)
