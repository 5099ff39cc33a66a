"""How often notes that sound together clash."""

import numpy as np

from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import NoteArray

CLASHES = (1, 11)  # semitones and major sevenths, give or take octaves


def clash_share(notes: NoteArray, others: NoteArray | None = None) -> float:
    """Return the share of clashes in the pairs of notes that sound together; NaN without pairs.

    Args:
        others: a pair is a note and one of these; None: two of the notes.
    """
    seconds = notes if others is None else others
    ends = (each["onset"] + each["duration"] for each in (notes, seconds))
    together = np.maximum.outer(notes["onset"], seconds["onset"]) < np.minimum.outer(*ends)
    if others is None:
        np.fill_diagonal(together, False)
    intervals = np.subtract.outer(notes["pitch"], seconds["pitch"])[together] % 12
    return mean_of_valid(np.isin(intervals, CLASHES).astype(float))
