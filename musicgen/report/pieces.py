"""The pieces of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import Score, Track

Value = str | int | float | Sequence[Any] | None
Metadata = Mapping[str, Value]
"""Values by label."""

Mark = tuple[int, int, str]
"""A passage to mark on the piano roll: its first and last tick, and a short text."""


class Kept(NamedTuple):
    """What is kept of a whole piece after `prompt_end`.

    Attributes:
        score: the notes of kept parts, and those behind a gap.
        gap_end: tick at which a gap ends; None: there is no gap.
    """

    score: Score
    gap_end: int | None = None

    def keys(self) -> set[tuple[Any, ...]]:
        """Return the keys of its notes, see `note_keys`."""
        return {key for track in self.score.tracks for key in note_keys(track)}


@dataclass(frozen=True)
class ReportPiece:
    """A piece of the report."""

    title: str  # such as the name of the prompt
    score: Score  # prompt and continuation
    prompt_end: int  # tick at which the continuation begins; 0 without a prompt
    midi_file: str | None  # path relative to the report; None: no link
    metadata: Metadata  # technical details, which are folded
    measures: Metadata = field(default_factory=dict)  # measures, which are shown
    notices: Sequence[str] = ()  # such as what the vocabulary cannot express
    audio_file: str | None = None  # path of a WAV file, like `midi_file`
    marks: Sequence[Mark] = ()  # passages to mark on the piano roll
    kept: Kept | None = None  # of a whole piece after `prompt_end`

    def is_new(self) -> list[NDArray[np.bool_]]:
        """Return which notes [num_notes] of each track are new: neither the prompt's nor kept."""
        kept = self.kept.keys() if self.kept else set()
        return [
            (track.notes["onset"] >= self.prompt_end)
            & np.array([key not in kept for key in note_keys(track)], bool)
            for track in self.score.tracks
        ]


def note_keys(track: Track) -> list[tuple[Any, ...]]:
    """Return a key per note, its track, onset and pitch, to find it in another score."""
    notes = track.notes[["onset", "pitch"]].tolist()
    return [(track.name, track.program, track.is_drum, onset, pitch) for onset, pitch in notes]
