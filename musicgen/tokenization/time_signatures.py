"""The time signatures of a vocabulary, and the bars that those of a Score make in it."""

import re
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi import TimeSignature
from musicgen.tokenization.quantization import find_changes
from musicgen.tokenization.quantization_report import QuantizationReport
from musicgen.tokenization.vocabulary import IntArray

TIME_SIGNATURES = (
    "4/4", "3/4", "2/4", "6/8", "9/8", "12/8", "5/4", "7/8", "3/8", "3/2", "2/2", "6/4", "9/4",
    "2/8", "4/2",
)  # fmt: skip
"""The time signatures of nearly all music with bars."""

COMMON_TIME = (4, 4)
"""The time signature of a MIDI file before its first one."""


class TimeSignatures:
    """The time signatures of a vocabulary, with one `Bar` token each.

    With a single one, all bars are in it, those of a Score are ignored, and the token is `Bar`.
    With several, the tokens are `Bar_4/4`, `Bar_3/4`, …: every bar states its own, so that a crop
    may begin at any of them.

    Attributes:
        names: such as 3/4.
        fractions: numerator and denominator of each.
        lengths: grid steps in a bar of each. [num_signatures]
        tokens: names of the `Bar` tokens.
    """

    def __init__(self, names: Sequence[str], steps_per_beat: int) -> None:
        self.names = list(names)
        self.fractions: list[tuple[int, int]] = []
        for name in names:
            match = re.fullmatch(r"([1-9]\d?)/(1|2|4|8|16|32|64)", str(name))
            if match is None:
                expected = "expected time signatures such as 3/4"
                raise ParameterError("time_signatures", name, expected)
            self.fractions.append((int(match[1]), int(match[2])))
        self._bars = [Fraction(*fraction) for fraction in self.fractions]  # in whole notes
        lengths = [4 * steps_per_beat * bar for bar in self._bars]
        integers = all(length.denominator == 1 for length in lengths)
        different = len(set(self.fractions)) == len(lengths)
        if not lengths or not different or not integers:
            expected = "expected different ones with a whole number of positions in a bar"
            raise ParameterError("time_signatures", self.names, expected)
        self.lengths = np.array(lengths, dtype=np.int64)
        self.tokens = [f"Bar_{name}" for name in names] if len(names) > 1 else ["Bar"]

    def find(self, fraction: tuple[int, int]) -> int:
        """Return the index of a time signature: the same, else one with equal bars, else 0."""
        if fraction in self.fractions:
            return self.fractions.index(fraction)
        bar = Fraction(*fraction)
        return self._bars.index(bar) if bar in self._bars else 0

    def bars(self, max_bars: int, report: QuantizationReport) -> tuple[IntArray, IntArray]:
        """Return the grid steps of the bar lines [max_bars + 1], and each bar's index [max_bars].

        Args:
            report: see `in_whole_bars`; gets the rules by which time signatures are read, and the
                end of the last bar.
        """
        indices, counts = [self.find(COMMON_TIME)], []
        start, left, signatures = 0, max_bars, report.score.time_signatures
        steps = report.grid(np.array([s.tick for s in signatures], np.int64)).tolist()
        ends = [*steps[1:], np.inf]
        for step, (_, top, bottom), end in zip(steps, signatures, ends, strict=False):
            index = self.find((top, bottom))
            if Fraction(top, bottom) != self._bars[index]:
                is_known = f"{top}/{bottom}" in TIME_SIGNATURES
                cure = " (tokenizer=remi_metres has it)" if is_known else ""
                report.interpret(f"{top}/{bottom} read as {self.names[index]}{cure}", step, end)
            length = int(self.lengths[indices[-1]])
            num_bars = -(-(step - start) // length)  # rounded up
            counts.append(min(max(0, num_bars), left))
            start += counts[-1] * length
            left -= counts[-1]
            indices.append(index)
        of_bars = np.repeat(indices, [*counts, left])
        lines = np.concatenate([[0], np.cumsum(self.lengths[of_bars])])
        report.end = int(lines[-1]), f"bar {max_bars}"
        return lines, of_bars

    def of_bars(self, ticks: IntArray, indices: IntArray) -> list[TimeSignature]:
        """Return a Score's time signatures from those of its bars, where they change.

        Args:
            ticks: where the bars begin. [num_bars]
            indices: of the time signatures of the bars. [num_bars]
        """
        ticks, indices = find_changes(ticks, indices)
        signatures = [
            TimeSignature(tick, *self.fractions[index])
            for tick, index in zip(ticks.tolist(), indices.tolist(), strict=True)
        ]
        if signatures and signatures[0][1:] == COMMON_TIME:  # the default of MIDI files
            return signatures[1:]
        return signatures
