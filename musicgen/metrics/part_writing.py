"""Writing in four parts: ranges, crossings, parallels and chords."""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.midi import Score, Track

RANGES = ((60, 79), (55, 74), (48, 67), (40, 60))
"""Usual ranges of soprano, alto, tenor and bass: C4-G5, G3-D5, C3-G4, E2-C4 (Kostka & Payne)."""

SILENT = -1
NUM_VOICES = len(RANGES)

_UNISON, _FIFTH = 0, 7
_TRIADS = ((0, 4, 7), (0, 3, 7), (0, 3, 6), (0, 4, 8))
_SEVENTHS = ((0, 4, 7, 10), (0, 4, 7, 11), (0, 3, 7, 10), (0, 3, 6, 10), (0, 3, 6, 9))
_TONES = [
    *(tones for triad in _TRIADS for n in (2, 3) for tones in combinations(triad, n)),
    *(tones for seventh in _SEVENTHS for tones in (seventh, (*seventh[:2], seventh[3]))),
]
_CHORDS = {frozenset((root + t) % 12 for t in tones) for root in range(12) for tones in _TONES}

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def part_writing(score: Score) -> dict[str, float]:
    """Return measures of a piece in four voices; NaN where nothing can be counted.

    - `out_of_range`: share of the notes outside `RANGES`.
    - `crossed`: share of the time in which a voice is below a lower one.
    - `parallel_fifths`, `parallel_octaves`: per 100 beats. Two voices move together, and are a
      perfect fifth (an octave or unison) apart before and after, give or take octaves; contrary
      motion counts too, as in music21's `VoiceLeadingQuartet.parallelFifth`.
    - `melody_fit`: share of the highest voice's notes at whose beginning the voices sing two or
      three tones of a triad, or a seventh chord, whose fifth may be missing.

    Raises:
        UserError: the score has other than four tracks with notes, without drums.
    """
    voices = _voices(score)
    edges, pitches = sonorities(score)
    lengths, beats = np.diff(edges), edges[-1] - edges[0]
    sounds = pitches != SILENT
    moves = np.zeros_like(sounds)
    moves[1:] = (pitches[1:] != pitches[:-1]) & sounds[1:] & sounds[:-1]
    crossed = np.zeros(len(pitches), bool)
    parallels = np.zeros(12, np.int64)  # by interval
    for high, low in combinations(range(NUM_VOICES), 2):
        gap = pitches[:, high] - pitches[:, low]
        interval = np.abs(gap) % 12
        kept = moves[1:, high] & moves[1:, low] & (interval[1:] == interval[:-1])
        parallels += np.bincount(interval[1:][kept], minlength=12)
        crossed |= (gap < 0) & sounds[:, high] & sounds[:, low]

    outside = [
        (track.notes["pitch"] < low) | (track.notes["pitch"] > high)
        for track, (low, high) in zip(voices, RANGES, strict=True)
    ]
    melody = np.unique(voices[0].notes["onset"]) / score.ticks_per_beat
    begins = np.searchsorted(edges, melody, side="right") - 1
    sung = [frozenset((row[row != SILENT] % 12).tolist()) for row in pitches[begins]]
    return {
        "out_of_range": float(np.concatenate(outside).mean()),
        "crossed": float(crossed @ lengths / beats),
        "parallel_fifths": 100 * parallels[_FIFTH] / beats,
        "parallel_octaves": 100 * parallels[_UNISON] / beats,
        "melody_fit": float(np.mean([tones in _CHORDS for tones in sung])),
    }


def sonorities(score: Score) -> tuple[FloatArray, IntArray]:
    """Return what sounds between changes of pitch, from the first note to the end of the last.

    While notes of a voice overlap, the latest sounds; of those that begin together, the highest.

    Returns:
        The beats at which sonorities begin and the last one ends [N + 1], and the pitch of each
        voice in each of them, the highest voice first, `SILENT` without a note [N, 4].
    """
    voices = [track.notes for track in _voices(score)]
    ends = [notes["onset"] + notes["duration"] for notes in voices]
    ticks = np.unique(np.concatenate([*(notes["onset"] for notes in voices), *ends]))
    pitches = np.full((len(ticks) - 1, NUM_VOICES), SILENT)
    for voice, (notes, end) in enumerate(zip(voices, ends, strict=True)):
        order = np.lexsort((notes["pitch"], notes["onset"]))
        spans = np.searchsorted(ticks, [notes["onset"][order], end[order]]).T.tolist()
        for (first, stop), pitch in zip(spans, notes["pitch"][order].tolist(), strict=True):
            pitches[first:stop, voice] = pitch
    changed = np.append(True, (pitches[1:] != pitches[:-1]).any(axis=1))
    return ticks[np.append(changed, True)] / score.ticks_per_beat, pitches[changed]


def _voices(score: Score) -> list[Track]:
    """Return the tracks of the voices, the highest on average first."""
    voices = [track for track in score.tracks if len(track.notes) and not track.is_drum]
    if len(voices) != NUM_VOICES:
        raise UserError(f"{len(voices)} tracks with notes; four-part writing needs {NUM_VOICES}")
    return sorted(voices, key=lambda track: -track.notes["pitch"].mean())
