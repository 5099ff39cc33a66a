"""Constraints: what a request asks of the tokens, beyond the tokenizer's grammar."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from musicgen.errors import ParameterError
from musicgen.midi.key import Key
from musicgen.tokenization.grammar import BoolArray, Grammar
from musicgen.tokenization.vocabulary import IntArray

Memory = NDArray[Any] | tuple[NDArray[Any], ...] | None

FREE = -1  # in place of tokens that the model writes

TRIAD, ROOT = (0, 4, 7), (0,)
"""Semitones above the tonic of a major key; a minor key has the third a semitone lower."""


class Constraint:
    """What a request asks of the tokens, beyond the tokenizer's grammar.

    Override the methods that the constraint needs; the defaults restrict nothing. A constraint does
    not change while decoding. What it remembers of each sequence is its memory: an array, or a
    tuple of arrays, whose first dimension is the batch; None: nothing. `start` returns it,
    `advance` replaces it, and the sampler selects its rows: for several samples of a prompt, and
    when sequences end.

    B is the number of sequences in the batch, V the size of the vocabulary.
    """

    def restrict(self, state: Any) -> Any:
        """Return the grammar's state after the prompts with narrower bounds of its own."""
        return state

    def start(self, state: Any, prompts: Sequence[IntArray]) -> Memory:
        """Return the memory after the prompts, a row each; by default the number of the prompt.

        Args:
            state: the grammar's state after the prompts.
            prompts: ids of each prompt. [L]
        """
        return np.arange(len(prompts))

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


class TargetParts(Constraint):
    """Only some of the parts of songs, or of the tracks of bands, are written.

    Args:
        family: the tokens that begin a part, or the notes of a track; as many of each.
        targets: which are written. [B, num_parts]
    """

    def __init__(self, grammar: Grammar[Any], family: str, targets: BoolArray) -> None:
        ids = grammar.slices[family]
        self.is_free = targets.all()
        self.mask = np.ones((len(targets), len(grammar.vocabulary)), bool)
        self.mask[:, ids] = targets.repeat((ids.stop - ids.start) // targets.shape[1], axis=1)

    def allowed(self, state: Any, memory: IntArray) -> BoolArray | None:
        return None if self.is_free else self.mask[memory]


def narrowed_where_possible(allowed: BoolArray, masks: Sequence[BoolArray]) -> BoolArray:
    """Narrow a mask [B, V] by each of others, where that leaves a sequence some token."""
    for mask in masks:
        narrowed = allowed & mask
        allowed = np.where(narrowed.any(axis=1, keepdims=True), narrowed, allowed)
    return allowed


def padded(arrays: Sequence[IntArray], value: int) -> IntArray:
    """Stack arrays [L, ...], each padded with at least one `value`. [B, longest L + 1, ...]"""
    longest = max(map(len, arrays))
    joined = np.full((len(arrays), longest + 1, *arrays[0].shape[1:]), value)
    for target, array in zip(joined, arrays, strict=True):
        target[: len(array)] = array
    return joined


def target_parts(num_parts: int, targets: Sequence[Sequence[int]]) -> BoolArray:
    """Return which of some parts or tracks are written. [B, num_parts]

    Args:
        targets: indices of those of each sequence; empty: all.
    """
    parts = np.arange(num_parts)
    return np.stack([np.isin(parts, some if len(some) else parts) for some in targets])


def notes_of_each(grammar: Grammar[Any], max_notes: int | Sequence[int]) -> IntArray:
    """Return how many notes of each instrument may sound at once. [num_instruments]

    Raises:
        ParameterError: there is neither one number, nor one per instrument.
    """
    number = grammar.num_instruments
    each = [max_notes] * number if isinstance(max_notes, int) else [*max_notes]
    if len(each) != number:
        expected = f"expected one number, or {number}: one for each instrument"
        raise ParameterError("max_notes", each, expected)
    return np.array(each, np.int64)


def tonic_pitches(
    keys: Sequence[Key | None], pitches: range, semitones: Sequence[int] = TRIAD
) -> BoolArray:
    """Return which MIDI pitches belong to the tonic chord of each key, [B, num_pitches].

    Without a key all do.

    Args:
        semitones: of the chord's notes above the tonic of a major key.
    """
    found = np.ones((len(keys), len(pitches)), bool)
    for of_key, key in zip(found, keys, strict=True):
        if key is not None:
            chord = [each - (each == TRIAD[1] and not key.major) for each in semitones]
            of_key[:] = np.isin((np.array(pitches) - key.tonic) % 12, chord)
    return found
