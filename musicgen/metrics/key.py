"""Descriptors of pitch and density, by which continuations are compared to real ones.

They are muspy's `scale_consistency` (Mogren 2016, "C-RNN-GAN"), `pitch_in_scale_rate` (Dong et al.
2018, "MuseGAN") and `pitch_class_entropy` (Wu and Yang 2020, "The Jazz Transformer"), without a
conversion of the score.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import Score

_MAJOR = (0, 2, 4, 5, 7, 9, 11)
_SCALES = np.array([np.isin(np.arange(12), (np.array(_MAJOR) + root) % 12) for root in range(12)])


def pitch_classes(score: Score) -> NDArray[np.int64]:
    """Count the notes of each pitch class, without drums. [12]"""
    pitches = [track.notes["pitch"] for track in score.tracks if not track.is_drum]
    return np.bincount(np.concatenate([[], *pitches]).astype(np.int64) % 12, minlength=12)


def find_scale(score: Score) -> int:
    """Return the root 0-11 of the major scale that holds most notes; the lowest of equals.

    A natural minor scale has the notes of its relative major scale.
    """
    return int(np.argmax(_SCALES @ pitch_classes(score)))


def in_scale_share(score: Score, root: int) -> float:
    """Return the share of notes that the major scale on `root` holds; NaN without notes."""
    counts = pitch_classes(score)
    return float(_SCALES[root] @ counts / counts.sum()) if counts.any() else np.nan


def pitch_class_entropy(score: Score) -> float:
    """Return the entropy of the pitch classes in bits, 0 to log2(12); NaN without notes."""
    counts = pitch_classes(score)
    if not counts.any():
        return np.nan
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())
