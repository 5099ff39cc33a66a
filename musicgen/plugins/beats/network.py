"""A small network that predicts beats, and where bars begin, in each frame of a performance.

A temporal convolutional network as for audio (Davies & Böck 2019, "Temporal convolutional networks
for musical audio beat tracking") reads a performance's notes in frames of 25 ms.
`benchmarks/beat_network.py` trained it on composed and printed music that was performed by random
tempo curves; the weights are in `beat_network.npz`.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.midi.score import Score

FRAME_RATE = 40
"""Frames a second."""

FEATURES = (
    "notes",
    "loudness",
    "low notes",
    "middle notes",
    "high notes",
    "bass",
    "top",
    "length",
    "time to the next onset",
    "harmony within .5 s",
    "harmony within 1 s",
    "new bass",
    "harmony within 2 s",
    "sounding notes",
    "bass drum",
    "snare drum",
    "other drums",
)
"""What a frame holds. Harmony is one minus the similarity of the pitch classes before and after."""

WEIGHTS = Path(__file__).with_name("beat_network.npz")

_LOW, _HIGH = 48, 62  # MIDI pitches from which notes are middle and high ones
_HARMONY_SECONDS = (0.5, 1.0, 2.0)
_LONGEST, _LONGEST_GAP, _LAST_NOTE = 2.0, 2.0, 4.0  # seconds
_SNARE, _LAST_BASS_DRUM, _LAST_SNARE = (38, 39, 40), 36, 40

FloatArray = NDArray[np.float64]
Array = NDArray[np.float32]


class PlayedNotes(NamedTuple):
    """Columns of the notes of a performance in the order of their onsets, [N] each.

    Attributes:
        onset, duration: in seconds.
    """

    onset: FloatArray
    duration: FloatArray
    pitch: NDArray[np.int64]
    velocity: FloatArray
    is_drum: NDArray[np.bool_]


def played_notes(score: Score) -> PlayedNotes:
    """Return the notes of a score in seconds."""
    notes = score.notes
    is_drum = np.repeat(
        np.array([track.is_drum for track in score.tracks], bool),
        [len(track.notes) for track in score.tracks],
    )
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
    """Return the `FEATURES` of each frame of a performance. [F, 17]"""
    last = float((notes.onset + np.minimum(notes.duration, _LAST_NOTE)).max()) + 0.5
    num_frames = int(last * FRAME_RATE) + 1
    place = np.minimum(notes.onset * FRAME_RATE, num_frames - 1.001)
    frame = np.minimum((place + 0.5).astype(np.int64), num_frames - 1)
    features = dict.fromkeys(FEATURES, np.zeros(num_frames))
    loudness = notes.velocity / 64

    def total(chosen: NDArray[np.bool_], weights: FloatArray = loudness) -> FloatArray:
        """Add up weights of the chosen notes, each shared by the two frames around its onset."""
        return _spread(place[chosen], weights[chosen], num_frames)

    everything, pitched = np.ones(len(place), bool), ~notes.is_drum
    features["notes"] = np.log1p(total(everything, np.ones(len(place))))
    features["loudness"] = np.log1p(total(everything))
    low, high = notes.pitch < _LOW, notes.pitch >= _HIGH
    features["low notes"] = np.log1p(total(low & pitched))
    features["middle notes"] = np.log1p(total(~low & ~high & pitched))
    features["high notes"] = np.log1p(total(high & pitched))
    onsets = np.unique(frame)
    features["time to the next onset"] = np.zeros(num_frames)
    gaps = np.diff(onsets, append=num_frames) / FRAME_RATE
    features["time to the next onset"][onsets] = np.minimum(gaps, _LONGEST_GAP)
    drum = notes.pitch
    is_snare, is_bass_drum = np.isin(drum, _SNARE), drum <= _LAST_BASS_DRUM
    features["bass drum"] = np.log1p(total(is_bass_drum & notes.is_drum))
    features["snare drum"] = np.log1p(total(is_snare & notes.is_drum))
    features["other drums"] = np.log1p(total((drum > _LAST_SNARE) & notes.is_drum))
    if pitched.any():
        is_bass, is_top = _outer_voices(frame, notes.pitch, pitched, num_frames)
        features["bass"], features["top"] = total(is_bass), total(is_top)
        features["length"] = np.log1p(total(pitched, np.minimum(notes.duration, _LONGEST)))
        bass_class = notes.pitch[is_bass] % 12
        is_new = is_bass.copy()
        is_new[is_bass] = np.diff(bass_class, prepend=-1) != 0
        features["new bass"] = np.minimum(total(is_new, np.ones(len(place))), 1)
        features["sounding notes"] = _sounding(notes, frame, pitched, num_frames)
        for seconds, change in zip(
            _HARMONY_SECONDS, _harmony(notes, place, pitched, num_frames), strict=True
        ):
            features[f"harmony within {f'{seconds:g}'.lstrip('0')} s"] = change
    return np.stack([features[name] for name in FEATURES], axis=1).astype(np.float32)


def _spread(place: FloatArray, weights: FloatArray, num_frames: int) -> FloatArray:
    before = place.astype(np.int64)
    part = place - before
    first = np.bincount(before, weights * (1 - part), num_frames + 1)
    second = np.bincount(before + 1, weights * part, num_frames + 1)
    return np.asarray((first + second)[:num_frames], np.float64)


def _outer_voices(
    frame: NDArray[np.int64],
    pitch: NDArray[np.int64],
    pitched: NDArray[np.bool_],
    num_frames: int,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which notes are the lowest, and the highest, within half a second. [N] each"""
    from scipy.ndimage import maximum_filter1d, minimum_filter1d  # slow to import

    lowest, highest = np.full(num_frames, 128), np.full(num_frames, -1)
    np.minimum.at(lowest, frame[pitched], pitch[pitched])
    np.maximum.at(highest, frame[pitched], pitch[pitched])
    is_bass = pitched & (pitch <= minimum_filter1d(lowest, FRAME_RATE + 1)[frame])
    is_top = pitched & (pitch >= maximum_filter1d(highest, FRAME_RATE + 1)[frame])
    return is_bass, is_top


def _sounding(
    notes: PlayedNotes,
    frame: NDArray[np.int64],
    pitched: NDArray[np.bool_],
    num_frames: int,
) -> FloatArray:
    """Return the logarithm of the number of notes that sound in each frame. [F]"""
    end = ((notes.onset + notes.duration)[pitched] * FRAME_RATE).astype(np.int64)
    ends = np.bincount(np.minimum(end, num_frames - 1), minlength=num_frames)
    begins = np.bincount(frame[pitched], minlength=num_frames)
    return np.log1p(np.maximum(np.cumsum(begins - ends), 0))


def _harmony(
    notes: PlayedNotes, place: FloatArray, pitched: NDArray[np.bool_], num_frames: int
) -> list[FloatArray]:
    """Return the change of harmony around each frame, for each of `_HARMONY_SECONDS`. [F] each"""
    weights = np.minimum(notes.duration, 1) + 0.1
    sums = np.zeros((num_frames + 1, 12))
    for pitch_class in range(12):
        chosen = pitched & (notes.pitch % 12 == pitch_class)
        sums[1:, pitch_class] = np.cumsum(_spread(place[chosen], weights[chosen], num_frames))
    middle = np.maximum(np.arange(num_frames) - 1, 0)
    changes = []
    for seconds in _HARMONY_SECONDS:
        width = int(seconds * FRAME_RATE)
        before = sums[middle] - sums[np.maximum(middle - width, 0)]
        after = sums[np.minimum(middle + width, num_frames)] - sums[middle]
        norms = np.sqrt((before**2).sum(axis=1) * (after**2).sum(axis=1))
        changes.append(1 - (before * after).sum(axis=1) / (norms + 1e-6))
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
