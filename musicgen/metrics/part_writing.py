"""Four-part writing: ranges, voice crossings, parallels and chords."""

from itertools import combinations

import numpy as np

from musicgen.errors import UserError
from musicgen.midi import Score, Track, sort_notes
from musicgen.midi.score import FloatArray, IntArray

RANGES = ((60, 79), (55, 74), (48, 67), (40, 60))
"""Usual ranges of soprano, alto, tenor and bass: C4-G5, G3-D5, C3-G4, E2-C4 (Kostka & Payne)."""

SILENT = -1
NUM_VOICES = len(RANGES)

UNISON, FIFTH = 0, 7  # semitones
_TRIADS = ((0, 4, 7), (0, 3, 7), (0, 3, 6), (0, 4, 8))
_SEVENTHS = ((0, 4, 7, 10), (0, 4, 7, 11), (0, 3, 7, 10), (0, 3, 6, 10), (0, 3, 6, 9))
_TONES = [
    *(tones for triad in _TRIADS for n in (2, 3) for tones in combinations(triad, n)),
    *(tones for seventh in _SEVENTHS for tones in (seventh, (*seventh[:2], seventh[3]))),
]
_CHORDS = {frozenset((root + t) % 12 for t in tones) for root in range(12) for tones in _TONES}


def part_writing(score: Score) -> dict[str, float]:
    """Return measures of part writing for a piece in four voices, by name; NaN: undefined.

    - `out_of_range`: share of notes outside of `RANGES`.
    - `crossed`: share of time in which a voice is below a lower voice.
    - `parallel_fifths`, `parallel_octaves`: number per 100 beats. Two voices move at the same time,
      and are a perfect fifth (or an octave or unison) apart before and after, plus any number of
      octaves. Contrary motion counts too, as in music21's `VoiceLeadingQuartet.parallelFifth`.
    - `melody_fit`: share of notes of the highest voice at whose onset the voices form a chord: two
      or three tones of a triad, or a seventh chord with or without its fifth.

    Raises:
        UserError: the score does not have exactly four tracks with pitched notes.
    """
    voices = _voices(score)
    edges, pitches = sonorities(score)
    lengths, beats = np.diff(edges), edges[-1] - edges[0]
    sounds = pitches != SILENT
    crossed = np.zeros(len(pitches), bool)
    parallels = np.zeros(12, np.int64)  # by interval
    for high, low in combinations(range(NUM_VOICES), 2):
        intervals = parallel_intervals(pitches[:-1, [high, low]], pitches[1:, [high, low]])
        parallels += np.bincount(intervals[intervals != SILENT], minlength=12)
        is_below = pitches[:, high] < pitches[:, low]
        crossed |= is_below & sounds[:, high] & sounds[:, low]

    outside = [
        (track.notes["pitch"] < low) | (track.notes["pitch"] > high)
        for track, (low, high) in zip(voices, RANGES, strict=True)
    ]
    melody = np.unique(voices[0].notes["onset"]) / score.ticks_per_beat
    begins = np.searchsorted(edges, melody, side="right") - 1
    chords = [frozenset((chord[chord != SILENT] % 12).tolist()) for chord in pitches[begins]]
    return {
        "out_of_range": float(np.concatenate(outside).mean()),
        "crossed": float(crossed @ lengths / beats),
        "parallel_fifths": 100 * parallels[FIFTH] / beats,
        "parallel_octaves": 100 * parallels[UNISON] / beats,
        "melody_fit": float(np.mean([chord in _CHORDS for chord in chords])),
    }


def parallel_intervals(before: IntArray, after: IntArray) -> IntArray:
    """Return the interval in which two voices move in parallel, in semitones modulo 12: [...].

    Voices move in parallel if both sound, both change their pitch, and their interval modulo 12
    stays the same. Elsewhere the result is `SILENT`.

    Args:
        before, after: pitches of the two voices [..., 2], `SILENT` without a note.
    """
    interval = np.abs(before[..., 0] - before[..., 1]) % 12
    is_same = np.abs(after[..., 0] - after[..., 1]) % 12 == interval
    sounds = ((before != SILENT) & (after != SILENT)).all(axis=-1)
    moves = (before != after).all(axis=-1)
    return np.where(is_same & sounds & moves, interval, SILENT)


def sonorities(score: Score) -> tuple[FloatArray, IntArray]:
    """Return the sonorities of a score: the pitches of the four voices between changes.

    If notes of a voice overlap, the latest one counts; of several that begin together, the highest.

    Returns:
        The beats at which sonorities begin, and at which the last one ends [N + 1]. The pitches of
        the voices per sonority [N, 4], the highest voice first, `SILENT` without a note.
    """
    voices = [sort_notes(track.notes) for track in _voices(score)]
    edges = [(notes["onset"], notes["onset"] + notes["duration"]) for notes in voices]
    ticks = np.unique(np.concatenate(edges, axis=1))
    pitches = np.full((len(ticks) - 1, NUM_VOICES), SILENT)
    for voice, (notes, onset_and_end) in enumerate(zip(voices, edges, strict=True)):
        spans = np.searchsorted(ticks, onset_and_end).T.tolist()
        for (first, stop), pitch in zip(spans, notes["pitch"].tolist(), strict=True):
            pitches[first:stop, voice] = pitch
    changed = np.append(True, (pitches[1:] != pitches[:-1]).any(axis=1))
    return ticks[np.append(changed, True)] / score.ticks_per_beat, pitches[changed]


def _voices(score: Score) -> list[Track]:
    """Return the tracks of the four voices, from the highest mean pitch to the lowest."""
    voices = [track for track in score.tracks if len(track.notes) and not track.is_drum]
    if len(voices) != NUM_VOICES:
        raise UserError(f"{len(voices)} tracks with notes; four-part writing needs {NUM_VOICES}")
    return sorted(voices, key=lambda track: -track.notes["pitch"].mean())
