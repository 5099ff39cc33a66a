"""Metres: the bars that a Score's time signatures make in a given vocabulary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi import TimeSignature
from musicgen.tokenization.base import Losses
from musicgen.tokenization.quantization import find_changes
from musicgen.tokenization.vocabulary import IntArray

METRES = ("4/4", "3/4", "2/4", "6/8", "9/8", "12/8", "5/4", "7/8")
"""The metres of nearly all music with bars."""

COMMON_TIME = (4, 4)
"""The metre of a MIDI file before its first time signature."""


class Metres:
    """The metres of a vocabulary, with one `Bar` token each.

    With a single metre, all bars are in it, time signatures are ignored, and the token is `Bar`.
    With several, the tokens are `Bar_4/4`, `Bar_3/4`, …: every bar states its metre, so that a
    crop may begin at any of them.

    Attributes:
        lengths: grid steps in a bar. [num_metres]
        tokens: names of the `Bar` tokens.
    """

    def __init__(self, names: Sequence[str], steps_per_beat: int) -> None:
        self.names = list(names)
        self.signatures = [_parse(name) for name in names]
        self._bars = [Fraction(*signature) for signature in self.signatures]
        lengths = [4 * steps_per_beat * bar for bar in self._bars]
        integers = all(length.denominator == 1 for length in lengths)
        if not 0 < len(set(self.signatures)) == len(lengths) or not integers:
            expected = "expected different metres with a whole number of positions in a bar"
            raise ParameterError("time_signatures", self.names, expected)
        self.lengths = np.array(lengths, dtype=np.int64)
        self.tokens = [f"Bar_{name}" for name in names] if len(names) > 1 else ["Bar"]

    def find(self, signature: tuple[int, int]) -> int:
        """Return the index of a metre: the same, else one with equal bars, else the first."""
        if signature in self.signatures:
            return self.signatures.index(signature)
        bar = Fraction(*signature)
        return self._bars.index(bar) if bar in self._bars else 0

    def bars(self, max_bars: int, losses: Losses) -> tuple[IntArray, IntArray]:
        """Return the grid steps of the bar lines [max_bars + 1], and the metres [max_bars].

        A time signature within a bar applies from the next bar line on. Deviations from the
        score are added to the rules of `losses`.
        """
        metres, counts = [self.find(COMMON_TIME)], []
        start, left, signatures = 0, max_bars, losses.score.time_signatures
        steps = losses.grid(np.array([s.tick for s in signatures], np.int64)).tolist()
        ends = [*steps[1:], np.inf]
        for step, (_, top, bottom), following in zip(steps, signatures, ends, strict=False):
            metre = self.find((top, bottom))
            fits = Fraction(top, bottom) == self._bars[metre]
            if not fits:
                losses.interpret(f"{top}/{bottom} read as {self.names[metre]}", step, following)
            length = int(self.lengths[metres[-1]])
            counts.append(min(max(0, -(-(step - start) // length)), left))
            start += counts[-1] * length
            left -= counts[-1]
            if (fits or metre != metres[-1]) and start != step and left:
                late = f"{top}/{bottom} within a bar read from the next bar on"
                losses.interpret(late, step, step + 1)
            metres.append(metre)
        per_bar = np.repeat(metres, [*counts, left])
        return np.concatenate([[0], np.cumsum(self.lengths[per_bar])]), per_bar

    def time_signatures(self, ticks: IntArray, metres: IntArray) -> list[TimeSignature]:
        """Return the time signatures of bars that begin at `ticks` [num_bars], for a Score."""
        ticks, metres = find_changes(ticks, metres)
        signatures = [
            TimeSignature(tick, *self.signatures[metre])
            for tick, metre in zip(ticks.tolist(), metres.tolist(), strict=True)
        ]
        return signatures[1:] if signatures and signatures[0][1:] == COMMON_TIME else signatures


def _parse(name: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d?)/(1|2|4|8|16|32|64)", str(name))
    if match is None:
        raise ParameterError("time_signatures", name, "expected metres such as 3/4")
    return int(match[1]), int(match[2])
