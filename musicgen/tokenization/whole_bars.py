"""The time signatures of a vocabulary, and scores in whole bars of them.

Upbeats and bars that are cut short are filled with silence; long silence is left out.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import ceil

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi import Score, TimeSignature
from musicgen.text import pluralize
from musicgen.tokenization.quantization import UNMOVED, QuantizationReport, find_changes, relocate
from musicgen.tokenization.vocabulary import IntArray

TIME_SIGNATURES = (
    "4/4", "3/4", "2/4", "6/8", "9/8", "12/8", "5/4", "7/8", "3/8", "3/2", "2/2", "6/4", "9/4",
    "2/8", "4/2",
)  # fmt: skip
"""The time signatures of nearly all music with bars."""

COMMON_TIME = (4, 4)
"""The time signature of a MIDI file before its first one."""

MAX_EMPTY_BARS = 64
"""Longer silence is left out: it comes from notes that were lost, not from music."""

_MAX_BARS = 2**16  # of one time signature; damaged files may have millions


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
        self.names = list(names) if isinstance(names, Sequence) else []
        self.fractions: list[tuple[int, int]] = []
        for name in self.names:
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
            report: see `in_whole_bars`. It gets the rules for reading other time signatures, and
                the end of the last bar.
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


def in_whole_bars(
    score: Score, steps_per_beat: int, bar_steps: Callable[[TimeSignature], int]
) -> QuantizationReport:
    """Return the report of a score whose time signatures begin at bar lines of the tokens.

    There is silence before an incomplete first bar, and before a beginning whose time signature is
    read as another. A bar that the next time signature cuts short is followed by silence.

    Args:
        bar_steps: returns the grid steps in a bar of tokens in a time signature.
    """
    beat = score.ticks_per_beat
    by_tick = {s.tick: s for s in score.time_signatures_from_start()}  # the last at a tick
    signatures = list(by_tick.values())

    def is_known(signature: TimeSignature) -> bool:
        return bar_steps(signature) * beat == score.bar_ticks(signature) * steps_per_beat

    if len(signatures) > 1:
        first, second = signatures[:2]
        is_upbeat = second.tick < score.bar_ticks(second)
        if is_upbeat and not (is_known(first) and second.tick % score.bar_ticks(first) == 0):
            signatures[0] = second._replace(tick=0)
    points, at_lines, filled = [], [], []  # old and new ticks; signatures; grid steps of silence
    step = begin = 0
    for signature, following in pairwise(signatures):
        at_lines.append(signature._replace(tick=begin))
        bar, ticks = bar_steps(signature), following.tick - signature.tick
        length = ticks * steps_per_beat / beat
        num_bars = ceil((length - 0.5) / bar)
        step += num_bars * bar
        end = round(step * beat / steps_per_beat)
        start = begin
        if num_bars * bar - length > 0.5:
            filled.append((step - num_bars * bar, step))
            if len(at_lines) == 1 and (num_bars == 1 or not is_known(signature)):
                start = end - ticks  # the silence comes first
        last = min(start + ticks - 1, end)
        points += [(signature.tick, start), (following.tick - 1, last)]
        begin = end
    at_lines.append(signatures[-1]._replace(tick=begin))
    points.append((signatures[-1].tick, begin))

    whole, tick_map = _retimed(score, points)
    if whole is not score:
        whole = replace(whole, time_signatures=at_lines)
    report = QuantizationReport(whole, steps_per_beat, tick_map)
    for first_step, last_step in filled:
        report.interpret("incomplete bars filled with silence", first_step, last_step)
    return report


def without_long_gaps(score: Score) -> tuple[Score, IntArray]:
    """Return a score without its gaps of more than `MAX_EMPTY_BARS`, and its tick map (`relocate`).

    `repairs` names the gaps.
    """
    notes = score.notes
    notes = notes.take(np.argsort(notes["onset"]))
    onset, duration = notes["onset"], notes["duration"]
    end = np.maximum.accumulate(np.append(0, onset + duration))[:-1]
    wide = onset - end > MAX_EMPTY_BARS * score.ticks_per_beat  # no bar of a quarter is longer
    if not wide.any():
        return score, UNMOVED
    bars = np.append(score.bar_starts(_MAX_BARS), score.end)
    before = np.searchsorted(bars, end[wide])
    after = np.searchsorted(bars, onset[wide], "right") - 1
    points, left_out, repairs = [(0, 0)], 0, [*score.repairs]
    for i, j in zip(before.tolist(), after.tolist(), strict=True):
        if j - i > MAX_EMPTY_BARS:
            first, last = int(bars[i]), int(bars[j])
            points += [(first, first - left_out), (last, first - left_out)]
            left_out += last - first
            repairs.append(f"{pluralize(j - i, 'bars')} without a note left out")
    shorter, tick_map = _retimed(score, points)
    return replace(shorter, repairs=repairs), tick_map


def _retimed(score: Score, points: Sequence[tuple[int, int]]) -> tuple[Score, IntArray]:
    """Return a score with its events at new ticks, and the tick map (`relocate`).

    Args:
        points: old ticks, from 0 on, and new ones. Between two of them the time passes as in the
            score, or stands still.
    """
    (last, moved), end = points[-1], 2**40
    tick_map = np.array(sorted({**dict(points), end: end + moved - last}.items())).T
    if np.array_equal(*tick_map):
        return score, tick_map
    move = partial(relocate, tick_map=tick_map)

    def move_event(ticks: IntArray) -> IntArray:
        return np.where(ticks > 0, move(ticks), 0)

    return score.moved(move, move_event, lambda ends: move(ends - 1) + 1), tick_map
