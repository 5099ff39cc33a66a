"""Removal of overlaps between notes of one pitch or voice."""

from typing import NamedTuple

import numpy as np

from musicgen.tokenization.quantization_report import QuantizationReport
from musicgen.tokenization.vocabulary import IntArray


class GridNotes(NamedTuple):
    """Columns of notes in grid steps, [num_notes] each; a voice plays one note at a time."""

    voice: IntArray
    onset: IntArray
    duration: IntArray
    velocity: IntArray


def end_before_next(voice: IntArray, onset: IntArray, duration: IntArray) -> IntArray:
    """Return the durations of notes that end at the latest where the next of their voice begins.

    Args:
        voice, onset, duration: of notes sorted by voice, then onset. [num_notes]
    """
    shorter = duration.copy()
    gap = np.diff(onset)
    overlaps = (voice[1:] == voice[:-1]) & (duration[:-1] > gap)
    shorter[:-1][overlaps] = gap[overlaps]
    return shorter


def remove_overlaps(notes: GridNotes, report: QuantizationReport, unit: int = 1) -> GridNotes:
    """Make each voice play one note at a time; return the notes sorted by voice, then onset.

    Notes of one voice that begin together are merged into one with the longest duration and the
    highest velocity. A note ends at the latest where the next one of its voice begins.

    Args:
        unit: of the times, as a fraction of a grid step: 2 for half steps.
    """
    key = notes.voice * (notes.onset.max(initial=0) + 1) + notes.onset
    order = np.argsort(key)
    voice, onset = notes.voice[order], notes.onset[order]
    first = np.diff(key[order], prepend=-1) != 0
    report.drop("notes doubling another", onset[~first] // unit)
    starts = np.flatnonzero(first)
    if not len(starts):
        return notes
    voice, onset = voice[starts], onset[starts]
    report.kept = onset // unit
    longest = np.maximum.reduceat(notes.duration[order], starts)
    velocity = np.maximum.reduceat(notes.velocity[order], starts)
    duration = end_before_next(voice, onset, longest)
    report.clip("notes struck again while sounding", onset[duration < longest] // unit)
    return GridNotes(voice, onset, duration, velocity)
