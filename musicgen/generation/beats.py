"""Prompts that were played: brought onto their beats before a model reads them."""

from dataclasses import replace

import numpy as np

from musicgen.midi import Beats, Score, find_beats, loads, onto_beats, read_beats
from musicgen.midi.beat_map import file_onto_beats, mean_tempos

FILE, AUTO = "file", "auto"
"""Settings: the beats of the file's ticks; beats that are found where these are not the music's."""

_PACE_BARS = 4
"""Of the prompt's last bars, whose mean tempo is the continuation's."""


def on_beats(score: Score, data: bytes | None, setting: str) -> tuple[Score, bytes | None, Beats]:
    """Return a piece, and its file, on the beats that a setting names, and these beats.

    The file sounds as before, at the tempo of each beat; the score has the mean tempo of four bars.
    `repairs` says what was found. Where the file's own beats are right, both stay as they are.

    Args:
        data: the MIDI file that the score was read from; None if there is none.
        setting: `file`, `auto`, or the path of a file of beats, see `read_beats`.

    Raises:
        UserError: the file of beats cannot be read.
    """
    if setting == FILE or not score.num_notes:
        return score, data, Beats(np.empty(0), np.empty(0, np.int64), (4, 4), "file")
    if setting == AUTO:
        beats, what = find_beats(score), "beats found"
    else:
        beats, what = read_beats(setting), "beats as given"
        if not len(beats.bar_starts):
            beats = find_beats(score, beats.times)
    if beats.source == "file":
        return score, data, beats
    if data is None:
        moved = onto_beats(score, beats)
    else:
        data = file_onto_beats(data, score, beats)
        moved = replace(loads(data), repairs=score.repairs)
    repairs = [*moved.repairs, f"{what}: {beats.describe()}"]
    return replace(moved, tempos=mean_tempos(moved, _PACE_BARS), repairs=repairs), data, beats


def pace_of(score: Score, prompt_bars: int | None) -> float:
    """Return the mean tempo of the last four bars of a prompt, in quarters a minute.

    Args:
        prompt_bars: from the first bar with a note; None: all bars.
    """
    tempos = mean_tempos(score)
    lines = tempos["tick"]
    first = int(np.searchsorted(lines, score.start, side="right")) - 1
    end = len(lines) if prompt_bars is None else min(first + prompt_bars, len(lines))
    last = slice(max(first, end - _PACE_BARS), end)
    lengths = np.diff(np.append(lines, score.end))[last]
    return float(lengths.sum() / (lengths / tempos["bpm"][last]).sum())
