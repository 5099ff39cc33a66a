"""Beats and bars of a performance, found from its notes or read from a file."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from musicgen.errors import UserError
from musicgen.files import read_plain
from musicgen.midi.score import FloatArray, IntArray, Score, TimeSignature
from musicgen.midi.tick_grid import DIVISIONS, TickGrid
from musicgen.plugins.beats.network import (
    BEATS_PER_BAR,
    FRAME_RATE,
    ODD_BAR,
    Bars,
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
_OFF_BEAT, _SOME_OFF_BEATS = 0.15, 0.1  # in beats; a share of onsets, which tell the division
_OTHER_METRE = 0.5  # nats a beat: a metre that fits worse than the best one is no hypothesis

# Of 213 random performances of POP909 and songs, this share of beats was wrong beside the mean
# probability of the network that a beat is wrong; below _SOME_DOUBT it says nothing.
_CONFIDENT, _SOME_DOUBT = 0.06, 0.1

_LONGEST_SILENCE = 8.0  # seconds, for the network; longer silence is skipped
_LONGEST_NOTE = 4.0  # seconds of a note that count as sound, as for the network
_MOST_BEATS = 2**14  # of the file's ticks; damaged files may have millions

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
        doubt: the share of beats that are estimated to be wrong, from 0 to 1; 0 unless they are
            found from the notes alone.
        second: the time signature that is the most likely after the first; None if that is clear.
    """

    times: FloatArray
    bar_starts: IntArray
    time_signature: tuple[int, int]
    source: Source
    doubt: float = 0.0
    second: tuple[int, int] | None = None

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
        if self.second is not None:
            line += " (or time_signature={}/{})".format(*self.second)
        if len(self.bar_starts):
            line += f", bars begin at {self.times[self.bar_starts[0]]:.2f} s"
        if self.doubt >= _SOME_DOUBT:
            line += f" (about {100 * self.doubt:.0f}% of the beats may be wrong)"
        return line


def find_beats(
    score: Score, times: FloatArray | None = None, metre: tuple[int, int] | None = None
) -> Beats:
    """Return the beats of a piece, and its bars.

    Notes that lie on the grid of the file's beats keep these beats, and its bars unless it has no
    drums and others are far more likely. Notes that lie on such a grid, but begin between the
    beats, as after a recording that did not begin at a bar, keep the tempo: only where beats and
    bars begin is found. Beats of other performances are found from the notes.

    Args:
        times: known beats in seconds; only their bars are found. [num_beats]
        metre: numerator and denominator of the time signature; None: that of the most likely bars.
    """
    own, grid = beats_of_file(score, metre), TickGrid(score)
    if times is None and not grid.may_be_wrong:
        return own
    notes, silences = _without_silence(played_notes(score))
    logits = beat_logits(notes)
    beat_odds = nearby_beat_odds(logits[:, 0])

    def frames(seconds: FloatArray) -> IntArray:
        return _frames(silences.skip(seconds), len(logits))

    source: Source = "annotated"
    if times is None and grid.is_steady:
        source = "shifted"
        times = _best_shift(score, own, grid, lambda x: float(beat_odds[frames(x)].mean()))
    elif times is None:
        source = "played"
        first = int((notes.onset[0] + _MARGIN_SECONDS) * FRAME_RATE)
        last = int((notes.onset[-1] - _MARGIN_SECONDS) * FRAME_RATE)
        times = _refine(find_beat_frames(logits[:, 0], first, last) / FRAME_RATE, notes)
        times = silences.restore(times)
    at = frames(times)
    odds = bar_odds(logits, at)
    is_compound = source == "played" and _is_compound(silences.skip(times), notes)
    bars, second = _most_likely_bars(odds, is_compound, replace(own, source=source), metre)
    if source != "annotated" and (len(times) < 2 or not len(bars.starts)):  # less than a bar
        return own
    if times is own.times and own.source == "file":
        may_differ = own.quarters == 1 and not notes.is_drum.any()
        gain = odds[bars.starts].mean() - odds[own.bar_starts].mean()
        if not may_differ or gain < _MORE_LIKELY_BARS:
            return own
    doubt = 0.0
    if source == "played":
        doubt = max(0.0, float((1 / (1 + np.exp(beat_odds[at]))).mean()) - _CONFIDENT)
    signature = metre or _time_signature(bars.beats_per_bar, is_compound)
    return Beats(times, bars.starts, signature, source, doubt, second)


def beats_of_file(score: Score, metre: tuple[int, int] | None = None) -> Beats:
    """Return the beats of a score's ticks, with the bars of its time signatures.

    Args:
        metre: the time signature from tick 0 on, instead of the score's.
    """
    source: Source = "file"
    if metre is not None and {metre} != {s[1:] for s in score.time_signatures_from_start()}:
        score, source = replace(score, time_signatures=[TimeSignature(0, *metre)]), "shifted"
    _, numerator, denominator = score.first_time_signature()
    found = Beats(np.empty(0), np.empty(0, np.int64), (numerator, denominator), source)
    beat = max(1, round(found.quarters * score.ticks_per_beat))
    lines = score.bar_starts(_MOST_BEATS // 4)
    after = int(lines[-1]) + score.bar_ticks(score.time_signature_at(int(lines[-1])))
    ends = np.append(lines[1:], min(after, max(score.end, int(lines[-1]) + 1)))
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
        text = read_plain(path).decode()
    except UnicodeDecodeError:
        raise UserError(f"{path}: cannot be read; give a text file with a beat a line") from None
    lines = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
    try:
        rows = np.array([[float(word) for word in line[:3]] for line in lines])
    except ValueError:
        expected = "the seconds of a beat, and at most its number in the bar"
        raise UserError(f"{path}: expected on each line {expected}, such as 12.34 1") from None
    seconds = rows[:, 0] if len(rows) else np.empty(0)
    if (seconds >= 0).sum() < 2 or not np.isfinite(rows).all() or (np.diff(seconds) <= 0).any():
        raise UserError(f"{path}: expected two beats or more, in seconds that ascend from 0")
    starts = np.empty(0, np.int64)
    if rows.shape[1] > 1:
        starts = np.flatnonzero(rows[:, -1] == 1)
        if not len(starts):
            raise UserError(f"{path}: no bar begins; expected beats with the number 1")
    beats_per_bar = int(np.bincount(np.diff(starts), minlength=1).argmax()) or 4
    return Beats(rows[:, 0], starts, (beats_per_bar, 4), "annotated")


def _best_shift(
    score: Score, own: Beats, grid: TickGrid, odds: Callable[[FloatArray], float]
) -> FloatArray:
    """Return the most likely beats in the tempo of the file, which may be the file's own.

    Args:
        odds: returns the mean log odds of beats at some seconds.
    """
    best = max((_shifted_beats(score, phase) for phase in grid.phases), key=odds)
    is_own = grid.is_on_grid and odds(best) < odds(_shifted_beats(score, 0)) + _MORE_LIKELY
    return own.times if is_own else best


def _shifted_beats(score: Score, phase: float) -> FloatArray:
    """Return the seconds of the file's beats, each a part of a beat later. [num_beats]"""
    beat = score.ticks_per_beat
    first = math.floor(score.start / beat - phase)
    last = math.ceil(max(track.notes["onset"].max(initial=0) for track in score.tracks) / beat)
    last = min(last, first + _MOST_BEATS)
    ticks = np.round((np.arange(first, last + 1) + phase) * beat).astype(np.int64)
    return score.seconds_at(ticks[(ticks >= 0) & (ticks > score.start - beat)])


class Silences(NamedTuple):
    """What is left out of the middle of long silences, in a performance's seconds.

    Attributes:
        at: where it begins. [num_silences]
        seconds: its length. [num_silences]
    """

    at: FloatArray
    seconds: FloatArray

    def skip(self, times: FloatArray) -> FloatArray:
        """Return times without what is left out. [N]"""
        left_out = np.cumsum(self.seconds)
        moments = np.append(0, np.stack([self.at, self.at + self.seconds], axis=1))
        before = np.append(0, np.stack([left_out - self.seconds, left_out], axis=1))
        return times - np.interp(times, moments, before)

    def restore(self, times: FloatArray) -> FloatArray:
        """Return the times in the performance of those that `skip` returned. [N]"""
        left_out = np.append(0, np.cumsum(self.seconds))
        return times + left_out[np.searchsorted(self.at - left_out[:-1], times)]


def _without_silence(notes: PlayedNotes) -> tuple[PlayedNotes, Silences]:
    """Return notes without more than some seconds of silence, and what is left out."""
    ends = notes.onset + np.minimum(notes.duration, _LONGEST_NOTE)
    ends = np.append(0, np.maximum.accumulate(ends)[:-1])
    excess = notes.onset - ends - _LONGEST_SILENCE
    is_long = excess > 0
    silences = Silences((ends + _LONGEST_SILENCE / 2)[is_long], excess[is_long])
    return notes._replace(onset=silences.skip(notes.onset)), silences


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


def _most_likely_bars(
    odds: FloatArray, is_compound: bool, own: Beats, metre: tuple[int, int] | None
) -> tuple[Bars, tuple[int, int] | None]:
    """Return the most likely bars, and the second time signature, if it is nearly as likely.

    Half bars of 4/4 may begin as bars do: in songs of POP909 in 4/4 two beats fit by up to .85 nats
    a beat better than four, in printed songs in 2/4 by .2 at most. So only compound beats, which
    are divided by three, have bars of two.

    Args:
        odds: log odds that a bar begins at each beat. [num_beats]
        own: beats that have the metre, if it is given.
    """
    if metre is not None:
        return find_bars(odds, [own.beats_per_bar], 4 * ODD_BAR)[0], None
    ranked = find_bars(odds, BEATS_PER_BAR)
    best = next(bars for bars in ranked if is_compound or bars.beats_per_bar > 2)
    second = next(bars for bars in ranked if bars is not best)
    is_near = second.fit > best.fit - _OTHER_METRE
    return best, _time_signature(second.beats_per_bar, is_compound) if is_near else None


def _is_compound(times: FloatArray, notes: PlayedNotes) -> bool:
    """Return whether beats are divided by three."""
    inside = notes.onset[(notes.onset >= times[0]) & (notes.onset < times[-1])]
    positions = np.interp(inside, times, np.arange(len(times)))
    between = positions[np.abs(positions - np.rint(positions)) > _OFF_BEAT]
    if len(between) <= _SOME_OFF_BEATS * len(positions):
        return False
    duple, triple = (np.exp(2j * np.pi * n * between).mean().real for n in DIVISIONS)
    return bool(triple > max(duple, 0))


def _time_signature(beats_per_bar: int, is_compound: bool) -> tuple[int, int]:
    """Return the time signature: 6/8 for bars of two compound beats."""
    return (6, 8) if is_compound and beats_per_bar == 2 else (beats_per_bar, 4)
