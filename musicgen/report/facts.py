"""What a musician asks of a passage: key, tempo, metre, bars, length, density, range, dynamics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from musicgen.metrics.key import find_key
from musicgen.midi import pitch_name
from musicgen.midi.score import NOTE, NoteArray, Score
from musicgen.report.payload import meters, tempo_map

MISSING = "–"

MIN_PITCH_CLASSES = 3  # fewer belong to many keys
DYNAMICS = ("ppp", "pp", "p", "mp", "mf", "f", "ff", "fff")  # each spans sixteen velocities


def compare_sections(score: Score, prompt_end: int) -> dict[str, str]:
    """Return facts of prompt and continuation by label.

    Sizes read `prompt + continuation`, other facts `prompt → continuation` where they differ.

    Args:
        prompt_end: tick at which the continuation begins; 0 for a piece without a prompt.
    """
    end = max(score.end, prompt_end, 1)
    if not 0 < prompt_end < end:
        return section_facts(score, 0, end)
    prompt = section_facts(score, 0, prompt_end)
    continuation = section_facts(score, prompt_end, end)
    facts = {}
    for label, fact in prompt.items():
        other = continuation[label]
        if label in ("bars", "length"):
            facts[label] = f"{fact} + {other}"
        else:
            facts[label] = fact if fact == other else f"{fact} → {other}"
    return facts


def section_facts(score: Score, start: int, end: int) -> dict[str, str]:
    """Return facts about the notes that begin in the ticks [start, end), by label."""
    drums, pitched = (_notes(score, start, end, is_drum=value) for value in (True, False))
    num_notes, pitches = len(drums) + len(pitched), pitched["pitch"]
    ambiguous = len(np.unique(pitches % 12)) < MIN_PITCH_CLASSES
    key = None if ambiguous else find_key(pitched)
    starts = score.bar_starts() if score.num_notes else np.empty(0, np.int64)
    num_bars = int(((starts >= start) & (starts < end)).sum())
    segments = tempo_map(score)
    bpm = [round(60 / (s[2] * score.ticks_per_beat)) for s in _in_force(segments, start, end)]
    velocities = np.concatenate([drums["velocity"], pitched["velocity"]])
    return {
        "key (estimated)": key.name if key else MISSING,
        "tempo (bpm)": _span(str(min(bpm)), str(max(bpm))),
        "metre": ", ".join(dict.fromkeys(m[2] for m in _in_force(meters(score), start, end))),
        "bars": str(num_bars),
        "length": _clock(float(score.seconds_at(end) - score.seconds_at(start))),
        "notes a bar": f"{num_notes / num_bars:.1f}" if num_bars else MISSING,
        "range": _span(*map(pitch_name, (pitches.min(), pitches.max()))).replace("#", "♯")
        if len(pitches)
        else MISSING,
        "dynamics": DYNAMICS[int(np.median(velocities)) // 16] if num_notes else MISSING,
    }


def _notes(score: Score, start: int, end: int, *, is_drum: bool) -> NoteArray:
    tracks = [track.notes for track in score.tracks if track.is_drum == is_drum]
    notes = np.concatenate([np.empty(0, NOTE), *tracks])
    return notes[(notes["onset"] >= start) & (notes["onset"] < end)]


def _in_force(changes: Sequence[Sequence[Any]], start: int, end: int) -> Sequence[Sequence[Any]]:
    """Return the changes in [start, end) and the last one before; each begins with its tick."""
    first = max(i for i, change in enumerate(changes) if i == 0 or change[0] <= start)
    return [change for i, change in enumerate(changes) if i == first or start < change[0] < end]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low}–{high}"
