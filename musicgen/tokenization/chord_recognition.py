"""Recognition of chords in a Score without chord markers (Viterbi decoding of templates)."""

from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from musicgen.midi import Marker, NoteArray, Score, pitched_notes
from musicgen.midi.score import FloatArray, beats_in_bar
from musicgen.tokenization.chords import (
    CHORDS,
    INTERVALS,
    NO_CHORD,
    QUALITIES,
    ROOTS,
    chord_index,
)
from musicgen.tokenization.vocabulary import IntArray
from musicgen.validation import check_choice

ChordSource = Literal["auto", "markers", "recognised", "none"]

# These constants were tuned on a part of POP909.
# Weights of the parts of a beat's sound: tones of the chord (1), its seventh, and other tones.
_SEVENTH, _OUTSIDE = 0.7, -0.55
# Weights of the lowest note, which indicates the root.
_BASS_ROOT, _BASS_TONE, _BASS_OUTSIDE = 0.35, 0.15, -0.2
_BASS_BEATS = 0.1  # shorter notes, in beats, are not the bass
# High notes are melody, with passing notes outside the chord.
_HIGH, _HIGH_WEIGHT = 72, 0.3
# Penalties of qualities with more tones than a triad, or that are rare.
_RARENESS = {"7": 0.15, "M7": 0.15, "m7": 0.15, "sus4": 0.15, "o": 0.05}
_RARENESS |= {"+": 0.25, "sus2": 0.25, "o7": 0.25, "/o7": 0.2}
# Fit of "no chord" to a beat with notes and to a silent one, and of a chord to a silent one.
_NOTHING_FITS, _SILENCE, _CHORD_IN_SILENCE = -0.2, 0.2, -0.2
# Cost of a change at the beginning of a bar, at its middle, and on another beat.
_CHANGE_BAR, _CHANGE_MIDDLE, _CHANGE_BEAT = 0.1, 0.25, 0.6

_MAX_BEATS = 16384


def with_chords(score: Score, source: ChordSource) -> Score:
    """Return the score with chord markers from a source; other markers stay.

    `markers`: the score's own; `recognised`: from its notes; `auto`: the score's own, and those
    recognised in the bars before the first of them; `none`: no chords.
    """
    check_choice("source", source, get_args(ChordSource))
    if source == "markers":
        return score
    others = [marker for marker in score.markers if chord_index(marker.text) is None]
    if source == "none":
        return replace(score, markers=others)
    annotated = [marker for marker in score.markers if source == "auto" and marker not in others]
    first = annotated[0].tick if annotated else np.inf
    if first < score.start + score.bar_ticks(score.first_time_signature()):
        return score
    found = [marker for marker in recognise_chords(score) if marker.tick < first]
    markers = sorted([*others, *found, *annotated], key=lambda marker: marker.tick)
    repairs = [*score.repairs, "chords recognised"] if found else score.repairs
    return replace(score, markers=markers, repairs=repairs)


def recognise_chords(score: Score) -> list[Marker]:
    """Return markers such as `A_m7` where the chord changes, from tick 0 on; drums do not count.

    Finds the sequence of chords, one per beat, with the highest sum of fits minus the cost of
    changes (Viterbi 1967). The fit of a template depends on how long the pitch classes in and out
    of the chord sound, on the lowest note, and on the quality.
    """
    notes = pitched_notes(score)
    if not len(notes):
        return []
    edges, cost = _beats(score)
    chords = _best_path(_fits(*_sounding(notes, edges)), cost)
    changed = np.flatnonzero(np.diff(chords, prepend=-1))
    return [
        Marker(tick, CHORDS[chord])
        for tick, chord in zip(edges[changed].tolist(), chords[changed].tolist(), strict=True)
    ]


def _beats(score: Score) -> tuple[IntArray, FloatArray]:
    """Return the ticks of the S beats and of the end [S + 1], and the cost of a change [S]."""
    lines = score.bar_lines()[: _MAX_BEATS + 1]
    starts = lines[:-1]
    signatures = score.time_signatures_from_start()
    latest = np.searchsorted([s.tick for s in signatures], starts, side="right") - 1
    per_bar = np.array([beats_in_bar(s) for s in signatures])[latest]
    count, start, length = (np.repeat(x, per_bar) for x in (per_bar, starts, np.diff(lines)))
    beat = np.concatenate([np.arange(number) for number in per_bar])
    ticks = start + beat * length // count
    cost = np.where(2 * beat == count, _CHANGE_MIDDLE, _CHANGE_BEAT)
    cost[beat == 0] = _CHANGE_BAR
    return np.append(ticks, lines[-1])[: _MAX_BEATS + 1], cost[:_MAX_BEATS]


def _sounding(notes: NoteArray, edges: IntArray) -> tuple[FloatArray, int]:
    """Return the part of each beat on which each pitch sounds, [S, octaves], and the first pitch.

    A note from a to b adds to beat s the increase from s to s + 1 of max(0, s - a) - max(0, s - b).
    Its derivative has two steps at a and two at b, which are summed up over time.
    """
    num_steps = len(edges) + 1
    index = np.arange(len(edges))
    lowest = int(notes["pitch"].min()) // 12 * 12
    width = (int(notes["pitch"].max()) - lowest) // 12 * 12 + 12
    first = (notes["pitch"] - lowest) * num_steps
    cell, weight = [], []
    for ticks, sign in ((notes["onset"], 1), (notes["onset"] + notes["duration"], -1)):
        time = np.interp(ticks, edges, index)
        beat = time.astype(np.int64)
        rest = sign * (time - beat)
        cell += [first + beat, first + beat + 1]
        weight += [sign - rest, rest]
    steps = np.bincount(np.concatenate(cell), np.concatenate(weight), width * num_steps)
    sounding: FloatArray = np.cumsum(steps.reshape(width, num_steps)[:, :-2], axis=1)
    return np.clip(sounding, 0, 1, out=sounding).T, lowest


def _fits(sounding: FloatArray, lowest: int) -> FloatArray:
    """Return the fit of each beat to each chord and "no chord". [S, octaves] -> [S, 133]."""
    weight = np.where(np.arange(lowest, lowest + sounding.shape[1]) < _HIGH, 1, _HIGH_WEIGHT)
    features = np.zeros((len(sounding), len(_TEMPLATES)))
    chroma = features[:, :12]
    chroma[:] = (sounding * weight).reshape(len(sounding), -1, 12).sum(axis=1)
    total = chroma.sum(axis=1)
    silent = total < 1e-6  # rounding errors of the sums
    chroma /= np.where(silent, 1, total)[:, None]
    audible = sounding > _BASS_BEATS
    features[np.arange(len(sounding)), 12 + audible.argmax(axis=1) % 12] = audible.any(axis=1)
    fits = np.empty((len(sounding), len(CHORDS)))
    fits[:, :NO_CHORD] = features @ _TEMPLATES - _PENALTIES
    fits[:, NO_CHORD] = _NOTHING_FITS
    fits[silent] = _CHORD_IN_SILENCE
    fits[silent, NO_CHORD] = _SILENCE
    return fits


# The weights of the pitch classes, then of the bass, of each chord. [24, 132]
_TEMPLATES = np.full((24, NO_CHORD), _OUTSIDE)
_TEMPLATES[12:] = _BASS_OUTSIDE
for _chord in range(NO_CHORD):
    _root, _quality = divmod(_chord, len(QUALITIES))
    _tones = (_root + np.array(INTERVALS[QUALITIES[_quality]])) % 12
    _TEMPLATES[_tones, _chord] = [1, 1, 1, _SEVENTH][: len(_tones)]
    _TEMPLATES[12 + _tones, _chord] = _BASS_TONE
    _TEMPLATES[12 + _root, _chord] = _BASS_ROOT
_PENALTIES = np.array([_RARENESS.get(quality, 0.0) for quality in QUALITIES] * len(ROOTS))


def recognition_tables() -> dict[str, Any]:
    """Return the constants of `recognise_chords` as plain data, for other languages."""
    return {
        "templates": _TEMPLATES.tolist(),
        "penalties": _PENALTIES.tolist(),
        "high": _HIGH,
        "highWeight": _HIGH_WEIGHT,
        "bassBeats": _BASS_BEATS,
        "nothingFits": _NOTHING_FITS,
        "silence": _SILENCE,
        "chordInSilence": _CHORD_IN_SILENCE,
        "changeBar": _CHANGE_BAR,
        "changeMiddle": _CHANGE_MIDDLE,
        "changeBeat": _CHANGE_BEAT,
        "maxBeats": _MAX_BEATS,
    }


def _best_path(fits: FloatArray, cost: FloatArray) -> IntArray:
    """Return the states with the best sum of fits minus costs of changes. [S, K], [S] -> [S].

    Overwrites `fits` with the best sums so far.
    """
    before, thresholds = fits[0], []
    threshold = np.empty(())  # numpy takes arrays faster than numbers
    for now, price in zip(fits[1:], cost[1:].tolist(), strict=True):
        # All changes on a beat cost the same, so a change always leaves the best state so far.
        threshold[()] = least = before.item(before.argmax()) - price
        thresholds.append(least)
        now += np.maximum(before, threshold)
        before = now
    state = int(before.argmax())
    path = [state]
    for before, least in zip(fits[-2::-1], reversed(thresholds), strict=True):
        if before.item(state) < least:
            state = int(before.argmax())
        path.append(state)
    return np.array(path[::-1])
