"""How the onsets of a score lie on the beats of its ticks: notated, played in tempo, or freely."""

import numpy as np

from musicgen.midi.score import FloatArray, Score

MIN_ONSETS = 16
"""With fewer, the beats of the file are as good as any."""

# How well onsets fit sixteenths or triplets of beats, from -1 to 1, see `TickGrid`: humanised
# accompaniments have .24 or more, performances without a metronome .06 or less.
STEADY, ON_GRID = 0.3, 0.2
_SOME_ON_BEATS = 0.05  # of exact onsets, which may be fast runs
_ON_BEATS = 0.1  # the share of onsets on beats of the file, of notes that lie on its grid
# The share of exact onsets in a file that a notation program or sequencer wrote: at sixteenths or
# 24ths of a beat, and of those at eighths or twelfths.
_NOTATED, _NOTATED_EIGHTHS = 0.98, 0.9
_NEAR_BEAT, _NEAR_DIVISION = 0.05, 0.04  # in beats
DIVISIONS = (4, 3)  # of a beat


def is_notated(score: Score) -> bool:
    """Return whether onsets are exactly at 64ths or triplets, as notation programs write them."""
    return TickGrid(score).is_notated


class TickGrid:
    """How the onsets of a score lie on the beats of its ticks.

    A fit is the mean cosine of the distance to the nearest division of a beat, with the period of
    the division: 1 on the divisions, and 0 on average for onsets without a relation to them.

    Attributes:
        fit: the better one of those to sixteenths and to triplets.
        best_fit: the best fit to beats that begin at another phase.
        phases: the phases of beats, from 0 to 1, that have the best fit. [4 or 3]
        share_on_beats: the share of onsets that are near beats.
        share_exact: the share of onsets that are exactly at sixteenths or 24ths of a beat.
        share_eighths: the share of onsets that are exactly at eighths or twelfths of a beat.
        num_pitched: number of onsets without drums; the network knows the beats of these only.
    """

    def __init__(self, score: Score) -> None:
        onsets = [track.notes["onset"] for track in score.tracks]
        pitched = [track.notes["onset"] for track in score.tracks if not track.is_drum]
        positions = np.unique(np.concatenate([[], *onsets])) / score.ticks_per_beat
        sums = {n: complex(np.exp(2j * np.pi * n * positions).sum()) for n in DIVISIONS}
        division = max(sums, key=lambda n: abs(sums[n]))
        shift = np.angle(sums[division]) / (2 * np.pi * division)
        count = max(1, len(positions))

        def exact(*divisions: int) -> float:
            near = [_distance(positions, 1 / each) < 1e-9 for each in divisions]
            return float(np.any(near, axis=0).sum() / count)

        self.fit = max(each.real for each in sums.values()) / count
        self.best_fit = abs(sums[division]) / count
        self.phases: FloatArray = (shift + np.arange(division) / division) % 1
        self.share_on_beats = float((_distance(positions, 1) < _NEAR_BEAT).sum() / count)
        self.share_exact, self.share_eighths = exact(16, 24), exact(8, 12)
        self.num_pitched = len(np.unique(np.concatenate([[], *pitched])))

    @property
    def is_steady(self) -> bool:
        """Whether the notes keep the file's tempo."""
        return self.best_fit >= STEADY or self.fit >= ON_GRID

    @property
    def is_on_grid(self) -> bool:
        """Whether the notes lie on the grid of the file's beats, on or off the beat."""
        is_near = float(_distance(self.phases[:1], 1 / len(self.phases))[0]) <= _NEAR_DIVISION
        return self.is_steady and (is_near or self.share_on_beats >= _ON_BEATS)

    @property
    def may_be_wrong(self) -> bool:
        """Whether the network may tell other beats: the file was played rather than notated."""
        return self.num_pitched >= MIN_ONSETS and not self.is_notated

    @property
    def is_notated(self) -> bool:
        """Whether the onsets are as notation programs and sequencers write them."""
        return (
            self.share_exact >= _NOTATED
            and self.share_eighths >= _NOTATED_EIGHTHS
            and self.share_on_beats >= _SOME_ON_BEATS
        )


def _distance(positions: FloatArray, period: float) -> FloatArray:
    """Return the distance of positions to the nearest multiple of a period."""
    return np.abs((positions + period / 2) % period - period / 2)
