"""Beats and bars of a performance, found from its notes or read from a file."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from musicgen.errors import UserError
from musicgen.midi.score import FloatArray, IntArray, Score
from musicgen.midi.tick_grid import DIVISIONS, TickGrid
from musicgen.plugins.beats.network import (
    FRAME_RATE,
    PlayedNotes,
    bar_odds,
    beat_logits,
    find_bars,
    find_beat_frames,
    nearby_beat_odds,
    played_notes,
)

# Beats between the file's must be more likely by this, in mean log odds: most songs of POP909
# whose notes lie on the grid of another beat have 1.9 or more, metronomic files .5 or less.
_MORE_LIKELY = 1.5
# The same for other bars than the file's: most songs of POP909 whose bars begin at other beats have
# 4.5 or more, metronomic files without drums 1.2 or less. Drums are played to the file's bars.
_MORE_LIKELY_BARS = 3.0

_REFINE_SECONDS = 0.06  # from a frame to the onsets that are its beat
_MARGIN_SECONDS = 60 / 22  # from the first and the last onset to a beat: at the slowest tempo
_COMPOUND_FIT = 0.35  # of onsets to thirds of a beat, and more than to quarters

Source = Literal["file", "shifted", "played", "annotated"]


@dataclass(frozen=True, eq=False)
class Beats:
    """The beats of a piece, and at which of them bars begin.

    Attributes:
        times: seconds, ascending. [num_beats]
        bar_starts: indices of the beats at which bars begin; none if they are not known. [num_bars]
        time_signature: numerator and denominator of most bars. A beat of 6/8, 9/8 or 12/8 has three
            eighths.
        source: `file`: the beats of the file's ticks, on which its notes lie. `shifted`: the notes
            keep the file's tempo, but begin between its beats, or their bars between its bars.
            `played`: found from the notes alone. `annotated`: read from a file.
        doubt: the share of beats that are estimated to be wrong, from 0 to 1.
    """

    times: FloatArray
    bar_starts: IntArray
    time_signature: tuple[int, int]
    source: Source
    doubt: float = 0.0

    @property
    def quarters(self) -> float:
        """Quarter notes in a beat: 1.5 in compound time signatures such as 6/8."""
        numerator, denominator = self.time_signature
        is_compound = denominator >= 8 and numerator > 3 and numerator % 3 == 0
        return (12 if is_compound else 4) / denominator

    @property
    def beats_per_bar(self) -> int:
        """Beats in most bars."""
        numerator, denominator = self.time_signature
        return round(4 * numerator / denominator / self.quarters)

    def describe(self) -> str:
        """Return one line, such as `92 a minute, 4/4, bars begin at 0.31 s`."""
        numerator, denominator = self.time_signature
        beats_per_minute = 60 / float(np.median(np.diff(self.times)))
        line = f"{beats_per_minute:.0f} a minute, {numerator}/{denominator}"
        if len(self.bar_starts):
            line += f", bars begin at {self.times[self.bar_starts[0]]:.2f} s"
        if self.doubt >= 0.005:
            line += f" (about {100 * self.doubt:.0f}% of the beats may be wrong)"
        return line


def find_beats(score: Score, times: FloatArray | None = None) -> Beats:
    """Return the beats of a piece, and its bars.

    Notes that lie on the grid of the file's beats keep these beats, and its bars unless it has no
    drums and others are far more likely. Notes that lie on such a grid, but begin between the
    beats, as after a recording that did not begin at a bar, keep the tempo: only where beats and
    bars begin is found. Beats of other performances are found from the notes.

    Args:
        times: known beats in seconds; only their bars are found. [num_beats]
    """
    own, grid = beats_of_file(score), TickGrid(score)
    if times is None and not grid.may_be_wrong:
        return own
    notes = played_notes(score)
    logits = beat_logits(notes)
    beat_odds = nearby_beat_odds(logits[:, 0])
    source: Source = "annotated"
    if times is None and grid.is_steady:
        source, times = "shifted", _best_shift(score, own, grid, beat_odds)
    elif times is None:
        source = "played"
        first = int((notes.onset[0] + _MARGIN_SECONDS) * FRAME_RATE)
        last = int((notes.onset[-1] - _MARGIN_SECONDS) * FRAME_RATE)
        times = _refine(find_beat_frames(logits[:, 0], first, last) / FRAME_RATE, notes)
    at = _frames(times, len(logits))
    odds = bar_odds(logits, at)
    starts, beats_per_bar = find_bars(odds)
    if source != "annotated" and (len(times) < 2 or not len(starts)):  # less than a bar
        return own
    if times is own.times:
        may_differ = own.quarters == 1 and not notes.is_drum.any()
        if not may_differ or odds[starts].mean() - odds[own.bar_starts].mean() < _MORE_LIKELY_BARS:
            return own
    signature = _time_signature(beats_per_bar, times, notes, source)
    doubt = 0.0 if source == "annotated" else float((1 / (1 + np.exp(beat_odds[at]))).mean())
    return Beats(times, starts, signature, source, doubt)


def beats_of_file(score: Score) -> Beats:
    """Return the beats of a score's ticks, with the bars of its time signatures."""
    _, numerator, denominator = score.first_time_signature()
    found = Beats(np.empty(0), np.empty(0, np.int64), (numerator, denominator), "file")
    beat = max(1, round(found.quarters * score.ticks_per_beat))
    lines = score.bar_starts()
    ends = np.append(lines[1:], max(score.end, int(lines[-1]) + 1))
    ticks = np.concatenate([np.arange(*span, beat) for span in zip(lines, ends, strict=True)])
    starts = np.searchsorted(ticks, lines)
    return replace(found, times=score.seconds_at(ticks), bar_starts=starts)


def read_beats(path: str | Path) -> Beats:
    """Read beats from a text file: one beat a line, its seconds first.

    The next column, if there is one, is the beat's number in its bar, from 1, as audio software
    writes it. Three columns are those of POP909's `beat_midi.txt`, where the last is 1 at the
    beginning of a bar. With one column only, `find_beats` can find the bars.

    Raises:
        UserError: the file cannot be read, or is not of this form.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{path}: cannot be read; give a text file with a beat a line") from None
    lines = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
    try:
        rows = np.array([[float(word) for word in line[:3]] for line in lines])
    except ValueError:
        expected = "the seconds of a beat, and at most its number in the bar"
        raise UserError(f"{path}: expected on each line {expected}, such as 12.34 1") from None
    if len(rows) < 2 or (np.diff(rows[:, 0]) <= 0).any():
        raise UserError(f"{path}: expected two beats or more, in seconds that ascend")
    starts = np.empty(0, np.int64)
    if rows.shape[1] > 1:
        starts = np.flatnonzero(rows[:, -1] == 1)
        if not len(starts):
            raise UserError(f"{path}: no bar begins; expected beats with the number 1")
    beats_per_bar = int(np.bincount(np.diff(starts), minlength=1).argmax()) or 4
    return Beats(rows[:, 0], starts, (beats_per_bar, 4), "annotated")


def _best_shift(score: Score, own: Beats, grid: TickGrid, beat_odds: FloatArray) -> FloatArray:
    """Return the most likely beats in the tempo of the file, which may be the file's own."""

    def odds(times: FloatArray) -> float:
        return float(beat_odds[_frames(times, len(beat_odds))].mean())

    best = max((_shifted_beats(score, phase) for phase in grid.phases), key=odds)
    is_own = grid.is_on_grid and odds(best) < odds(_shifted_beats(score, 0)) + _MORE_LIKELY
    return own.times if is_own else best


def _shifted_beats(score: Score, phase: float) -> FloatArray:
    """Return the seconds of the file's beats, each a part of a beat later. [num_beats]"""
    beat = score.ticks_per_beat
    first = math.floor(score.start / beat - phase)
    last = math.ceil(max(track.notes["onset"].max(initial=0) for track in score.tracks) / beat)
    ticks = np.round((np.arange(first, last + 1) + phase) * beat).astype(np.int64)
    return score.seconds_at(ticks[(ticks >= 0) & (ticks > score.start - beat)])


def _frames(times: FloatArray, num_frames: int) -> IntArray:
    return np.clip((times * FRAME_RATE + 0.5).astype(np.int64), 0, num_frames - 1)


def _refine(times: FloatArray, notes: PlayedNotes) -> FloatArray:
    """Return beats at the mean of the onsets nearby, weighted by velocity and nearness."""
    refined = times.copy()
    begin = np.searchsorted(notes.onset, times - _REFINE_SECONDS)
    end = np.searchsorted(notes.onset, times + _REFINE_SECONDS)
    for index in np.flatnonzero(end > begin):
        near = slice(begin[index], end[index])
        distance = (notes.onset[near] - times[index]) / (_REFINE_SECONDS / 2)
        weights = np.maximum(notes.velocity[near], 1) * np.exp(-0.5 * distance**2)
        refined[index] = np.average(notes.onset[near], weights=weights)
    return refined


def _time_signature(
    beats_per_bar: int, times: FloatArray, notes: PlayedNotes, source: Source
) -> tuple[int, int]:
    """Return the time signature: 6/8 for two beats of a bar that are divided by three."""
    inside = notes.onset[(notes.onset >= times[0]) & (notes.onset < times[-1])]
    positions = np.interp(inside, times, np.arange(len(times)))
    if source != "played" or beats_per_bar != 2 or not len(positions):
        return beats_per_bar, 4
    duple, triple = (np.exp(2j * np.pi * n * positions).mean().real for n in DIVISIONS)
    return (6, 8) if triple > max(duple, _COMPOUND_FIT) else (2, 4)
