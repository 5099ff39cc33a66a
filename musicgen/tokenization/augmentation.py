"""Augmentation: random changes of training crops that keep them grammatical."""

import numpy as np

from musicgen.tokenization.codec import Codec
from musicgen.tokenization.crops import Crops
from musicgen.tokenization.transposition import Transposition
from musicgen.tokenization.vocabulary import IntArray, within

Rng = np.random.Generator

REACH = {"Pitch": 7, "Duration": 3, "Chord": 140}
"""How far `Augmentation.scramble` moves the ids of a family; all chords are within reach."""

_SCRAMBLE_PROBABILITY = 0.5  # of the values of a crop, a passage, or a bar that returns
_MAX_PASSAGES, _MAX_PASSAGE_BARS = 3, 4


class Augmentation:
    """Random training crops.

    Args:
        codec: the tokenizer.
        crops: its crops.
        max_transposition: the largest transposition of a crop, in semitones.
    """

    def __init__(self, codec: Codec, crops: Crops, max_transposition: int) -> None:
        self.crops, self.max_transposition = crops, max_transposition
        self.families, self._size = codec.families, len(codec.vocabulary)
        self._transposition = Transposition(codec)

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
        down, up = self._transposition.room(window, self.max_transposition)
        return self._transposition.transpose(window, int(rng.integers(-down, up + 1)))

    def changed_crop(
        self, tokens: IntArray, starts: IntArray, length: int, bar_length: int, rng: Rng
    ) -> IntArray:
        """Return the crop with a tokenizer's own random changes, before it is transposed.

        The default changes nothing. [<= length]
        """
        return self.crops.crop(tokens, starts, length)

    def scramble(self, window: IntArray, rng: Rng) -> IntArray:
        """Return a crop of unfamiliar music, in which passages are repeated and varied.

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
        table = np.arange(self._size)
        if rng.random() >= _SCRAMBLE_PROBABILITY:
            return table
        for family, reach in REACH.items():
            ids = window[within(window, self.families.get(family, range(0)))]
            for token in np.unique(ids):
                if rng.random() < share:
                    table[token] = rng.choice(ids[np.abs(ids - token) <= reach])
        return table
