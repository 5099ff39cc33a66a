"""What tokenizers with tokens of bars have in common."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import Marker, Score, TimeSignature
from musicgen.tokenization.base import Losses
from musicgen.tokenization.chords.symbols import CHORDS, chord_index
from musicgen.tokenization.quantization import find_changes
from musicgen.tokenization.remi.metre import Metres, in_whole_bars
from musicgen.tokenization.vocabulary import IntArray, within


class InBars:
    """The times of tokens whose families are `Bar`, one for each metre, `Beat` and perhaps `Part`.

    A `Beat` is a grid step of its bar; a `Part` begins at the bar's first.
    """

    families: dict[str, range]
    metres: Metres
    steps_per_beat: int

    def start_tokens(self) -> IntArray:
        return np.array([self.families["Bar"].start])

    def bar_length(self, score: Score) -> int:
        return self._steps(score.first_metre())

    def in_bars(self, score: Score) -> Losses:
        """Return the losses of a score, which has whole bars there."""
        return in_whole_bars(score, self.steps_per_beat, self._steps)

    def _steps(self, metre: TimeSignature) -> int:
        return int(self.metres.lengths[self.metres.find(metre[1:])])

    def times(self, tokens: IntArray) -> IntArray:
        """Return the grid step of each id: that of its Bar, Part or the last Beat. [L] -> [L]."""
        tokens = np.asarray(tokens, dtype=np.int64)
        is_bar = within(tokens, self.families["Bar"])
        is_beat = within(tokens, self.families["Beat"])
        is_part = within(tokens, self.families.get("Part", range(0)))
        lengths = self.metres.lengths[tokens[is_bar] - self.families["Bar"].start]
        # Before the first bar, and at its beginning, the time is 0.
        starts = np.concatenate([[0, 0], np.cumsum(lengths[:-1])])
        beat = np.where(is_beat, tokens - self.families["Beat"].start, 0)
        index = np.where(is_bar | is_beat | is_part, np.arange(len(tokens)), 0)
        return starts[np.cumsum(is_bar)] + beat[np.maximum.accumulate(index)]

    def bar_starts(self, tokens: IntArray, bar_length: int) -> IntArray:
        starts = self.times(tokens)[within(tokens, self.families["Bar"])]
        return starts if len(starts) else np.zeros(1, np.int64)

    def crop_starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        bars = np.flatnonzero(within(tokens, self.families["Bar"]))
        return np.stack([bars, np.zeros_like(bars)], axis=1)

    def markers(self, tokens: IntArray, ticks: IntArray) -> list[Marker]:
        """Return a marker for each chord of ids [L] at their ticks [L]."""
        chord = within(tokens, self.families["Chord"])
        indices = (tokens[chord] - self.families["Chord"].start).tolist()
        pairs = zip(ticks[chord].tolist(), indices, strict=True)
        return [Marker(tick, CHORDS[index]) for tick, index in pairs]


def steps_in_bars(
    losses: Losses, ticks: IntArray, nouns: str, lines: IntArray
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Return the grid step of each event that the bars between bar lines hold, and which do."""
    step = losses.grid(ticks)
    inside = (step >= 0) & (step < lines[-1])
    losses.drop(f"{nouns} beyond bar {len(lines) - 1}", step[~inside])
    return step[inside], inside


def chord_changes(losses: Losses, lines: IntArray) -> tuple[IntArray, IntArray]:
    """Return grid step and index in `CHORDS` of each change of chord between bar lines."""
    markers = losses.score.markers
    tick = np.array([marker.tick for marker in markers], dtype=np.int64)
    found = [chord_index(marker.text) for marker in markers]
    named = np.array([index is not None for index in found], dtype=bool)
    at = losses.grid(tick)
    losses.drop("markers naming no chord", at[~named])
    losses.no_chords_until = min(at[named], default=np.inf)
    step, inside = steps_in_bars(losses, tick[named], "chords", lines)
    chords = np.array([index for index in found if index is not None], dtype=np.int64)
    return find_changes(step, chords[inside])
