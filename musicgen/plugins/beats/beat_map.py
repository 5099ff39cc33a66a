"""Moves a performance onto its beats: it sounds the same, and bars begin at its downbeats."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np

from musicgen.midi.events import END_OF_TRACK, META, TEMPO_CHANGE, TIME_SIGNATURE
from musicgen.midi.extension import FileTrack, as_file
from musicgen.midi.io import dumps, loads
from musicgen.midi.score import TEMPO, FloatArray, IntArray, Score, TimeSignature
from musicgen.midi.tracks import open_file
from musicgen.plugins.beats.beats import Beats, find_beats, read_beats

TICKS_PER_BEAT = 1920
"""Ticks in a quarter: half a tick is less than a millisecond down to 16 quarters a minute."""

_EARLY = 0.25
"""A first note that is ahead of its beat by less, in beats, is on it."""

_FIRST = -1  # of the events at one tick


class BeatMap:
    """Where the beats of a performance are in a score whose bars are those of the performance.

    A bar that begins before the first onset is complete in the score.

    Args:
        first_onset: seconds at which the first note begins.

    Attributes:
        times: seconds in the performance. [num_beats]
        ticks: ticks in the score, in whole bars from 0 on. [num_beats]
        time_signatures: of the score, one where the length of bars changes.
        tempos: of the score, `TEMPO`; with them it sounds as the performance, from tick 0 on.
    """

    def __init__(self, beats: Beats, first_onset: float) -> None:
        self.times, starts = _with_beat_before(beats, first_onset)
        upbeat = int(starts[0])
        # Silence comes before an upbeat.
        lead_in = -(-upbeat // beats.beats_per_bar) * beats.beats_per_bar - upbeat
        beat = round(TICKS_PER_BEAT * beats.quarters)
        self.ticks = (np.arange(len(self.times)) + lead_in) * beat
        lengths = np.append(np.diff(starts), beats.beats_per_bar)
        self.time_signatures = list(_time_signatures(beats, self.ticks[starts], lengths))
        seconds = np.diff(self.times)
        self.tempos = np.empty(len(self.times), TEMPO)
        self.tempos["tick"] = self.ticks
        self.tempos["bpm"] = 60 * beats.quarters / np.append(seconds, seconds[-1])
        self.tempos["tick"][0] = 0  # the lead-in has the tempo of the first beat

    def ticks_at(self, seconds: FloatArray) -> IntArray:
        """Return the tick of the score at each moment of the performance, from 0 on.

        Moments between beats are interpolated, others extrapolated from the nearest interval.
        """
        before = np.searchsorted(self.times, seconds, side="right") - 1
        index = np.clip(before, 0, len(self.times) - 2)
        slopes = np.diff(self.ticks) / np.diff(self.times)
        positions = self.ticks[index] + (seconds - self.times[index]) * slopes[index]
        return np.maximum(np.round(positions), 0).astype(np.int64)


def onto_beats(score: Score, beats: Beats) -> Score:
    """Return a score in which the beats are at whole beats of its ticks, and bars at its bar lines.

    It sounds as before, but for the silence before the first bar. Its tempi follow each beat; see
    `Score.mean_tempos`. Beats of the source `file` change nothing.
    """
    if beats.source == "file" or not score.num_notes:
        return score
    beat_map = BeatMap(beats, float(score.seconds_at(score.start)))
    moved = score.moved(lambda ticks: beat_map.ticks_at(score.seconds_at(ticks)))
    return replace(
        moved,
        ticks_per_beat=TICKS_PER_BEAT,
        tempos=beat_map.tempos,
        time_signatures=beat_map.time_signatures,
    )


def file_onto_beats(data: bytes, score: Score, beats: Beats) -> bytes:
    """Return a MIDI file with all events moved as `onto_beats` moves those of its score.

    Pedals, controllers and texts move with the notes; its own tempi and time signatures are left
    out.

    Args:
        score: the music that was read from `data`, with a note.
    """
    beat_map = BeatMap(beats, float(score.seconds_at(score.start)))
    file = open_file(data)
    left_out = TEMPO_CHANGE, TIME_SIGNATURE, END_OF_TRACK
    tracks = []
    for state in file.tracks:
        events = [e for e in state.events if e.status != META or e.meta[0] not in left_out]
        ticks = np.array([*(event.tick for event in events), state.tick], np.int64)
        *moved, end = beat_map.ticks_at(score.seconds_at(ticks)).tolist()
        after = list(zip(moved, range(len(events)), (e.message for e in events), strict=True))
        tracks.append(FileTrack(after=after, end_of_track=end))
    frame = Score(TICKS_PER_BEAT, [], beat_map.tempos, beat_map.time_signatures)
    for event in open_file(dumps(frame)).tracks[0].events:
        if event.meta[0] != END_OF_TRACK:
            tracks[0].add(event.tick, _FIRST, event.message)
    return as_file(file._replace(ticks_per_beat=TICKS_PER_BEAT), tracks)


def on_beats(
    score: Score, data: bytes | None, setting: str, pace_bars: int
) -> tuple[Score, bytes | None]:
    """Return a piece, and its file, on the beats that a setting names.

    The file sounds as before, at the tempo of each beat; the score has the mean tempo of several
    bars. `repairs` says what was found. Where the file's own beats are right, both stay themselves.

    Args:
        data: the MIDI file that the score was read from; None if there is none.
        setting: `auto`, or the path of a file of beats, see `read_beats`.
        pace_bars: bars that share a tempo.

    Raises:
        UserError: the file of beats cannot be read.
    """
    if setting == "auto":
        beats, what = find_beats(score), "beats found"
    else:
        beats, what = read_beats(setting), "beats as given"
        if not len(beats.bar_starts):
            beats = find_beats(score, beats.times)
    if beats.source == "file":
        return score, data
    if data is None:
        moved = onto_beats(score, beats)
    else:
        data = file_onto_beats(data, score, beats)
        moved = replace(loads(data), repairs=score.repairs)
    repairs = [*moved.repairs, f"{what}: {beats.describe()}"]
    return replace(moved, tempos=moved.mean_tempos(pace_bars), repairs=repairs), data


def _with_beat_before(beats: Beats, first_onset: float) -> tuple[FloatArray, IntArray]:
    """Return beats from the first onset on, at its pace, and where bars begin among them."""
    times, starts = beats.times, beats.bar_starts
    if not len(starts):
        starts = np.arange(0, len(times), beats.beats_per_bar)
    interval = float(np.median(np.diff(times[:9])))
    missing = max(0, int(np.ceil((times[0] - first_onset) / interval - _EARLY)))
    before = times[0] - interval * np.arange(missing, 0, -1)
    times = np.concatenate([before, times])
    if first_onset < times[1]:
        times[0] = min(times[0], first_onset)
    return times, starts + missing


def _time_signatures(beats: Beats, ticks: IntArray, lengths: IntArray) -> Iterator[TimeSignature]:
    """Yield the time signature of each run of bars with the same number of beats."""
    numerator, denominator = beats.time_signature
    per_beat = numerator // beats.beats_per_bar  # of the denominator's notes
    bars = list(zip(ticks.tolist(), lengths.tolist(), strict=True))
    if bars[0][0] > 0:  # bars before the first that begins in the music
        bars.insert(0, (0, beats.beats_per_bar))
    for length, run in groupby(bars, key=lambda bar: bar[1]):
        yield TimeSignature(next(run)[0], length * per_beat, denominator)
