"""Transposition of token ids."""

import numpy as np

from musicgen.tokenization.chords.symbols import NO_CHORD, QUALITIES
from musicgen.tokenization.codec import Codec
from musicgen.tokenization.vocabulary import IntArray

_FIFTHS_PER_SEMITONE = 7  # modulo 12
_TRITONE = 6


class Transposition:
    """Moves the pitches, chords and keys of ids; drums have no pitch."""

    def __init__(self, codec: Codec) -> None:
        self._families, self._pitch_ranks = codec.families, codec.pitch_ranks

    def transpose(self, tokens: IntArray, semitones: int) -> IntArray:
        """Return ids moved by semitones. Their pitches must stay in range. [L] -> [L]."""
        table = np.arange(len(self._pitch_ranks)) + semitones * (self._pitch_ranks >= 0)
        if chords := self._families.get("Chord"):
            moved = (np.arange(NO_CHORD) + semitones * len(QUALITIES)) % NO_CHORD
            table[chords[:NO_CHORD]] = chords.start + moved
        if keys := self._families.get("Key"):  # all twelve, by fifths
            fifths = np.arange(len(keys)) + _FIFTHS_PER_SEMITONE * semitones
            table[keys] = keys.start + fifths % len(keys)
        return table[tokens]

    def room(self, tokens: IntArray, at_most: int) -> tuple[int, int]:
        """Return how many semitones ids can move down and up, at most `at_most` each."""
        ranks = self._pitch_ranks[tokens]
        present = ranks[ranks >= 0]
        if not len(present):
            return at_most, at_most
        down = min(at_most, int(present.min()))
        up = min(at_most, int(self._pitch_ranks.max() - present.max()))
        return down, up

    def tritone(self) -> IntArray:
        """Return each id with its pitch, if it has one, a tritone higher or lower, in range. [V]"""
        ranks = self._pitch_ranks
        interval = np.where(2 * ranks > ranks.max(), -_TRITONE, _TRITONE)
        return np.arange(len(ranks)) + interval * (ranks >= 0)
