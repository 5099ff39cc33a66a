"""Chords, scales and voice leading."""

import re
from dataclasses import dataclass, replace
from functools import cache

from musicgen.midi.key import Key
from musicgen.tokenization.chords import INTERVALS, ROOTS

_STEPS = {"I": 0, "II": 2, "III": 4, "IV": 5, "V": 7, "VI": 9, "VII": 11}
_NUMERAL = re.compile(r"([b#]?)([IV]+|[iv]+)(.*)")


@dataclass(frozen=True)
class Chord:
    """A chord: root and bass are pitch classes, and the quality is a key of `INTERVALS`."""

    root: int
    quality: str
    bass: int

    @property
    def pitch_classes(self) -> tuple[int, ...]:
        return tuple((self.root + interval) % 12 for interval in INTERVALS[self.quality])

    @property
    def marker(self) -> str:
        """The chord marker, such as `A_M7_E`."""
        return f"{ROOTS[self.root]}_{self.quality}_{ROOTS[self.bass]}"


@cache
def spell(numeral: str, tonic: int) -> Chord:
    """Return the root-position chord of a Roman numeral, such as `bVI`, `ii7` or `V7/ii`.

    Degrees refer to the major scale in both modes. Lower case stands for a minor third. The suffix
    is a quality of `INTERVALS`, except that `7` on a lower-case numeral is m7, and `h7` is /o7.
    `V7/ii` is the applied chord of ii.
    """
    head, _, target = numeral.partition("/")
    if target:
        tonic = spell(target, tonic).root
    match = _NUMERAL.fullmatch(head)
    assert match, f"not a Roman numeral: {numeral}"
    accidental, degree, suffix = match.groups()
    root = tonic + _STEPS[degree.upper()] + {"b": -1, "#": 1, "": 0}[accidental]
    minor = degree.islower()
    short = {"": "m" if minor else "M", "7": "m7" if minor else "7", "h7": "/o7"}
    quality = short.get(suffix, suffix)
    return Chord(root % 12, quality, root % 12)


@cache
def scale_over(chord: Chord, key: Key) -> tuple[int, ...]:
    """Return the pitch classes that a melody may use over a chord, sorted.

    They are the scale of the key, but a chord tone outside of it replaces the scale notes that are
    a semitone away.
    """
    tones = set(chord.pitch_classes)
    chromatic = tones - set(key.scale)
    scale_notes = {
        note
        for note in key.scale
        if note in tones or not any((note - other) % 12 in (1, 11) for other in chromatic)
    }
    return tuple(sorted(scale_notes | tones))


@cache
def ladder(pitch_classes: tuple[int, ...], low: int, high: int) -> tuple[int, ...]:
    """Return all MIDI pitches of the pitch classes within [low, high], ascending."""
    return tuple(pitch for pitch in range(low, high + 1) if pitch % 12 in pitch_classes)


def nearest(pitches: tuple[int, ...], target: float) -> int:
    """Return the pitch closest to the target; of two equally close ones, the lower."""
    return min(pitches, key=lambda pitch: (abs(pitch - target), pitch))


@cache
def close_voicing(
    chord: Chord, previous: tuple[int, ...], low: int, high: int, size: int
) -> tuple[int, ...]:
    """Return the close-position voicing in [low, high] that moves least from the previous one.

    A seventh chord in three notes omits the fifth.

    Args:
        previous: the previous voicing, as MIDI pitches; (): choose one near the middle of the
            range.
        size: number of notes.
    """
    tones = chord.pitch_classes
    if len(tones) > size:
        tones = tones[:2] + tones[3:]
    rungs = ladder(tones, low, high)
    candidates = [rungs[i : i + size] for i in range(len(rungs) - size + 1)]
    centre = (low + high) / 2

    def effort(voicing: tuple[int, ...]) -> tuple[float, int]:
        drift = abs(sum(voicing) / size - centre)
        if len(previous) != size:
            return drift, voicing[0]
        motion = sum(abs(a - b) for a, b in zip(voicing, previous, strict=True))
        return motion + drift / 2, voicing[0]

    return min(candidates, key=effort)


def lead_basses(chords: list[Chord], keep: set[int]) -> list[Chord]:
    """Return the chords, inverted where that makes the bass line stepwise.

    Chords at the indices `keep`, and suspended chords, are not inverted.
    """
    inverted = list(chords)
    for i in range(1, len(chords) - 1):
        if i in keep or chords[i].quality.startswith("sus"):
            continue
        before, after = inverted[i - 1].bass, chords[i + 1].bass
        steps = {
            bass: _gap(before, bass) + _gap(bass, after) for bass in chords[i].pitch_classes[:3]
        }
        best = min(steps, key=lambda bass: (steps[bass], bass != chords[i].root, bass))
        if steps[best] <= 4 and steps[best] + 3 <= steps[chords[i].root] and best != before:
            inverted[i] = replace(chords[i], bass=best)
    return inverted


def _gap(a: int, b: int) -> int:
    """Return the shortest distance between two pitch classes in semitones."""
    return min((a - b) % 12, (b - a) % 12)
