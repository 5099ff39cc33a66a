"""The melody, bass and inner voices of a piece, and the bars of their notes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import NoteArray, Score

STEPS_PER_BEAT = 4
"""Grid on which rhythms are compared: sixteenth notes."""

IntArray = NDArray[np.int64]


def skyline(notes: NoteArray) -> NDArray[np.bool_]:
    """Return which notes are the melody: the highest at their onset, with none higher still held.

    This is the skyline of Uitdenbogerd & Zobel (1998), except that a held melody note hides the
    accompaniment below it.

    Args:
        notes: sorted by onset. [N]

    Returns:
        One flag for each note. [N]
    """
    onset, end, pitch = notes["onset"], notes["onset"] + notes["duration"], notes["pitch"]
    highest = np.zeros(len(notes), bool)
    held: list[int] = []  # notes that may still sound
    for i, now in enumerate(onset.tolist()):
        held = [j for j in held if end[j] > now]
        # Notes of one onset are sorted by pitch: a higher one replaces those before it.
        for j in held:
            if onset[j] == now and pitch[j] <= pitch[i]:
                highest[j] = False
        highest[i] = all(pitch[j] <= pitch[i] for j in held)
        held.append(i)
    return highest


def bass_line(notes: NoteArray) -> NDArray[np.bool_]:
    """Return which notes are the bass: the skyline seen from below. [N]"""
    mirrored = notes.copy()
    mirrored["pitch"] = -notes["pitch"]
    order = np.lexsort((mirrored["pitch"], mirrored["onset"]))
    lowest = np.zeros(len(notes), bool)
    lowest[order] = skyline(mirrored[order])
    return lowest


def bars_and_steps(score: Score, notes: NoteArray) -> tuple[IntArray, IntArray]:
    """Return the bar of each note, and its onset in the bar in sixteenths. [N], [N]"""
    starts = score.bar_starts()
    bar = np.searchsorted(starts, notes["onset"], side="right") - 1
    step = np.rint((notes["onset"] - starts[bar]) * STEPS_PER_BEAT / score.ticks_per_beat)
    return bar, step.astype(np.int64)
