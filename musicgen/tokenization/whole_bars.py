"""Scores in whole bars: upbeats, bars that are cut short, and long silence."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import ceil
from typing import NamedTuple

import numpy as np

from musicgen.midi import Score, TimeSignature
from musicgen.text import pluralize
from musicgen.tokenization.quantization import UNMOVED, relocate
from musicgen.tokenization.quantization_report import QuantizationReport
from musicgen.tokenization.vocabulary import IntArray

MAX_EMPTY_BARS = 64
"""Longer silence is left out: it comes from notes that were lost, not from music."""

_MOST_BARS = 2**16
"""Of one time signature; damaged files may have millions."""

BarSteps = Callable[[TimeSignature], int]
"""Returns the grid steps in a bar of tokens in a time signature."""


class _Layout(NamedTuple):
    """Where the music of each time signature goes.

    Attributes:
        points: old and new ticks; see `_retimed`.
        signatures: at the ticks of the new bar lines.
        filled: grid steps of the bars that are filled with silence.
    """

    points: list[tuple[int, int]]
    signatures: list[TimeSignature]
    filled: list[tuple[int, int]]


def in_whole_bars(score: Score, steps_per_beat: int, bar_steps: BarSteps) -> QuantizationReport:
    """Return the report of a score whose time signatures begin at bar lines of the tokens.

    There is silence before an incomplete first bar, and before a beginning whose time signature is
    read as another. A bar that the next time signature cuts short is followed by silence.
    """
    layout = _whole_bars(score, steps_per_beat, bar_steps)
    whole, tick_map = _retimed(score, layout.points)
    if whole is not score:
        whole = replace(whole, time_signatures=layout.signatures)
    report = QuantizationReport(whole, steps_per_beat)
    report.tick_map = tick_map
    for first, last in layout.filled:
        report.interpret("incomplete bars filled with silence", first, last)
    return report


def _whole_bars(score: Score, steps_per_beat: int, bar_steps: BarSteps) -> _Layout:
    beat = score.ticks_per_beat

    def is_known(signature: TimeSignature) -> bool:
        return bar_steps(signature) * beat == score.bar_ticks(signature) * steps_per_beat

    by_tick = {
        signature.tick: signature for signature in score.time_signatures_from_start()
    }  # the last at a tick
    signatures = _without_upbeat(score, list(by_tick.values()), is_known)
    layout, step = _Layout([], [], []), 0
    for signature, following in pairwise(signatures):
        begin = round(step * beat / steps_per_beat)
        layout.signatures.append(signature._replace(tick=begin))
        bar, ticks = bar_steps(signature), following.tick - signature.tick
        length = ticks * steps_per_beat / beat
        num_bars = ceil((length - 0.5) / bar)
        step += num_bars * bar
        end = round(step * beat / steps_per_beat)
        if num_bars * bar - length > 0.5:
            layout.filled.append((step - num_bars * bar, step))
            is_first = len(layout.signatures) == 1
            if is_first and (num_bars == 1 or not is_known(signature)):
                begin = end - ticks  # the silence comes first
        last = min(begin + ticks - 1, end)
        layout.points.extend([(signature.tick, begin), (following.tick - 1, last)])
    begin = round(step * beat / steps_per_beat)
    layout.signatures.append(signatures[-1]._replace(tick=begin))
    layout.points.append((signatures[-1].tick, begin))
    return layout


def _without_upbeat(
    score: Score, signatures: list[TimeSignature], is_known: Callable[[TimeSignature], bool]
) -> list[TimeSignature]:
    """Return time signatures of which the second also applies to an upbeat before it."""
    if len(signatures) == 1:
        return signatures
    first, second, *others = signatures
    is_short = second.tick < score.bar_ticks(second)
    if is_short and not (is_known(first) and second.tick % score.bar_ticks(first) == 0):
        first = second._replace(tick=0)
    return [first, second, *others]


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
    bars = np.append(score.bar_starts(_MOST_BARS), score.end)
    before = np.searchsorted(bars, end[wide])
    after = np.searchsorted(bars, onset[wide], "right") - 1
    points, left_out, counts = [(0, 0)], 0, list[int]()
    for i, j in zip(before.tolist(), after.tolist(), strict=True):
        if j - i > MAX_EMPTY_BARS:
            first, last = int(bars[i]), int(bars[j])
            points += [(first, first - left_out), (last, first - left_out)]
            left_out += last - first
            counts.append(j - i)
    lines = [f"{pluralize(count, 'bars')} without a note left out" for count in counts]
    shorter, tick_map = _retimed(score, points)
    return replace(shorter, repairs=[*score.repairs, *lines]), tick_map


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
