"""Metres: the bars, upbeats too, that a Score's time signatures make in a given vocabulary."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import zip_longest
from math import ceil

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi import Score, TimeSignature
from musicgen.text import pluralize
from musicgen.tokenization.base import Losses
from musicgen.tokenization.quantization import UNMOVED, find_changes, relocate
from musicgen.tokenization.vocabulary import IntArray

METRES = (
    *("4/4", "3/4", "2/4", "6/8", "9/8", "12/8", "5/4", "7/8"),
    *("3/8", "3/2", "2/2", "6/4", "9/4", "2/8", "4/2"),
)
"""The metres of nearly all music with bars."""

MAX_EMPTY_BARS = 64
"""Longer silence is left out; it comes of notes that were lost on their way, not of music."""

_MOST_BARS = 2**16
"""Of one time signature; damaged files may have millions."""

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
        self.signatures = list[tuple[int, int]]()
        for name in names:
            match = re.fullmatch(r"([1-9]\d?)/(1|2|4|8|16|32|64)", str(name))
            if match is None:
                raise ParameterError("time_signatures", name, "expected metres such as 3/4")
            self.signatures.append((int(match[1]), int(match[2])))
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

        Args:
            losses: see `in_whole_bars`; gets the rules by which metres are read, and the end.
        """
        metres, counts = [self.find(COMMON_TIME)], []
        start, left, signatures = 0, max_bars, losses.score.time_signatures
        steps = losses.grid(np.array([s.tick for s in signatures], np.int64)).tolist()
        ends = [*steps[1:], np.inf]
        for step, (_, top, bottom), following in zip(steps, signatures, ends, strict=False):
            metre = self.find((top, bottom))
            if Fraction(top, bottom) != self._bars[metre]:
                known = " (tokenizer=remi_metres has it)" if f"{top}/{bottom}" in METRES else ""
                rule = f"{top}/{bottom} read as {self.names[metre]}{known}"
                losses.interpret(rule, step, following)
            length = int(self.lengths[metres[-1]])
            counts.append(min(max(0, -(-(step - start) // length)), left))
            start += counts[-1] * length
            left -= counts[-1]
            metres.append(metre)
        per_bar = np.repeat(metres, [*counts, left])
        lines = np.concatenate([[0], np.cumsum(self.lengths[per_bar])])
        losses.end = int(lines[-1]), f"bar {max_bars}"
        return lines, per_bar

    def time_signatures(self, ticks: IntArray, metres: IntArray) -> list[TimeSignature]:
        """Return the time signatures of bars that begin at `ticks` [num_bars], for a Score."""
        ticks, metres = find_changes(ticks, metres)
        signatures = [
            TimeSignature(tick, *self.signatures[metre])
            for tick, metre in zip(ticks.tolist(), metres.tolist(), strict=True)
        ]
        return signatures[1:] if signatures and signatures[0][1:] == COMMON_TIME else signatures


def in_whole_bars(
    score: Score, steps_per_beat: int, bar_steps: Callable[[TimeSignature], int]
) -> Losses:
    """Return the losses of a score whose time signatures begin at bar lines of the tokens.

    Before an incomplete first bar, and before a beginning in a metre that is read as another, there
    is silence; a bar that the next time signature cuts short is followed by silence.

    Args:
        bar_steps: returns the grid steps in the bars of the tokens in a metre.
    """
    metres = list({s.tick: s for s in score.metres()}.values())
    beat, step = score.ticks_per_beat, 0

    def is_known(metre: TimeSignature) -> bool:
        return bar_steps(metre) * beat == score.bar_ticks(metre) * steps_per_beat

    if (
        len(metres) > 1
        and (upbeat := metres[1].tick) < score.bar_ticks(metres[1])
        and not (is_known(metres[0]) and upbeat % score.bar_ticks(metres[0]) == 0)
    ):
        metres[0] = metres[1]._replace(tick=0)
    points, signatures, filled = [], list[TimeSignature](), list[tuple[int, int]]()
    for metre, after in zip_longest(metres, metres[1:]):
        begin = tick = round(step * beat / steps_per_beat)
        signatures.append(metre._replace(tick=tick))
        if after is None:
            points.append((metre.tick, tick))
            break
        bar, ticks = bar_steps(metre), after.tick - metre.tick
        length = ticks * steps_per_beat / beat
        num_bars = ceil((length - 0.5) / bar)
        step += num_bars * bar
        end = round(step * beat / steps_per_beat)
        if num_bars * bar - length > 0.5:
            filled.append((step - num_bars * bar, step))
            if len(signatures) == 1 and (num_bars == 1 or not is_known(metre)):
                begin = end - ticks
        points += [(metre.tick, begin), (after.tick - 1, min(begin + ticks - 1, end))]
    whole, places = _retimed(score, points)
    if whole is not score:
        whole = replace(whole, time_signatures=signatures)
    losses = Losses(whole, steps_per_beat)
    losses.places = places
    for first, last in filled:
        losses.interpret("incomplete bars filled with silence", first, last)
    return losses


def without_long_gaps(score: Score) -> tuple[Score, IntArray]:
    """Return a score without its gaps of more than `MAX_EMPTY_BARS`, and where its ticks went.

    `repairs` names them; the places are those of `relocate`.
    """
    order = np.argsort(score.notes["onset"])
    onset, duration = score.notes["onset"][order], score.notes["duration"][order]
    end = np.maximum.accumulate(np.append(0, onset + duration))[:-1]
    wide = onset - end > MAX_EMPTY_BARS * score.ticks_per_beat  # no bar of a quarter is longer
    if not wide.any():
        return score, UNMOVED
    bars = np.append(score.bar_starts(_MOST_BARS), score.end)
    before = np.searchsorted(bars, end[wide])
    behind = np.searchsorted(bars, onset[wide], "right") - 1
    points, left_out, counts = [(0, 0)], 0, list[int]()
    for i, j in zip(before.tolist(), behind.tolist(), strict=True):
        if j - i > MAX_EMPTY_BARS:
            first, last = int(bars[i]), int(bars[j])
            points += [(first, first - left_out), (last, first - left_out)]
            left_out += last - first
            counts.append(j - i)
    lines = [f"{pluralize(count, 'bars')} without a note left out" for count in counts]
    shorter, places = _retimed(score, points)
    return replace(shorter, repairs=[*score.repairs, *lines]), places


def _retimed(score: Score, points: Sequence[tuple[int, int]]) -> tuple[Score, IntArray]:
    """Return a score in which ticks are elsewhere, and the places of `relocate`.

    Args:
        points: old ticks, from 0 on, and new ones; between, time is the score's, or stands still.
    """
    (last, moved), end = points[-1], 2**40
    places = np.array(sorted({**dict(points), end: end + moved - last}.items())).T
    if np.array_equal(*places):
        return score, places
    move = partial(relocate, places=places)

    def move_event(ticks: IntArray) -> IntArray:
        return np.where(ticks > 0, move(ticks), 0)

    return score.moved(move, move_event, lambda ends: move(ends - 1) + 1), places
