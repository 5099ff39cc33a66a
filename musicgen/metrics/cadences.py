"""How pieces and phrases end: the last harmonies, the last notes, half cadences and answers."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from musicgen.metrics.intervals import mean_of_valid
from musicgen.metrics.melody import leading_part
from musicgen.metrics.repeated_bars import ALIKE, Events
from musicgen.midi import NoteArray, Score, pitched_notes
from musicgen.midi.key import Key
from musicgen.midi.score import FloatArray, IntArray, beats_in_bar

NUMERALS = ("I", "bII", "II", "bIII", "III", "IV", "#IV", "V", "bVI", "VI", "bVII", "VII")
"""Roman numerals by semitones above the tonic, those of the major scale in both modes (de Clercq &
Temperley 2011). Chords with a minor third have small letters."""
DEGREES = ("1", "b2", "2", "b3", "3", "4", "#4", "5", "b6", "6", "b7", "7")
"""Degrees of the scale, by semitones above the tonic."""
PERIODS = (4, 8)
"""Bars of the phrases whose half cadences and answers are counted."""
DOMINANT, LEADING_TONE = 7, 11  # semitones above the tonic
STEP = 2  # semitones, the largest step

# Tones above the root (Pardo & Birmingham 2002, "Algorithms for chordal analysis").
_QUALITIES = ((0, 4, 7), (0, 3, 7), (0, 4, 7, 10), (0, 3, 6), (0, 3, 6, 10), (0, 3, 6, 9))
_IS_MINOR = [3 in tones for tones in _QUALITIES]
# The tones of the chords: all roots of the first quality, then of the next. [72, 12]
_TONES = np.array(
    [np.isin(np.arange(12), np.add(root, tones) % 12) for tones in _QUALITIES for root in range(12)]
)
_ROOTS = np.arange(len(_TONES)) % 12
_IS_DIMINISHED_SEVENTH = np.arange(len(_TONES)) // 12 == len(_QUALITIES) - 1
_SOUNDS = 0.1  # beats; a tone that sounds for less is missing from a chord
_TIE_BASS, _TIE_ROOT = 0.02, 0.01  # decide between chords that fit equally well
_BARS = 8  # the last ones, in which the last harmonies are searched


class Harmony(NamedTuple):
    """A chord: its first tick, its root as a pitch class, and whether its third is minor."""

    tick: int
    root: int
    is_minor: bool

    def degree(self, key: Key) -> str:
        """Return its Roman numeral in a key (`NUMERALS`): V, i, bVI."""
        numeral = NUMERALS[(self.root - key.tonic) % 12]
        return numeral.lower() if self.is_minor else numeral


class Ending(NamedTuple):
    """How a piece ends.

    Attributes:
        harmonies: the Roman numerals of the last two harmonies; fewer if there are fewer.
        last_length: length in quarters of the longest of the notes that begin last.
        degree: degree of the last note of the leading part; empty without notes.
        step: the interval in semitones by which it got there from the last other pitch; 0 if there
            is none.
    """

    harmonies: tuple[str, ...]
    last_length: float
    degree: str
    step: int

    @property
    def is_dominant_tonic(self) -> bool:
        """Whether V or vii (a V without its root) leads to I or i."""
        return len(self.harmonies) == 2 and (
            self.harmonies[0] in ("V", "vii") and self.harmonies[1] in ("I", "i")
        )


def ending(score: Score, key: Key, like: Score | None = None) -> Ending:
    """Return how a piece ends in a key.

    Args:
        like: see `leading_part`.
    """
    found = harmonies(score, key)
    notes, lead = pitched_notes(score), leading_part(score, like)
    last = notes["duration"][notes["onset"] == notes["onset"].max(initial=0)]
    pitches = lead["pitch"]
    others = pitches[pitches != pitches[-1]] if len(pitches) else pitches
    return Ending(
        tuple(chord.degree(key) for chord in found[-2:]),
        float(last.max(initial=0) / score.ticks_per_beat),
        DEGREES[(pitches[-1] - key.tonic) % 12] if len(pitches) else "",
        int(pitches[-1] - others[-1]) if len(others) else 0,
    )


def harmonies(score: Score, key: Key) -> list[Harmony]:
    """Return the harmonies of the last eight bars, each with another root than the one before.

    The bars are divided at beats so that the sum of the scores of the parts is highest (Pardo &
    Birmingham 2002). A chord's score is the time that its tones sound in a part, in beats, less
    that of other tones, less the number of its tones that do not sound. Of chords that fit equally
    well, that with its root in the bass is taken, or else with the root that sounds longest, and of
    diminished sevenths that on the leading tone. Beats without notes are left out.
    """
    edges = _beats(score)
    sounding, bass = _sounding(pitched_notes(score), edges)
    audible = np.flatnonzero(sounding.any(axis=1))
    if not len(audible):
        return []
    total = np.concatenate([np.zeros((1, 12)), np.cumsum(sounding[audible], axis=0)])
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # score up to a beat, last part, its chord
    for stop in range(1, len(total)):
        lowest = bass[audible[:stop]].tolist()
        parts = total[stop] - total[:stop]
        fits = [_fits(part, note, key) for part, note in zip(parts, lowest, strict=True)]
        sums = [before[0] + float(fit.max()) for before, fit in zip(best, fits, strict=True)]
        start = int(np.argmax(sums))
        best.append((sums[start], start, int(fits[start].argmax())))
    found: list[Harmony] = []
    stop = len(total) - 1
    while stop:
        _, stop, chord = best[stop]
        root = int(_ROOTS[chord])
        if found and found[-1].root == root:  # such as V before V7
            found.pop()
        found.append(Harmony(int(edges[audible[stop]]), root, _IS_MINOR[chord // 12]))
    return found[::-1]


def _beats(score: Score) -> IntArray:
    """Return the ticks of the beats of the last bars, and of their end. [S + 1]"""
    ticks, end = [], 0
    for line in score.bar_starts()[-_BARS:].tolist():
        signature = score.time_signature_at(line)
        number, length = beats_in_bar(signature), score.bar_ticks(signature)
        ticks += [line + beat * length // number for beat in range(number)]
        end = line + length
    return np.unique([*ticks, end])  # beats shorter than a tick are merged


def _sounding(notes: NoteArray, edges: IntArray) -> tuple[FloatArray, IntArray]:
    """Return the part of each beat in which each pitch class sounds [S, 12], and the bass [S].

    The bass is the pitch class of the lowest note that begins or sounds in the beat.
    """
    onset, end = notes["onset"][:, None], (notes["onset"] + notes["duration"])[:, None]
    time = np.clip(np.minimum(end, edges[1:]) - np.maximum(onset, edges[:-1]), 0, None)
    parts = time / np.diff(edges)  # [num_notes, S]
    sounding = np.zeros((12, len(edges) - 1))
    np.add.at(sounding, notes["pitch"] % 12, parts)
    lowest = np.where(parts > _SOUNDS, notes["pitch"][:, None], 128).min(axis=0, initial=128)
    return np.minimum(sounding, 1).T, lowest % 12


def _fits(weights: FloatArray, bass: int, key: Key) -> FloatArray:
    """Return the score of each chord for the time that the pitch classes sound. [12] -> [72]"""
    missing = (_TONES & (weights < _SOUNDS)).sum(axis=1)
    fits = 2 * _TONES @ weights - weights.sum() - missing
    is_leading_tone = _IS_DIMINISHED_SEVENTH & ((_ROOTS - key.tonic) % 12 == LEADING_TONE)
    ties = (bass == _ROOTS) + 2 * is_leading_tone
    rates: FloatArray = fits + _TIE_BASS * ties + _TIE_ROOT * weights[_ROOTS] / len(weights)
    return rates


def phrase_start(score: Score) -> int:
    """Return the first bar that a piece's phrases are counted from, after its pickup.

    A pickup begins in the second half of its bar.
    """
    starts = score.bar_starts()
    bar = int(np.searchsorted(starts, score.start, side="right")) - 1
    length = score.bar_ticks(score.time_signature_at(int(starts[bar])))
    return bar + int(2 * (score.start - starts[bar]) >= length)


def half_cadence_share(
    score: Score, key: Key, lead: NoteArray, phrase: int, first: int = 0
) -> float:
    """Return the share of phrases that rest on the dominant, V or V7, in their last bar.

    They rest if a note of the leading part, or its silence, lasts for half of the last bar or more,
    and if the dominant sounds to it. NaN without a whole phrase.

    Args:
        lead: the leading part. [num_notes]
        phrase: how many bars a phrase has.
        first: number of the score's first bar, counted from the beginning of the piece's phrases.
    """
    lines = score.bar_lines()[: score.num_bars + 1]
    notes, rests = pitched_notes(score), []
    for bar, (line, end) in enumerate(pairwise(lines.tolist())):
        if (first + bar + 1) % phrase == 0:
            begins = lead["onset"][(lead["onset"] >= line) & (lead["onset"] < end)].tolist()
            edges = [*(begins or [line]), end]
            long = [span for span in pairwise(edges) if 2 * (span[1] - span[0]) >= end - line]
            rests.append(bool(long) and _is_dominant(notes, long[-1], key))
    return mean_of_valid(rests)


def _is_dominant(notes: NoteArray, span: tuple[int, int], key: Key) -> bool:
    """Return whether the dominant sounds between two ticks."""
    sounding, bass = _sounding(notes, np.array(span))
    if not sounding.any():
        return False
    chord = int(_fits(sounding[0], int(bass[0]), key).argmax())
    return not _IS_MINOR[chord // 12] and (_ROOTS[chord] - key.tonic) % 12 == DOMINANT


def answer_share(events: Events, num_bars: int, phrase: int, first: int = 0) -> float:
    """Return the share of pairs of phrases whose second one answers the first.

    It begins like the first, with a Dice coefficient of `ALIKE` or more of the onsets and pitches
    in the first half of their bars, and ends with another last bar (below `ALIKE`). So do the two
    phrases of a period. NaN without a whole pair.

    Args:
        events: bar, counted from the beginning of the piece's phrases, step and pitch of the notes
            of the leading part. [N, 3 or more]
        num_bars: how many bars there are.
        phrase: how many bars a phrase has.
        first: first bar that counts; a second phrase that begins before is left out.
    """
    rows = {tuple(row) for row in events[:, :3].tolist()}

    def similarity(a: int, b: int, number: int) -> float:
        """Return the Dice coefficient of the notes of some bars, from two bars on."""
        sets = [
            {(bar - begin, *rest) for bar, *rest in rows if begin <= bar < begin + number}
            for begin in (a, b)
        ]
        size = sum(map(len, sets))
        return 2 * len(sets[0] & sets[1]) / size if size else np.nan

    found = []
    for begin in range(0, num_bars - 2 * phrase + 1, 2 * phrase):
        second = begin + phrase
        if second >= first:
            is_alike = similarity(begin, second, phrase // 2) >= ALIKE
            is_same = similarity(second - 1, second + phrase - 1, 1) >= ALIKE
            found.append(is_alike and not is_same)
    return mean_of_valid(found)


def ending_measures(score: Score, key: Key | None, like: Score | None = None) -> dict[str, float]:
    """Return measures of the end of a piece, by name; NaN without a key.

    - `dominant_tonic`: 1 if the last two harmonies are V or vii and I or i, else 0.
    - `tonic_harmony`: 1 if the last one is I or i; `tonic_on_top`: 1 if the leading part ends on
      the tonic; `ends_by_step`: 1 if it gets there by one or two semitones.
    - `last_note`: length in quarters of the longest of the notes that begin last.
    - `picardy`: of a piece in minor that ends on I or i, 1 if it ends on I; NaN of others.

    Args:
        like: see `leading_part`.
    """
    names = (
        "dominant_tonic",
        "tonic_harmony",
        "tonic_on_top",
        "ends_by_step",
        "last_note",
        "picardy",
    )
    if key is None or not len(pitched_notes(score)):
        return dict.fromkeys(names, np.nan)
    end = ending(score, key, like)
    last = "".join(end.harmonies[-1:])
    values = (
        end.is_dominant_tonic,
        last in ("I", "i"),
        end.degree == "1",
        0 < abs(end.step) <= STEP,
        end.last_length,
        np.nan if key.major or last not in ("I", "i") else last == "I",
    )
    return dict(zip(names, map(float, values), strict=True))
