"""The metres of a vocabulary, and the bars that a Score's time signatures make of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from musicgen.errors import UserError
from musicgen.midi import Score, TimeSignature
from musicgen.tokenization.base import EncodingReport, IntArray
from musicgen.tokenization.quantise import changes, to_grid

METRES = ("4/4", "3/4", "2/4", "6/8", "9/8", "12/8", "5/4", "7/8")
"""Those of nearly all music that has bars."""

COMMON_TIME = (4, 4)
"""What holds in a MIDI file before its first time signature."""


class Metres:
    """The metres in which a piece may be written, with a `Bar` token for each of them.

    With one metre alone, every bar is in it, whatever the time signatures; the token is `Bar`.
    With several, the tokens are `Bar_4/4`, `Bar_3/4`, …: each bar tells its own metre, so that a
    crop may begin at any of them.

    Args:
        names: such as `4/4`.
        steps_per_beat: grid steps in a quarter.

    Attributes:
        lengths: of the bars, in grid steps. [num_metres]
        tokens: of the vocabulary.

    Raises:
        UserError: no metre, one of them twice, or one whose bars are not whole grid steps.
    """

    def __init__(self, names: Sequence[str], steps_per_beat: int) -> None:
        self.names = list(names)
        self.steps_per_beat = steps_per_beat
        self.signatures = [_parse(name) for name in names]
        bars = [4 * steps_per_beat * Fraction(*signature) for signature in self.signatures]
        whole = all(bar.denominator == 1 for bar in bars)
        if not 0 < len(set(self.signatures)) == len(bars) or not whole:
            raise UserError(
                f"time_signatures=[{', '.join(names)}] with {steps_per_beat} positions a beat; "
                "give at least one, each once, whose bars are whole numbers of positions"
            )
        self.lengths = np.array([int(bar) for bar in bars])
        self.tokens = [f"Bar_{name}" for name in names] if len(bars) > 1 else ["Bar"]

    def find(self, signature: tuple[int, int]) -> int:
        """The index of the metre to read another as: itself, one with equal bars, or the first."""
        if signature in self.signatures:
            return self.signatures.index(signature)
        equal = (i for i, own in enumerate(self.signatures) if _equal_bars(own, signature))
        return next(equal, 0)

    def bars(
        self, score: Score, max_bars: int, report: EncodingReport
    ) -> tuple[IntArray, IntArray]:
        """The grid steps at which bars begin and the last one ends, and the metre of each bar.

        A time signature holds from the next bar line on, if it is not at one itself. What
        is read otherwise than it is written is added to the report's rules.

        Returns:
            starts [max_bars + 1], metres [max_bars].
        """
        metres, counts = [self.find(COMMON_TIME)], []
        begin, left = 0, max_bars
        rules: dict[str, None] = {}  # each once, in order
        ticks = np.array([signature.tick for signature in score.time_signatures], dtype=np.int64)
        steps = to_grid(ticks, self.steps_per_beat, score.ticks_per_beat).tolist()
        for step, (_, top, bottom) in zip(steps, score.time_signatures, strict=True):
            metre = self.find((top, bottom))
            if not _equal_bars((top, bottom), self.signatures[metre]):
                rules[f"{top}/{bottom} read as {self.names[metre]}"] = None
            length = int(self.lengths[metres[-1]])
            counts.append(min(max(0, -(-(step - begin) // length)), left))
            begin += counts[-1] * length
            left -= counts[-1]
            if metre != metres[-1] and begin != step and left:
                rules[f"{top}/{bottom} within a bar read from the next bar on"] = None
            metres.append(metre)
        report.rules += rules
        each = np.repeat(metres, [*counts, left])
        return np.concatenate([[0], np.cumsum(self.lengths[each])]), each

    def time_signatures(self, ticks: IntArray, metres: IntArray) -> list[TimeSignature]:
        """What to write in a Score for bars that begin at `ticks` [num_bars]: the changes."""
        ticks, metres = changes(ticks, metres)
        written = [
            TimeSignature(tick, *self.signatures[metre])
            for tick, metre in zip(ticks.tolist(), metres.tolist(), strict=True)
        ]
        return written[1:] if written and written[0][1:] == COMMON_TIME else written


def _equal_bars(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return Fraction(*one) == Fraction(*other)


def _parse(name: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d?)/(1|2|4|8|16|32|64)", str(name))
    if match is None:
        raise UserError(f"time_signatures: {name} is none; give such as 3/4, within 1/64 and 99/1")
    return int(match[1]), int(match[2])
