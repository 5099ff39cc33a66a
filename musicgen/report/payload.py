"""The data of a piece, from which a page draws and plays it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from musicgen.midi import DRUMS, role
from musicgen.midi.score import Score, Track

# The synthesiser voice of each role. All other roles have the voice "other".
SYNTHESISER_VOICES = {
    DRUMS: "drums",
    **dict.fromkeys(("Piano", "Chromatic percussion"), "piano"),
    **dict.fromkeys(("Guitar", "Ethnic"), "guitar"),
    "Bass": "bass",
    **dict.fromkeys(("Strings", "Ensemble", "Synth pad", "Synth effects"), "strings"),
}

CHORD_SUFFIXES = {quality: quality for quality in ("m", "7", "m7", "sus2", "sus4")}
CHORD_SUFFIXES |= {"M": "", "M7": "maj7", "o": "dim", "o7": "dim7", "/o7": "m7♭5", "+": "aug"}


class Mark(NamedTuple):
    """A passage to mark on the piano roll, in ticks, with a short text."""

    start: int
    end: int
    text: str


def chord_label(text: str) -> str:
    """Return a chord marker for display: `Amaj7/E` for `A_M7_E`; other text is unchanged."""
    root, quality, bass = [*text.split("_"), "", ""][:3]
    if root == quality == "N":
        return "N.C."
    if not root or root[0] not in "ABCDEFG" or quality not in CHORD_SUFFIXES:
        return text
    return root + CHORD_SUFFIXES[quality] + (f"/{bass}" if bass not in ("", root) else "")


def track_voice(track: Track) -> str:
    """Return the synthesiser voice that plays a track."""
    return SYNTHESISER_VOICES.get(role(track), "other")


def tempo_map(score: Score) -> list[list[float]]:
    """Return segments of constant tempo: first tick, its time in seconds, seconds per tick."""
    ticks = np.unique(np.append(0, score.tempos["tick"]))
    seconds = score.seconds_at(ticks)
    rates = score.seconds_at(ticks + 1) - seconds
    return [
        [int(tick), round(float(second), 6), round(float(rate), 12)]
        for tick, second, rate in zip(ticks, seconds, rates, strict=True)
    ]


def _keys(track: Track) -> list[tuple[Any, ...]]:
    """Return a key for each note, its track, onset and pitch, to find it in another score."""
    notes = track.notes[["onset", "pitch"]].tolist()
    return [(track.name, track.program, track.is_drum, onset, pitch) for onset, pitch in notes]


def score_payload(
    score: Score, prompt_end: int, marks: Sequence[Mark] = (), kept: Score | None = None
) -> dict[str, Any]:
    """Return a piece as data for JSON, with times in ticks.

    Onsets and bar starts are differences from the previous one, which have fewer digits.

    Args:
        score: prompt and continuation.
        prompt_end: tick at which the continuation begins.
        marks: passages to mark on the piano roll.
        kept: notes of kept parts after `prompt_end`.
    """
    kept_keys = {key for track in kept.tracks for key in _keys(track)} if kept else set()
    tracks = []
    for track in score.tracks:
        # The player schedules notes in the order of their onsets.
        notes = track.notes[np.argsort(track.notes["onset"], kind="stable")]
        keys = _keys(replace(track, notes=notes))
        tracks.append(
            {
                "voice": track_voice(track),
                "onset": np.diff(notes["onset"], prepend=0).tolist(),
                "duration": notes["duration"].tolist(),
                "pitch": notes["pitch"].tolist(),
                "velocity": notes["velocity"].tolist(),
                "kept": [int(key in kept_keys) for key in keys],
            }
        )
    return {
        "ticksPerBeat": score.ticks_per_beat,
        "end": max(score.end, prompt_end),
        "promptEnd": prompt_end,
        "tempo": tempo_map(score),
        # Tick, ticks per beat and label of each time signature; the first one is at tick 0.
        "meters": [
            [s.tick, score.ticks_per_beat * 4 / s.denominator, f"{s.numerator}/{s.denominator}"]
            for s in score.time_signatures_from_start()
        ],
        "bars": np.diff(score.bar_starts(), prepend=0).tolist(),
        "markers": [[int(tick), chord_label(text)] for tick, text in score.markers],
        "marks": [list(mark) for mark in marks],
        "tracks": tracks,
    }
