"""The most likely beats and bars by a network's odds, found by dynamic programming.

Beats: a semi-Markov model, whose states are a beat's frame and the interval before it; the next
interval is likely to be similar. It is the bar-pointer model of Krebs et al. 2015 ("An efficient
state-space model for joint tempo and meter tracking") with its tempo changes at beats.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.plugins.beats.network import FRAME_RATE

IntArray = NDArray[np.int64]
Array = NDArray[np.float32]

SLOWEST, FASTEST = 22, 260
"""Beats a minute."""

_INTERVAL_STEP = 1.045  # between neighbouring intervals, but at least a frame
_STEADY, _FREE, _FREE_SHARE = 0.15, 0.35, 0.1  # widths of changes of log tempo, their mixture
_USUAL_TEMPO, _TEMPO_WIDTH, _TEMPO_WEIGHT = 85.0, 0.5, 0.2  # the width is of log tempo
_NEARBY = 2  # frames around a beat in which the network may expect it
_FRAMES_PER_BEAT = 2.0  # the sum of the network's targets around a beat
_LOWEST, _HIGHEST = 0.003, 0.98  # probabilities of a beat
_PEAK = 0.2  # the part of a frame's own log odds, which say where the beat is among the nearby ones
_BEAT_BONUS = 0.5  # in nats: doubtful beats are rather there than not
_IMPOSSIBLE = np.float32(-1e9)

BEATS_PER_BAR = (2, 3, 4)
_LONGEST_BAR = 6  # beats, of a bar that is longer than the others
_ODD_BAR = 6.0  # what a bar of another length costs, in nats
_PREFERENCE = np.array([0.0, 0.4, 0.5])  # of `BEATS_PER_BAR`, in nats a beat


class Bars(NamedTuple):
    """Where bars begin, as indices of beats, and how many beats most of them have."""

    starts: IntArray
    beats_per_bar: int


def find_beats(logits: Array, latest_start: int, earliest_end: int) -> IntArray:
    """Return the frames of the most likely beats. [num_beats]

    Args:
        logits: the network's log odds of a beat in each frame. [F]
        latest_start: frame until which the first beat comes.
        earliest_end: frame from which the last one comes.
    """
    own = np.clip(logits, -4, 4)
    logits = (nearby_beat_odds(logits) + _PEAK * own + _BEAT_BONUS).astype(np.float32)
    num_frames = len(logits)
    intervals = _intervals()
    change_cost, prior = _tempo_costs(intervals)
    missed = np.append(0, np.cumsum(np.maximum(logits, 0))).astype(np.float32)
    shape = num_frames, len(intervals)
    best = np.full(shape, _IMPOSSIBLE)  # of paths to a beat with the interval before it
    ahead = np.full((num_frames + 1, len(intervals)), _IMPOSSIBLE)  # with the interval after it
    before = np.zeros(shape, np.int16)  # the interval before of the best in `ahead`
    is_first = np.zeros(shape, bool)
    column = np.arange(len(intervals))
    block = int(intervals[0])  # frames whose beats do not depend on each other
    for start in range(0, num_frames, block):
        frames = np.arange(start, min(num_frames, start + block))
        previous = frames[:, None] - intervals
        score = ahead[np.where(previous >= 0, previous, num_frames), column]
        if start <= latest_start:
            first = np.where(frames[:, None] <= latest_start, prior, _IMPOSSIBLE)
            first = first - missed[frames][:, None]
            is_first[frames] = first > score
            score = np.maximum(score, first)
        best[frames] = score + logits[frames][:, None] + _TEMPO_WEIGHT * prior
        choices = best[frames][:, :, None] - change_cost
        before[frames] = choices.argmax(axis=1)
        ahead[frames] = choices.max(axis=1)
    final = best - (missed[-1] - missed[1:])[:, None]
    final[: max(0, min(earliest_end, num_frames - 1))] = _IMPOSSIBLE
    frame, interval = np.unravel_index(final.argmax(), shape)
    beats = [int(frame)]
    while not is_first[frame, interval]:
        frame = frame - intervals[interval]
        interval = before[frame, interval]
        beats.append(int(frame))
    return np.array(beats[::-1], np.int64)


def nearby_beat_odds(logits: Array) -> NDArray[np.float64]:
    """Return the log odds of a beat within two frames of each, by the network's of frames. [F]"""
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    expected = np.convolve(probabilities, np.ones(2 * _NEARBY + 1), "same") / _FRAMES_PER_BEAT
    expected = np.clip(expected, _LOWEST, _HIGHEST)
    return np.log(expected / (1 - expected))


def bar_odds(bar_logits: Array, beat_logits: Array) -> NDArray[np.float64]:
    """Return the log odds that a bar begins, given a beat, at each beat. [num_beats]

    Args:
        bar_logits: the network's log odds of a bar's beginning at each beat. [num_beats]
        beat_logits: those of the beats. [num_beats]
    """
    is_bar, is_beat = (1 / (1 + np.exp(-x.astype(np.float64))) for x in (bar_logits, beat_logits))
    begins = np.clip(is_bar / np.maximum(is_beat, is_bar + 0.02), 0.02, 0.98)
    return np.log(begins / (1 - begins))


def find_bars(odds: NDArray[np.float64]) -> Bars:
    """Return the most likely bars of beats; single bars may be longer or shorter than the others.

    Args:
        odds: log odds that a bar begins at each beat. [num_beats]
    """
    num_beats, metres = len(odds), np.arange(len(BEATS_PER_BAR))
    place = np.arange(_LONGEST_BAR)  # of a beat in its bar
    emission = -np.logaddexp(0, np.where(place == 0, -odds[:, None], odds[:, None]))
    emission = emission[:, None] + _PREFERENCE[:, None]
    last_place = np.array(BEATS_PER_BAR)[:, None] - 1
    end_cost = np.where(place == last_place, 0, _ODD_BAR)
    end_cost = np.where(place == 0, -_IMPOSSIBLE, end_cost)  # no bar has a single beat
    score = np.where(place <= last_place, 0, _IMPOSSIBLE) + emission[0]
    came_from = np.zeros((num_beats, len(metres)), np.int64)  # the last place of the bar before
    for beat in range(1, num_beats):
        ended = score - end_cost
        came_from[beat] = ended.argmax(axis=1)
        score = np.concatenate([ended.max(axis=1, keepdims=True), score[:, :-1]], axis=1)
        score = score + emission[beat]
    metre, at = np.unravel_index(score.argmax(), score.shape)
    starts = []
    for beat in range(num_beats - 1, -1, -1):
        if at == 0:
            starts.append(beat)
            at = came_from[beat, metre]
        else:
            at = at - 1
    return Bars(np.array(starts[::-1], np.int64), BEATS_PER_BAR[metre])


def _intervals() -> IntArray:
    """Return the intervals between beats, in frames, that are tried."""
    shortest, longest = 60 * FRAME_RATE / FASTEST, 60 * FRAME_RATE / SLOWEST
    exact = np.exp(np.arange(np.log(shortest), np.log(longest), np.log(_INTERVAL_STEP)))
    return np.unique(exact.round()).astype(np.int64)


def _tempo_costs(intervals: IntArray) -> tuple[Array, Array]:
    """Return costs of an interval after another [before, after], and log odds of each [n]."""
    change = np.log(intervals / intervals[:, None])

    def density(width: float) -> NDArray[np.float64]:
        return np.exp(-0.5 * (change / width) ** 2) / width

    likelihood = (1 - _FREE_SHARE) * density(_STEADY) + _FREE_SHARE * density(_FREE)
    cost = np.log(likelihood.max()) - np.log(likelihood)
    log_tempo = np.log(60 * FRAME_RATE / intervals / _USUAL_TEMPO)
    prior = -0.5 * (log_tempo / _TEMPO_WIDTH) ** 2
    return cost.astype(np.float32), prior.astype(np.float32)
