"""What the page's script needs to draw and play one piece, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.midi.score import Score, TimeSignature, Track

DEFAULT_BPM = 120.0
"""Where a file sets no tempo (Standard MIDI Files 1.0)."""

# General MIDI's sixteen program families, each with the synthesiser's voice that stands for it.
FAMILIES = (
    ("Piano", "piano"),
    ("Chromatic percussion", "piano"),
    ("Organ", "other"),
    ("Guitar", "guitar"),
    ("Bass", "bass"),
    ("Strings", "strings"),
    ("Ensemble", "strings"),
    ("Brass", "other"),
    ("Reed", "other"),
    ("Pipe", "other"),
    ("Synth lead", "other"),
    ("Synth pad", "strings"),
    ("Synth effects", "strings"),
    ("Ethnic", "guitar"),
    ("Percussive", "other"),
    ("Sound effects", "other"),
)

CHORD_SUFFIXES = {
    "M": "",
    "m": "m",
    "7": "7",
    "M7": "maj7",
    "m7": "m7",
    "o": "dim",
    "o7": "dim7",
    "/o7": "m7♭5",
    "+": "aug",
    "sus2": "sus2",
    "sus4": "sus4",
}


def chord_label(text: str) -> str:
    """A chord marker as musicians write it (`A_M7_E` becomes `Amaj7/E`); other text as it is."""
    root, quality, bass = [*text.split("_"), "", ""][:3]
    if root == quality == "N":
        return "N.C."
    if not root or root[0] not in "ABCDEFG" or quality not in CHORD_SUFFIXES:
        return text
    return root + CHORD_SUFFIXES[quality] + (f"/{bass}" if bass not in ("", root) else "")


def family(track: Track) -> tuple[str, str]:
    """The instrument's General MIDI family, and the voice of the page's synthesiser."""
    return ("Drums", "drums") if track.is_drum else FAMILIES[track.program // 8]


def tempo_map(score: Score) -> list[list[float]]:
    """Segments of constant tempo as [first tick, its time in s, s per tick], from tick 0 on."""
    ticks = score.tempos["tick"]
    bpm = score.tempos["bpm"]
    if not len(ticks) or ticks[0] > 0:
        ticks = np.concatenate(([0], ticks))
        bpm = np.concatenate(([DEFAULT_BPM], bpm))
    rates = 60.0 / (bpm * score.ticks_per_beat)
    seconds = np.concatenate(([0.0], np.cumsum(np.diff(ticks) * rates[:-1])))
    return [
        [int(tick), round(float(second), 6), round(float(rate), 12)]
        for tick, second, rate in zip(ticks, seconds, rates, strict=True)
    ]


def meters(score: Score) -> list[list[Any]]:
    """Time signatures as [tick, ticks of one beat, label]; the first is at tick 0."""
    signatures = list(score.time_signatures)
    if not signatures or signatures[0].tick > 0:
        signatures.insert(0, TimeSignature(0, 4, 4))
    return [
        [s.tick, score.ticks_per_beat * 4 / s.denominator, f"{s.numerator}/{s.denominator}"]
        for s in signatures
    ]


def deltas(values: NDArray[np.int64]) -> list[int]:
    """First value, then differences: the shortest decimal form of a rising sequence."""
    differences: list[int] = np.diff(values, prepend=0).tolist()
    return differences


def score_payload(score: Score, prompt_end: int) -> dict[str, Any]:
    """The piece as JSON-ready data; onsets and bar starts are delta-coded, all times are ticks.

    Args:
        prompt_end: the tick at which the continuation begins; 0 without a prompt.
    """
    tracks = []
    for track in score.tracks:
        # The order is the player's: the scheduler walks through the notes by onset.
        notes = track.notes[np.argsort(track.notes["onset"], kind="stable")]
        tracks.append(
            {
                "voice": family(track)[1],
                "onset": deltas(notes["onset"]),
                "duration": notes["duration"].tolist(),
                "pitch": notes["pitch"].tolist(),
                "velocity": notes["velocity"].tolist(),
            }
        )
    return {
        "ticksPerBeat": score.ticks_per_beat,
        "end": max(score.end, int(prompt_end)),
        "promptEnd": int(prompt_end),
        "tempo": tempo_map(score),
        "meters": meters(score),
        "bars": deltas(score.bar_starts()),
        "markers": [[int(tick), chord_label(text)] for tick, text in score.markers],
        "tracks": tracks,
    }
