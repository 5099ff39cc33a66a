"""Crops: parts of an encoding that begin at a bar and are grammatical by themselves."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np

from musicgen.tokenization.vocabulary import IntArray, within


class Crops(ABC):
    """Cuts complete encodings at their bars."""

    @abstractmethod
    def starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        """Return where crops of a complete encoding [L] may begin, for each bar. [num_bars, 2].

        The columns are a token index, and the offset in grid steps that is added to the times of
        the tokens from there on so that they count from the bar.

        Args:
            bar_length: grid steps in a bar, for tokens without bars.
        """

    def crop(self, tokens: IntArray, starts: IntArray, length: int) -> IntArray:
        """Return the crop from a bar on: grammatical, a new array. [<= length]

        Args:
            tokens: a complete encoding. [L]
            starts: `starts` of the encoding, from the bar on; a piece without bars is its own crop.
        """
        if not len(starts):
            return tokens[:length].astype(np.int64)
        start = int(starts[0, 0])
        return tokens[start : start + length].astype(np.int64)

    def from_bar(self, tokens: IntArray, bar: int, bar_length: int) -> IntArray:
        """Return the ids of a piece [L] from a bar on, before which no note begins. -> [<= L]."""
        starts = self.starts(tokens, bar_length=bar_length)
        return self.crop(tokens, starts[bar:], len(tokens))


class BarCrops(Crops):
    """Crops of tokens with bars.

    A prompt from the middle of a piece begins with the key, tempo and chord in force there.
    Training crops begin with the tokens of their first bar alone.

    Args:
        families: the ids of each family.
        header: the families whose value in force a first bar has, in this order; of `Part` it is
            the last one, which is that of chords, and of `Beat` the first one.
    """

    def __init__(self, families: Mapping[str, range], header: Sequence[str]) -> None:
        self.families, self.header = families, header

    def starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        bars = np.flatnonzero(within(tokens, self.families["Bar"]))
        return np.stack([bars, np.zeros_like(bars)], axis=1)

    def from_bar(self, tokens: IntArray, bar: int, bar_length: int) -> IntArray:
        """Return the ids from a bar on; the bar begins with the values in force there."""
        start = self.starts(tokens, bar_length=bar_length)[bar, 0]
        return self.with_header(tokens[start:].astype(np.int64), tokens[:start])

    def with_header(self, window: IntArray, before: IntArray) -> IntArray:
        """Return a window that begins with a bar, with the values in force there in its header."""
        first_ids = {
            "Part": self.families["Part"].stop - 1,  # of chords
            "Beat": self.families["Beat"].start,
        }
        families = dict(self.families)
        for name, token in first_ids.items():
            families[name] = range(token, token + 1)
        of_header = {token for name in self.header for token in families[name]}
        old_header = list(takewhile(of_header.__contains__, window[1:].tolist()))
        known = np.array([*before, *old_header], np.int64)
        header: list[int] = []
        for name in reversed(self.header):
            if name in first_ids:  # only where another token of the header follows
                is_needed = len(header) > 0 or first_ids[name] in old_header
                kept = [first_ids[name]] if is_needed else []
            else:
                kept = known[within(known, families[name])][-1:].tolist()
            header = kept + header
        rest = window[1 + len(old_header) :]
        return np.concatenate([window[:1], np.array(header, np.int64), rest])


class CropsWithHeader(BarCrops):
    """Crops of bars; training crops also begin with the values in force."""

    def crop(self, tokens: IntArray, starts: IntArray, length: int) -> IntArray:
        window = super().crop(tokens, starts, length)
        if not len(starts):
            return window
        return self.with_header(window, tokens[: starts[0, 0]])[:length]
