"""A network that predicts beats in the notes of a performance, and the search for likely ones.

A temporal convolutional network as for audio (Davies & Böck 2019, "Temporal convolutional networks
for musical audio beat tracking") reads a performance's notes in frames of 25 ms.
`benchmarks/beat_network.py` trained it on composed and printed music that was performed by random
tempo curves; the weights are in `beat_network.npz`.

Dynamic programming finds the beats in a semi-Markov model, whose states are a beat's frame and the
interval before it; the next interval is likely to be similar. It is the bar-pointer model of Krebs
et al. 2015 ("An efficient state-space model for joint tempo and meter tracking") with its tempo
changes at beats.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.midi.score import FloatArray, IntArray, Score

FRAME_RATE = 40
"""Frames a second."""

NUM_FEATURES = 17
"""Numbers that describe a frame, see `frame_features`."""

WEIGHTS = Path(__file__).with_name("beat_network.npz")

_LOW, _HIGH = 48, 62  # lowest MIDI pitches of the middle and of high notes
_HARMONY_SECONDS = (0.5, 1.0, 2.0)
_LONGEST, _LONGEST_GAP, _LAST_NOTE = 2.0, 2.0, 4.0  # seconds
_SNARE, _LAST_BASS_DRUM, _LAST_SNARE = (38, 39, 40), 36, 40

SLOWEST, FASTEST = 22, 260
"""Beats a minute."""

_INTERVAL_STEP = 1.045  # between neighbouring intervals, but at least a frame
_STEADY, _FREE, _FREE_SHARE = 0.15, 0.35, 0.1  # widths of changes of log tempo, their mixture
_USUAL_TEMPO, _TEMPO_WIDTH, _TEMPO_WEIGHT = 85.0, 0.5, 0.2  # the width is of log tempo
_NEARBY = 2  # frames around a beat in which the network may expect it
_FRAMES_PER_BEAT = 2.0  # the sum of the network's targets around a beat
_LOWEST, _HIGHEST = 0.003, 0.98  # probabilities of a beat
_PEAK = 0.2  # the part of a frame's own log odds, which say where the beat is among the nearby ones
_BEAT_BONUS = 0.5  # in nats: favours a beat when unsure
_IMPOSSIBLE = np.float32(-1e9)

BEATS_PER_BAR = (2, 3, 4)
_LONGEST_BAR = 6  # beats, of a bar that is longer than the others
ODD_BAR = 6.0
"""What a bar of another length than most costs, in nats."""

Array = NDArray[np.float32]


class PlayedNotes(NamedTuple):
    """Columns of the notes of a performance in the order of their onsets, [N] each.

    Attributes:
        onset, duration: in seconds.
    """

    onset: FloatArray
    duration: FloatArray
    pitch: IntArray
    velocity: FloatArray
    is_drum: NDArray[np.bool_]


def played_notes(score: Score) -> PlayedNotes:
    """Return the notes of a score in seconds."""
    notes = score.notes
    tracks = score.tracks
    is_drum = np.repeat([each.is_drum for each in tracks], [len(each.notes) for each in tracks])
    order = np.argsort(notes["onset"], kind="stable")
    notes, is_drum = notes[order], is_drum[order]
    onset = score.seconds_at(notes["onset"])
    duration = score.seconds_at(notes["onset"] + notes["duration"]) - onset
    velocity = notes["velocity"].astype(np.float64)
    return PlayedNotes(onset, duration, notes["pitch"], velocity, is_drum)


def beat_logits(notes: PlayedNotes) -> Array:
    """Return the log odds of a beat and of a bar's beginning in each frame. [F, 2]"""
    network = _network()
    hidden = _convolve(frame_features(notes), network["inp.weight"], network["inp.bias"], 1)
    for index in range(sum(name.startswith("conv") for name in network) // 2):
        weight, bias = network[f"conv.{index}.weight"], network[f"conv.{index}.bias"]
        inner = np.maximum(_convolve(hidden, weight, bias, 2**index), 0)
        hidden += inner @ network[f"mix.{index}.weight"] + network[f"mix.{index}.bias"]
    return hidden @ network["out.weight"] + network["out.bias"]


def frame_features(notes: PlayedNotes) -> Array:
    """Return the features of each frame of a performance. [F, 17]

    Loudness is of the notes that begin at a frame. Harmony is one minus the similarity of the pitch
    classes before and after.
    """
    from scipy.ndimage import maximum_filter1d  # slow to import

    last = float((notes.onset + np.minimum(notes.duration, _LAST_NOTE)).max()) + 0.5
    num_frames = int(last * FRAME_RATE) + 1
    place = np.minimum(notes.onset * FRAME_RATE, num_frames - 1.001)
    before, frame = place.astype(np.int64), (place + 0.5).astype(np.int64)
    frame = np.minimum(frame, num_frames - 1)
    pitch, drums, pitched = notes.pitch, notes.is_drum, ~notes.is_drum
    loudness = notes.velocity / 64

    def total(weights: NDArray[Any]) -> FloatArray:
        """Add up weights of notes, each shared by the two frames around its onset. [F]"""
        first = np.bincount(before, weights * (1 - (place - before)), num_frames + 1)
        second = np.bincount(before + 1, weights * (place - before), num_frames + 1)
        return np.asarray((first + second)[:num_frames], np.float64)

    def is_highest(values: IntArray) -> NDArray[np.bool_]:
        """Return whether pitched notes have the highest value within half a second. [N]"""
        highest = np.full(num_frames, -128)
        np.maximum.at(highest, frame, np.where(pitched, values, -128))
        return pitched & (values >= maximum_filter1d(highest, FRAME_RATE + 1)[frame])

    low, high = pitched & (pitch < _LOW), pitched & (pitch >= _HIGH)
    is_bass = is_highest(-pitch)
    is_new_bass = is_bass.copy()
    is_new_bass[is_bass] = np.diff(pitch[is_bass] % 12, prepend=-1) != 0
    onsets = np.unique(frame)
    gaps = np.zeros(num_frames)  # seconds to the next onset
    gaps[onsets] = np.minimum(np.diff(onsets, append=num_frames) / FRAME_RATE, _LONGEST_GAP)
    end = np.minimum((notes.onset + notes.duration) * FRAME_RATE, num_frames - 1).astype(np.int64)
    begins, ends = (np.bincount(each[pitched], minlength=num_frames) for each in (frame, end))
    weights = pitched * (np.minimum(notes.duration, 1) + 0.1)
    chroma = [total(weights * (pitch % 12 == pitch_class)) for pitch_class in range(12)]
    half_second, second, two_seconds = _harmony(np.stack(chroma, axis=1))
    features = [
        np.log1p(total(np.ones(len(place)))),  # the number of notes
        np.log1p(total(loudness)),
        np.log1p(total(loudness * low)),
        np.log1p(total(loudness * (pitched & ~low & ~high))),
        np.log1p(total(loudness * high)),
        total(loudness * is_bass),
        total(loudness * is_highest(pitch)),
        np.log1p(total(pitched * np.minimum(notes.duration, _LONGEST))),
        gaps,
        half_second,
        second,
        np.minimum(total(is_new_bass), 1),
        two_seconds,
        np.log1p(np.maximum(np.cumsum(begins - ends), 0)),  # of sounding notes
        np.log1p(total(loudness * drums * (pitch <= _LAST_BASS_DRUM))),
        np.log1p(total(loudness * drums * np.isin(pitch, _SNARE))),
        np.log1p(total(loudness * drums * (pitch > _LAST_SNARE))),
    ]
    return np.stack(features, axis=1).astype(np.float32)


def _harmony(chroma: FloatArray) -> list[FloatArray]:
    """Return the change of harmony around each frame, per length of time. [F] each

    Args:
        chroma: weights of the pitch classes. [F, 12]
    """
    num_frames = len(chroma)
    sums = np.concatenate([np.zeros((1, 12)), np.cumsum(chroma, axis=0)])
    middle = np.maximum(np.arange(num_frames) - 1, 0)
    changes = []
    for seconds in _HARMONY_SECONDS:
        width = int(seconds * FRAME_RATE)
        before = sums[middle] - sums[np.maximum(middle - width, 0)]
        after = sums[np.minimum(middle + width, num_frames)] - sums[middle]
        norms = np.sqrt((before**2).sum(axis=1) * (after**2).sum(axis=1))
        similarity = (before * after).sum(axis=1) / (norms + 1e-6)
        changes.append(chroma.any() * (1 - similarity))  # 0 without pitched notes
    return changes


@cache
def _network() -> dict[str, Array]:
    """Return the weights by name: of convolutions [width, in, out], of other layers [in, out]."""
    with np.load(WEIGHTS) as weights:
        return {name: weights[name].astype(np.float32) for name in weights.files}


def _convolve(x: Array, weight: Array, bias: Array, dilation: int) -> Array:
    """Convolve [F, in] with [width, in, out] around each frame; outside there are zeros."""
    width, num_frames = len(weight), len(x)
    margin = dilation * (width // 2)
    padded = np.pad(x, ((margin, margin), (0, 0)))
    starts = range(0, width * dilation, dilation)
    shifted = np.concatenate([padded[start : start + num_frames] for start in starts], axis=1)
    return shifted @ weight.reshape(-1, weight.shape[-1]) + bias


def find_beat_frames(logits: Array, latest_start: int, earliest_end: int) -> IntArray:
    """Return the frames of the most likely beats. [num_beats]

    Args:
        logits: the network's log odds of a beat in each frame. [F]
        latest_start: frame until which the first beat comes.
        earliest_end: frame from which the last one comes.
    """
    own = np.clip(logits, -4, 4)
    logits = (nearby_beat_odds(logits) + _PEAK * own + _BEAT_BONUS).astype(np.float32)
    num_frames = len(logits)
    intervals, change_cost, prior = _tempo_model()
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


def nearby_beat_odds(logits: Array) -> FloatArray:
    """Return the log odds of a beat within two frames of each, by the network's of frames. [F]"""
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    expected = np.convolve(probabilities, np.ones(2 * _NEARBY + 1), "same") / _FRAMES_PER_BEAT
    expected = np.clip(expected, _LOWEST, _HIGHEST)
    return np.log(expected / (1 - expected))


def bar_odds(logits: Array, frames: IntArray) -> FloatArray:
    """Return the log odds that a bar begins, given a beat, at each beat. [num_beats]

    Args:
        logits: the network's of beats and bars. [F, 2]
        frames: of the beats. [num_beats]
    """
    from scipy.ndimage import maximum_filter1d  # slow to import

    nearby = maximum_filter1d(logits, 2 * _NEARBY + 1, axis=0, mode="nearest")[frames]
    is_beat, is_bar = (1 / (1 + np.exp(-nearby.astype(np.float64)))).T
    begins = np.clip(is_bar / np.maximum(is_beat, is_bar + 0.02), 0.02, 0.98)
    return np.log(begins / (1 - begins))


class Bars(NamedTuple):
    """The most likely bars of a metre.

    Attributes:
        fit: their log likelihood, in nats a beat.
        beats_per_bar: beats in most bars.
        starts: indices of the beats at which bars begin. [num_bars]
    """

    fit: float
    beats_per_bar: int
    starts: IntArray


def find_bars(
    odds: FloatArray, beats_per_bar: Sequence[int], odd_bar: float = ODD_BAR
) -> list[Bars]:
    """Return the most likely bars of each metre, the best metre first.

    Single bars may be longer or shorter than the others.

    Args:
        odds: log odds that a bar begins at each beat. [num_beats]
        beats_per_bar: beats in most bars of each metre.
        odd_bar: what a bar of another length costs, in nats.
    """
    num_beats, metres = len(odds), np.arange(len(beats_per_bar))
    place = np.arange(max(_LONGEST_BAR, *beats_per_bar, 0))  # of a beat in its bar
    emission = -np.logaddexp(0, np.where(place == 0, -odds[:, None], odds[:, None]))
    last_place = np.array(beats_per_bar)[:, None] - 1
    end_cost = np.where(place == last_place, 0, odd_bar)
    end_cost = np.where(place == 0, -_IMPOSSIBLE, end_cost)  # no bar has a single beat
    score = np.where(place <= last_place, 0, _IMPOSSIBLE) + emission[0]
    came_from = np.zeros((num_beats, len(metres)), np.int64)  # the last place of the bar before
    for beat in range(1, num_beats):
        ended = score - end_cost
        came_from[beat] = ended.argmax(axis=1)
        score = np.concatenate([ended.max(axis=1, keepdims=True), score[:, :-1]], axis=1)
        score = score + emission[beat]
    found = []
    for metre, each in enumerate(beats_per_bar):
        starts, start = [], num_beats - 1 - int(score[metre].argmax())
        while start >= 0:
            starts.append(start)
            start -= 1 + int(came_from[start, metre])
        fit = float(score[metre].max()) / num_beats
        found.append(Bars(fit, each, np.array(starts[::-1], np.int64)))
    return sorted(found, key=lambda bars: -bars.fit)


def _tempo_model() -> tuple[IntArray, Array, Array]:
    """Return the intervals between beats that are tried, and their costs.

    Returns:
        Intervals in frames [n], costs of one after another [before, after], log odds of each [n].
    """
    shortest, longest = 60 * FRAME_RATE / FASTEST, 60 * FRAME_RATE / SLOWEST
    exact = np.exp(np.arange(np.log(shortest), np.log(longest), np.log(_INTERVAL_STEP)))
    intervals = np.unique(exact.round()).astype(np.int64)
    change = np.log(intervals / intervals[:, None])

    def density(width: float) -> FloatArray:
        return np.exp(-0.5 * (change / width) ** 2) / width

    likelihood = (1 - _FREE_SHARE) * density(_STEADY) + _FREE_SHARE * density(_FREE)
    cost = np.log(likelihood.max()) - np.log(likelihood)
    log_tempo = np.log(60 * FRAME_RATE / intervals / _USUAL_TEMPO)
    prior = -0.5 * (log_tempo / _TEMPO_WIDTH) ** 2
    return intervals, cost.astype(np.float32), prior.astype(np.float32)
