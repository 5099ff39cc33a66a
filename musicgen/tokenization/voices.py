"""Four voices of a chorale: the voice of each track and note, and their pitches in sixteenths."""

from collections.abc import Sequence
from itertools import combinations, groupby

import numpy as np

from musicgen.midi import CHOIR_AAHS, DEFAULT_VELOCITY, NOTE, TICKS_PER_BEAT, Score, Track
from musicgen.tokenization.quantization import QuantizationReport, end_before_next
from musicgen.tokenization.vocabulary import IntArray

VOICES = ("Soprano", "Alto", "Tenor", "Bass")
NUM_VOICES = len(VOICES)

VOICE_CENTRES = (70, 65, 59, 51)  # usual pitches, where a voice is expected at first

SILENCE = -1
STEPS_PER_BEAT = 4

_STEP = TICKS_PER_BEAT // STEPS_PER_BEAT  # in ticks


def score_of_frames(frames: IntArray) -> Score:
    """Return four tracks, one per voice, of pitches or `SILENCE` [num_frames, 4].

    A pitch that a voice keeps over several frames is one long note.
    """
    tracks = []
    for name, pitches in zip(VOICES, frames.T, strict=True):
        starts = np.flatnonzero(np.diff(pitches, prepend=SILENCE - 1))
        notes = np.empty(len(starts), NOTE)
        notes["onset"] = starts * _STEP
        notes["duration"] = np.diff(np.append(starts, len(pitches))) * _STEP
        notes["pitch"], notes["velocity"] = pitches[starts], DEFAULT_VELOCITY
        tracks.append(Track(name, CHOIR_AAHS, notes=notes[pitches[starts] != SILENCE]))
    return Score(TICKS_PER_BEAT, tracks)


def frames_of_score(report: QuantizationReport, pitches: range, max_beats: int) -> IntArray:
    """Return the frames of the Score of `report` until its last note ends [num_frames, 4].

    Tracks of voices keep their notes; other notes are led as `lead_voices` describes.

    Args:
        pitches: the range of pitches to keep.
        max_beats: number of beats to keep.
    """
    report.end = max_beats * STEPS_PER_BEAT, f"beat {max_beats}"
    notes, track = report.pitched_notes(pitches)
    onset, duration, inside = report.notes_inside(notes)
    pitch, end = notes["pitch"][inside], onset + duration
    present, number = np.unique(track[inside], return_inverse=True)
    voices = voices_of_tracks(
        [report.score.tracks[i].name for i in present],
        [pitch[number == i] for i in range(len(present))],
        [onset[number == i] for i in range(len(present))],
    )
    if voices is None:
        voice = lead_voices(pitch, onset, end)
        report.drop("notes beyond four voices", onset[voice < 0])
    else:
        voice = np.array(voices, np.int64)[number]
    notes_of_voices = np.stack([voice, pitch, onset, end])[:, np.lexsort((pitch, onset, voice))]
    voice, pitch, onset, end = notes_of_voices[:, notes_of_voices[0] >= 0]
    # Each voice sings one note at a time: of those that begin together the highest.
    highest = (np.diff(voice, append=-1) != 0) | (np.diff(onset, append=-1) != 0)
    report.drop("notes below another of their voice", onset[~highest])
    voice, pitch, onset, end = np.stack([voice, pitch, onset, end])[:, highest]
    report.kept = onset

    shorter = end_before_next(voice, onset, end - onset)
    report.clip("notes overlapping the next of their voice", onset[onset + shorter < end])
    end = onset + shorter
    same = (np.diff(voice) == 0) & (np.diff(pitch) == 0)
    report.drop("onsets of repeated notes", onset[1:][same & (end[:-1] == onset[1:])])
    frames = np.full((int(end.max(initial=0)), NUM_VOICES), SILENCE, np.int64)
    columns = zip(voice.tolist(), pitch.tolist(), onset.tolist(), end.tolist(), strict=True)
    for note_voice, note_pitch, first, stop in columns:
        frames[first:stop, note_voice] = note_pitch
    return frames


def find_voice(name: str) -> int | None:
    """Return the voice of a track with this name, if it is one of `VOICES` in any case."""
    names = [voice.lower() for voice in VOICES]
    plain = name.strip().lower()
    return names.index(plain) if plain in names else None


def voices_of_tracks(
    names: Sequence[str], pitches: Sequence[IntArray], onsets: Sequence[IntArray]
) -> list[int] | None:
    """Return the voice of each track; None if tracks are not voices.

    They are if their names are different voices, or if there are at most four of them and none
    has notes that begin together: then from the highest on average to the lowest.

    Args:
        pitches, onsets: of each track, which has one note or more.
    """
    by_name = [find_voice(name) for name in names]
    if None not in by_name and len(set(by_name)) == len(by_name):
        return [voice for voice in by_name if voice is not None]
    if len(names) > NUM_VOICES or any(len(np.unique(each)) < len(each) for each in onsets):
        return None
    means = [float(each.mean()) for each in pitches]
    order = np.argsort([-mean for mean in means], kind="stable").tolist()
    chosen = _nearest([means[i] for i in order], range(NUM_VOICES), VOICE_CENTRES)
    voice_of = dict(zip(order, chosen, strict=True))
    return [voice_of[track] for track in range(len(names))]


def lead_voices(pitch: IntArray, onset: IntArray, end: IntArray) -> IntArray:
    """Return the voice that sings each of some notes [N], -1 for notes beyond four voices.

    A note keeps its voice. Notes that begin together go, from the highest to the lowest, to those
    voices without a note whose last pitches are the nearest. If there are more notes than such
    voices, the outer notes are kept.
    """
    voice = np.full(len(pitch), -1)
    last, busy_until = list(map(float, VOICE_CENTRES)), [0] * NUM_VOICES
    order = np.lexsort((-end, -pitch, onset)).tolist()
    for step, group in groupby(order, key=lambda note: int(onset[note])):
        notes = list(group)
        free = [v for v in range(NUM_VOICES) if busy_until[v] <= step]
        if len(notes) > len(free):
            highest, lowest = (len(free) + 1) // 2, len(free) // 2
            notes = notes[:highest] + notes[len(notes) - lowest :]
        chosen = _nearest([float(pitch[note]) for note in notes], free, last)
        for note, v in zip(notes, chosen, strict=True):
            voice[note] = v
            last[v], busy_until[v] = float(pitch[note]), int(end[note])
    return voice


def _nearest(
    pitches: Sequence[float], free: Sequence[int], last: Sequence[float]
) -> tuple[int, ...]:
    """Return as many of the free voices, in order, as there are pitches: those that move least."""

    def movement(voices: tuple[int, ...]) -> float:
        return sum(abs(pitch - last[i]) for pitch, i in zip(pitches, voices, strict=True))

    return min(combinations(free, len(pitches)), key=movement)
