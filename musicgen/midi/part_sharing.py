"""Which parts of a file play new notes, and which play none.

Several parts of a file may have one role. Their notes are those of one track of tokens.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from musicgen.midi.score import IntArray, NoteArray
from musicgen.midi.tracks import open_file
from musicgen.text import shortened

_ALONE, _TOP, _INNER, _BOTTOM = range(4)  # places of a note among those that begin with it
_LENGTHS = 64  # half octaves of durations in ticks
# Widths of the kernels in semitones and half octaves, and the weight of notes in another place:
# of several tried, the nearest to the true parts of 92 songs of POP909 (77% of notes; 60% go to the
# right part if one takes all).
_WIDTHS = 2.0, 0.7
_OTHER_PLACE = 0.05

UNISON = 1 / 12
"""Quarters within which notes of one pitch in two parts begin together."""
_DOUBLED = 0.9  # share of the notes of two parts in unison


def share_notes(notes: NoteArray, parts: Sequence[NoteArray], near: float) -> list[NoteArray]:
    """Return the notes that each part plays, by what the parts played before; see `find_parts`.

    Parts that played in unison, as violins and flutes may, go on in unison.

    Args:
        parts: their notes, which may be none, in the ticks of `notes`.
        near: ticks within which notes of one pitch begin together.
    """
    leaders = list[int]()  # of each part: the first one in unison with it
    for number, part in enumerate(parts):
        doubled = (i for i in range(number) if leaders[i] == i and _double(part, parts[i], near))
        leaders.append(next(doubled, number))
    distinct = sorted({*leaders})
    found = find_parts(notes, [parts[leader] for leader in distinct])
    return [notes[found == distinct.index(leader)] for leader in leaders]


def _double(part: NoteArray, other: NoteArray, near: float) -> bool:
    """Return whether nearly all notes of two parts are in unison with the other part."""
    if not (len(part) and len(other)):
        return False
    apart = 2.0 * (max(part["onset"].max(), other["onset"].max()) + near + 1)
    keys = [np.sort(notes["onset"] + apart * notes["pitch"]) for notes in (part, other)]
    shares = []
    for own, others in (keys, keys[::-1]):
        after = np.searchsorted(others, own)
        neighbours = np.stack([others[after - 1], others[after % len(others)]])
        shares.append(np.mean(np.abs(neighbours - own).min(axis=0) <= near))
    return bool(min(shares) >= _DOUBLED)


def find_parts(notes: NoteArray, parts: Sequence[NoteArray]) -> IntArray:
    """Return the number of the part that plays each note, by what the parts played before. [N]

    A note goes to the part with the most notes like it: of similar pitch and duration, in the same
    place of the chord (alone, top, inner, bottom). Exponential kernels smooth the number of notes
    of each part by place, pitch and duration (kernel density classification, as in Hastie et al.
    2009, section 6.6).

    Args:
        parts: their notes, which may be none, in the ticks of `notes`.
    """
    part = np.repeat(np.arange(len(parts)), [len(each) for each in parts])
    counts = np.zeros((len(parts), 4, 128, _LENGTHS))
    np.add.at(counts, (part, *_features(np.concatenate(parts))), 1)
    pitch_kernel, length_kernel = (
        np.exp(-np.abs(np.subtract.outer(np.arange(size), np.arange(size))) / width)
        for size, width in zip((128, _LENGTHS), _WIDTHS, strict=True)
    )
    fits = pitch_kernel @ counts @ length_kernel
    fits += _OTHER_PLACE * fits.sum(axis=1, keepdims=True)
    place, pitch, length = _features(notes)
    return fits[:, place, pitch, length].argmax(axis=0)


def _features(notes: NoteArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return place, pitch and half octave of the duration of each note. [N] each"""
    order = np.lexsort((notes["pitch"], notes["onset"]))
    begins = np.diff(notes["onset"][order], prepend=-1) > 0
    ends = np.append(begins[1:], np.ones(len(begins[:1]), bool))
    place = np.empty(len(notes), np.int64)
    place[order] = np.select([begins & ends, ends, begins], [_ALONE, _TOP, _BOTTOM], _INNER)
    length = np.round(2 * np.log2(np.maximum(notes["duration"], 1))).astype(np.int64)
    return place, notes["pitch"], np.minimum(length, _LENGTHS - 1)


def silent_parts(data: bytes, begin: int, sounds_until: int) -> list[str]:
    """Return the names of the parts of a file that begin no note from a tick on.

    A part is a channel of a track of the file. A part that has no name has the number of its track.

    Args:
        begin: the tick.
        sounds_until: parts with an earlier note that sounds to this tick or longer do not count.
    """
    parts = list[tuple[str, int, bool]]()  # name, number of the track, and whether it is silent
    for number, track in enumerate(open_file(data).tracks, start=1):
        name = shortened(track.name.strip())
        for channel, last in track.struck.items():
            end = max(onset + duration for onset, duration, _, _ in track.notes_of(channel))
            several = f", channel {channel + 1}" if len(track.struck) > 1 else ""
            label = name or f"track {number}{several}"
            parts.append((label, number, last < begin and end < sounds_until))
    count = Counter(label for label, _, _ in parts)
    return [
        f"{label} (track {number})" if count[label] > 1 else label
        for label, number, is_silent in parts
        if is_silent
    ]
