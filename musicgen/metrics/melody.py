"""The leading part of a piece: its melodic intervals, its silent bars and its density."""

import re

import numpy as np

from musicgen.metrics.intervals import mean_of_valid
from musicgen.midi import NOTE, NoteArray, Score, Track, sort_notes
from musicgen.midi.score import IntArray, join_notes

LEAP = 5
"""Smallest leap in semitones: a fourth."""
NUM_QUARTERS = 4
"""Parts of a piece whose notes per bar are compared."""

_BASSES = range(32, 40)  # General MIDI programs
# The words begin words of a track's name: voices of scores in several languages, and melodies.
_VOICES = (
    *("voice", "vocal", "voc", "vox", "stimme", "singstimme", "gesang", "canto", "cantus", "chant"),
    *("soprano", "sopran", "mezzo", "contralto", "singer", "melod", "lead vocal", "lead voice"),
    *("alto", "tenor", "ténor", "baritone", "bariton", "chorus", "choir", "chor", "coro", "tune"),
)
_VOICE = re.compile(rf"\b(?:{'|'.join(_VOICES)})", re.IGNORECASE)
_INSTRUMENT = re.compile(r"sax|horn|trombone|clarinet|flute|recorder|viol|guitar|chord", re.I)


def leading_part(score: Score, like: Score | None = None) -> NoteArray:
    """Return the notes of the leading part: one at a time, by onset. [num_notes]

    The part is the voice or melody, as the names of tracks tell (`Voice`, `MELODY`, `Soprano`); of
    several the highest on the average. Without one it is the `skyline` of all tracks but drums and
    basses, such as that of a piano or band.

    Args:
        like: a piece with the same tracks, such as that which `score` continues, whose leading
            part counts, even where it is silent in `score`; None: `score` itself.
    """
    return skyline(join_notes(track.notes for track in _leading_tracks(score, like or score)))


def _leading_tracks(score: Score, like: Score) -> list[Track]:
    sung = [track for track in like.tracks if _is_voice(track) and len(track.notes)]
    if sung:
        name = max(sung, key=lambda track: float(track.notes["pitch"].mean())).name
        named = [track for track in score.tracks if track.name == name]
        if named or like is score:
            return named
        return _leading_tracks(score, score)
    pitched = [track for track in score.tracks if not track.is_drum and len(track.notes)]
    return [track for track in pitched if not _is_bass(track)] or pitched


def _is_voice(track: Track) -> bool:
    is_named = _VOICE.search(track.name) and not _INSTRUMENT.search(track.name)
    return bool(is_named) and not track.is_drum


def _is_bass(track: Track) -> bool:
    return track.program in _BASSES or re.search(r"\bbass\b", track.name.lower()) is not None


def skyline(notes: NoteArray) -> NoteArray:
    """Return the top notes: the highest of those that begin together (Uitdenbogerd & Zobel 1998).

    Notes that lie under a higher note for half of their length or more are left out, so that an
    accompaniment under long notes is not a melody. [num_notes] -> [num_top]
    """
    top: list[int] = []
    ends: dict[int, int] = {}  # of the notes before, by pitch
    ordered = sort_notes(notes)
    is_highest = np.append(np.diff(ordered["onset"]) != 0, True)[: len(ordered)]
    rows = zip(ordered[["onset", "duration", "pitch"]].tolist(), is_highest.tolist(), strict=True)
    for i, ((onset, duration, pitch), highest) in enumerate(rows):
        end = onset + duration
        if highest and not any(
            other > pitch and 2 * (min(stop, end) - onset) >= duration
            for other, stop in ends.items()
            if stop > onset
        ):
            top.append(i)
        ends[pitch] = max(end, ends.get(pitch, end))
    return ordered[top] if top else np.empty(0, NOTE)


def repeated_note_share(notes: NoteArray) -> float:
    """Return the share of melodic intervals that are unisons; NaN with fewer than two notes.

    It is the feature Repeated Notes of jSymbolic (McKay, Cumming & Fujinaga 2018).

    Args:
        notes: what `leading_part` returned. [num_notes]
    """
    return mean_of_valid(np.diff(notes["pitch"]) == 0)


def recovered_leap_share(notes: NoteArray) -> float:
    """Return the share of leaps after which the melody turns back, by any interval.

    It is the post-skip reversal of von Hippel & Huron (2000, "Why do skips precede reversals?"),
    for leaps of `LEAP` semitones or more, but the one to the last note. It is NaN without leaps.

    Args:
        notes: what `leading_part` returned. [num_notes]
    """
    steps = np.diff(notes["pitch"])
    leaps, following = steps[:-1], steps[1:]
    return mean_of_valid((leaps * following < 0)[np.abs(leaps) >= LEAP])


def silent_bar_share(score: Score, notes: NoteArray) -> float:
    """Return the share of a score's bars in which notes [num_notes] neither begin nor sound.

    Bars count up to that of the last onset of the score. A note that is held for less than a
    sixteenth of a new bar does not sound in it. NaN without bars.
    """
    starts = score.bar_starts()[: score.num_bars]
    if not len(starts):
        return np.nan
    first, last = notes["onset"], notes["onset"] + notes["duration"] - score.ticks_per_beat // 4
    spans = np.searchsorted(starts, (first, np.maximum(first, last)), side="right") - 1
    edges = np.zeros(len(starts) + 1, np.int64)
    np.add.at(edges, spans[0], 1)
    np.add.at(edges, spans[1] + 1, -1)
    return float((np.cumsum(edges)[:-1] == 0).mean())


def notes_by_bar(score: Score, notes: NoteArray | None = None) -> IntArray:
    """Return how many notes begin in each bar, up to that of the score's last onset. [num_bars]

    Args:
        notes: those of a part, such as `leading_part`; None: all notes of the score.
    """
    starts = score.bar_starts()
    onsets = (score.notes if notes is None else notes)["onset"]
    bars = np.searchsorted(starts, onsets, side="right") - 1
    return np.bincount(bars, minlength=score.num_bars).astype(np.int64)


def melody_measures(score: Score, like: Score | None = None) -> dict[str, float]:
    """Return measures of the leading part and of the density of a piece, by name; NaN: undefined.

    - `repeated_notes`, `leaps_recovered`, `bars_without_lead`: shares, see the functions above.
    - `lead_range`: from the lowest to the highest note of the leading part, in semitones.
    - `lead_notes_per_bar`, and `notes_per_bar_1` to `notes_per_bar_4`: notes that begin per bar, of
      the leading part, and of all parts in the four quarters of the bars.

    Args:
        like: see `leading_part`.
    """
    notes = leading_part(score, like)
    counts = notes_by_bar(score)
    quarters = [mean_of_valid(bars) for bars in np.array_split(counts, NUM_QUARTERS)]
    return {
        "repeated_notes": repeated_note_share(notes),
        "leaps_recovered": recovered_leap_share(notes),
        "bars_without_lead": silent_bar_share(score, notes),
        "lead_range": float(np.ptp(notes["pitch"])) if len(notes) else np.nan,
        "lead_notes_per_bar": len(notes) / len(counts) if len(counts) else np.nan,
        **{f"notes_per_bar_{i}": value for i, value in enumerate(quarters, start=1)},
    }
