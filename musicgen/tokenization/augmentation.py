"""Training crops: parts of an encoding that begin at a bar, and random changes of them.

Crops are grammatical by themselves, with or without augmentation.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np

from musicgen.tokenization.chords import NO_CHORD, QUALITIES
from musicgen.tokenization.codec import Codec
from musicgen.tokenization.vocabulary import IntArray, within

Rng = np.random.Generator

REACH = {"Pitch": 7, "Duration": 3, "Chord": 140}
"""How far `Augmentation.scramble` moves the ids of a family; all chords are within reach."""

_SCRAMBLE_PROBABILITY = 0.5  # of the values of a crop, a passage, or a bar that returns
_MAX_PASSAGES, _MAX_PASSAGE_BARS = 3, 4

_NUM_FIFTHS = 12  # keys that sound the same are one
_FIFTHS_PER_SEMITONE = 7  # modulo 12
_TRITONE = 6


class Crops(ABC):
    """Cuts complete encodings at their bars."""

    @abstractmethod
    def starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        """Return where crops of a complete encoding [L] may begin, one per bar. [num_bars, 2].

        The columns are a token index, and the offset in grid steps that makes the times of the
        tokens from there on count from the bar.

        Args:
            bar_length: grid steps in a bar, for tokens without bars.
        """

    def crop(self, tokens: IntArray, starts: IntArray, length: int) -> IntArray:
        """Return the crop from a bar on: grammatical, a new array. [<= length]

        Args:
            tokens: a complete encoding. [L]
            starts: `starts` of the encoding, from the bar on; a piece without bars is its own crop.
        """
        start = int(starts[0, 0]) if len(starts) else 0
        return tokens[start : start + length].astype(np.int64)

    def from_bar(self, tokens: IntArray, bar: int, bar_length: int) -> IntArray:
        """Return the ids of a piece [L] from a bar on; no note begins before it. -> [<= L]."""
        starts = self.starts(tokens, bar_length=bar_length)
        return self.crop(tokens, starts[bar:], len(tokens))


class BarCrops(Crops):
    """Crops of tokens with bars.

    A prompt from the middle of a piece begins with the key, tempo and chord in force there.

    Args:
        families: the ids of each family.
        header: the families whose value in force a first bar has, in this order; `Part` stands for
            the part of chords, the last one, and `Beat` for the first beat.
        in_training: whether training crops also begin with the values in force, or with the tokens
            of their first bar alone.
    """

    def __init__(
        self, families: Mapping[str, range], header: Sequence[str], in_training: bool = False
    ) -> None:
        self.families, self.header, self.in_training = families, header, in_training

    def starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        bars = np.flatnonzero(within(tokens, self.families["Bar"]))
        return np.stack([bars, np.zeros_like(bars)], axis=1)

    def crop(self, tokens: IntArray, starts: IntArray, length: int) -> IntArray:
        window = super().crop(tokens, starts, length)
        if self.in_training and len(starts):
            return self.with_header(window, tokens[: starts[0, 0]])[:length]
        return window

    def from_bar(self, tokens: IntArray, bar: int, bar_length: int) -> IntArray:
        """Return the ids from a bar on; the bar begins with the values in force there."""
        start = self.starts(tokens, bar_length=bar_length)[bar, 0]
        return self.with_header(tokens[start:].astype(np.int64), tokens[:start])

    def with_header(self, window: IntArray, before: IntArray) -> IntArray:
        """Return a window that begins with a bar, with the values in force there in its header."""
        fixed = {"Part": self.families["Part"].stop - 1, "Beat": self.families["Beat"].start}
        ids = dict(self.families) | {name: range(i, i + 1) for name, i in fixed.items()}
        of_header = {token for name in self.header for token in ids[name]}
        opening = 1 + int(within(window[1:2], self.families.get("Left", range(0))).sum())
        old_header = list(takewhile(of_header.__contains__, window[opening:].tolist()))
        known = np.array([*before, *old_header], np.int64)
        header: list[int] = []
        for name in reversed(self.header):
            if name not in fixed:
                header = known[within(known, ids[name])][-1:].tolist() + header
            elif header or fixed[name] in old_header:  # another token of the header follows
                header = [fixed[name], *header]
        rest = window[opening + len(old_header) :]
        return np.concatenate([window[:opening], np.array(header, np.int64), rest])


class Augmentation:
    """Random training crops.

    Args:
        codec: the tokenizer.
        crops: its crops.
        max_transposition: the largest transposition of a crop, in semitones.
    """

    def __init__(self, codec: Codec, crops: Crops, max_transposition: int) -> None:
        self.codec, self.crops, self.max_transposition = codec, crops, max_transposition
        self.families = codec.families

    def crop(
        self, tokens: IntArray, starts: IntArray, length: int, *, bar_length: int, rng: Rng
    ) -> IntArray:
        """Return a random training crop from a bar on: grammatical, a new array. [<= length]

        All pitches are transposed by one interval that keeps them in range.

        Args:
            tokens: a complete encoding. [L]
            starts: `Crops.starts`, from the bar on; a piece without bars is its own crop.
            bar_length: grid steps in a bar.
        """
        if not len(starts):
            return self.crops.crop(tokens, starts, length)
        window = self.changed_crop(tokens, starts, length, bar_length, rng)
        ranks, most = self.codec.pitch_ranks, self.max_transposition
        present = ranks[window]
        present = present[present >= 0]
        down, up = present.min(initial=most), (ranks.max() - present).min(initial=most)
        return transpose(self.codec, window, int(rng.integers(-down, up + 1)))

    def changed_crop(
        self, tokens: IntArray, starts: IntArray, length: int, bar_length: int, rng: Rng
    ) -> IntArray:
        """Return the crop with a tokenizer's own random changes, before it is transposed.

        The default changes nothing. [<= length]
        """
        return self.crops.crop(tokens, starts, length)

    def scramble(self, window: IntArray, rng: Rng) -> IntArray:
        """Return a crop of unfamiliar music with repeated and varied passages.

        One to three passages of one to four bars are written over other bars of the crop, twice.
        Random maps change the pitches, durations and chords of half of the crops and passages, and
        of half of the bars that return, where they leave some unchanged. A model can predict such a
        crop only by its repetitions, which trains a copy head: it learns to follow a repetition,
        and that the repetition may depart from what it repeats. [L] -> [any length]
        """
        bar_lines = np.flatnonzero(within(window, self.families.get("Bar", range(0))))
        start, *bars = np.split(self._random_map(window, rng)[window], bar_lines)
        num_whole = len(bars) - 1  # the last may be cut
        for _ in range(rng.integers(1, _MAX_PASSAGES + 1)):
            size = int(rng.integers(1, _MAX_PASSAGE_BARS + 1))
            if num_whole < 2 * size:
                continue
            first, second = np.sort(rng.integers(num_whole - 2 * size + 1, size=2))
            table = self._random_map(window, rng)
            passage = [table[bar] for bar in bars[first : first + size]]
            bars[first : first + size] = passage
            bars[second + size : second + 2 * size] = [
                self._random_map(window, rng, share=rng.random())[bar] for bar in passage
            ]
        return np.concatenate([start, *bars])

    def _random_map(self, window: IntArray, rng: Rng, share: float = 1.0) -> IntArray:
        """Return the new id of each id: all unchanged with probability .5. [V]

        Ids of pitches, durations and chords become others near them that the window has.

        Args:
            share: probability that an id changes, if any do.
        """
        table = np.arange(len(self.codec.vocabulary))
        if rng.random() >= _SCRAMBLE_PROBABILITY:
            return table
        for family, reach in REACH.items():
            ids = window[within(window, self.families.get(family, range(0)))]
            for token in np.unique(ids):
                if rng.random() < share:
                    table[token] = rng.choice(ids[np.abs(ids - token) <= reach])
        return table


def transpose(codec: Codec, tokens: IntArray, semitones: int) -> IntArray:
    """Return ids with pitches, chords and keys moved by semitones; drums stay. [L] -> [L]

    The pitches must stay in range.
    """
    ranks, families = codec.pitch_ranks, codec.families
    table = np.arange(len(ranks)) + semitones * (ranks >= 0)
    if chords := families.get("Chord"):
        moved = (np.arange(NO_CHORD) + semitones * len(QUALITIES)) % NO_CHORD
        table[chords[:NO_CHORD]] = chords.start + moved
    if keys := families.get("Key"):  # all twelve, by fifths; then those of the minor keys
        minor, fifths = np.divmod(np.arange(len(keys)), _NUM_FIFTHS)
        moved = (fifths + _FIFTHS_PER_SEMITONE * semitones) % _NUM_FIFTHS
        table[keys] = keys.start + _NUM_FIFTHS * minor + moved
    return table[tokens]


def tritone(codec: Codec) -> IntArray:
    """Return each id with its pitch, if it has one, a tritone higher or lower, in range. [V]"""
    ranks = codec.pitch_ranks
    interval = np.where(2 * ranks > ranks.max(), -_TRITONE, _TRITONE)
    return np.arange(len(ranks)) + interval * (ranks >= 0)


def relative_key(codec: Codec) -> IntArray:
    """Return each id with its key, if it is one with a mode, changed to its relative key. [V]"""
    table, keys = np.arange(len(codec.vocabulary)), codec.families["Key"]
    table[keys] = keys.start + (np.arange(len(keys)) + _NUM_FIFTHS) % len(keys)
    return table
