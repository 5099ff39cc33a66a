"""Where phrases end, and the tokens that count the bars left to there.

A bar that is the 8th, 4th, 2nd or 1st from the end of its phrase, or of the piece, has a token that
says so: `Left_half_4`, `Left_full_1`, `Left_piece_8`. So it is known where the music leads, and
generation can give the counts, or leave them to the model.
"""

import numpy as np

from musicgen.midi.score import DOUBLE_BAR, FERMATA
from musicgen.tokenization.chords import NO_CHORD, QUALITIES
from musicgen.tokenization.quantization import QuantizationReport
from musicgen.tokenization.vocabulary import BoolArray, IntArray

ENDS = ("half", "full", "piece")
"""Phrases that end on the dominant, other phrases, and pieces."""
HALF, FULL, PIECE = range(3)
COUNTS = np.array([8, 4, 2, 1])
LEFT = [f"{end}_{count}" for end in ENDS for count in COUNTS]
"""The values of the tokens: of each end its counts."""
LEFT_ENDS, LEFT_COUNTS = np.repeat(range(len(ENDS)), len(COUNTS)), np.tile(COUNTS, len(ENDS))
"""The end, as an index in `ENDS`, and the count of each value."""

_DOMINANTS = [QUALITIES.index(quality) for quality in ("M", "7")]


def phrase_ends(
    report: QuantizationReport, onsets: IntArray, ends: IntArray, rest: int
) -> IntArray:
    """Return the last grid step of each phrase but the last one, ascending. [N]

    Phrases end before rests and double bars, and with fermatas.

    Args:
        onsets, ends: grid steps of the notes whose rests count. [num_notes]
        rest: grid steps of the shortest rest that ends a phrase.
    """
    order = np.argsort(onsets)
    sounds_until = np.maximum.accumulate(ends[order])[:-1]
    before_rests = sounds_until[onsets[order][1:] - sounds_until >= rest] - 1

    def marked(text: str) -> IntArray:
        ticks = [marker.tick for marker in report.score.markers if marker.text == text]
        return report.grid(np.array(ticks, np.int64))

    steps = np.unique([*before_rests, *marked(DOUBLE_BAR) - 1, *marked(FERMATA)]).astype(np.int64)
    return steps[(steps >= 0) & (steps < ends.max(initial=0))]


def in_force(steps: IntArray, values: IntArray, at: IntArray) -> IntArray:
    """Return the values in force at grid steps [N], -1 before the first of them.

    Args:
        steps, values: where values begin, ascending. [M]
    """
    return np.append(-1, values)[np.searchsorted(steps, at, side="right")]


def is_dominant(chord: IntArray, tonic: IntArray) -> BoolArray:
    """Return whether chords, indices in `CHORDS` or -1, are the dominants of tonics. [N]"""
    root, quality = np.divmod(chord, len(QUALITIES))
    is_chord = (chord >= 0) & (chord < NO_CHORD)
    return is_chord & (root == (tonic + 7) % 12) & np.isin(quality, _DOMINANTS)


def bars_left(bar: IntArray, kind: IntArray, num_bars: int) -> tuple[IntArray, IntArray]:
    """Return the bars that have a token, ascending, and its index in `LEFT`. [M] each

    Args:
        bar: the last bar of each phrase, ascending. [N]
        kind: HALF or FULL, of each phrase. [N]
        num_bars: of the piece. Its end counts where that of a phrase does, too.
    """
    is_last = np.append(bar[1:] != bar[:-1], True)[: len(bar)] & (bar < num_bars - 1)
    bar, kind = np.append(bar[is_last], num_bars - 1), np.append(kind[is_last], PIECE)
    before = np.concatenate([[-1], bar[:-1]])
    before[-1] = -1
    at = bar[:, None] - COUNTS + 1
    index = len(COUNTS) * kind[:, None] + np.arange(len(COUNTS))
    is_within = at > before[:, None]
    bars, last = np.unique(at[is_within][::-1], return_index=True)
    return bars, index[is_within][::-1][last]
