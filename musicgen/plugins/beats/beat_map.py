"""Moves a performance onto its beats: it sounds the same, and bars begin at its downbeats."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np

from musicgen.errors import UserError
from musicgen.midi.events import META, TEMPO_CHANGE, TIME_SIGNATURE
from musicgen.midi.extension import OTHER, FileTrack, as_file
from musicgen.midi.io import loads
from musicgen.midi.score import TEMPO, FloatArray, IntArray, Score, TimeSignature
from musicgen.midi.tracks import open_file
from musicgen.plugins.beats.beats import Beats, beats_of_file, find_beats, read_beats

TICKS_PER_BEAT = 1920
"""Ticks in a quarter: half a tick is less than a millisecond down to 16 quarters a minute."""

_EARLY = 0.25
"""A first note that is ahead of its beat by less, in beats, is on it."""

_SLOW_START = 1.6
"""A first beat that lasts longer than this many usual ones was not played: nothing tells it."""

_LONGEST_BEAT = 4.0  # seconds; a longer one is silence, which whole bars fill
_MOST_SILENT_BEATS = 2**16  # that fill silence: a file has 2**28 ticks at most


class BeatMap:
    """Where the beats of a performance are in a score whose bars are those of the performance.

    Tick 0 is the beginning of the recording, so that everything keeps its time. What precedes the
    first beat is whole sixteenths; with an upbeat it is an incomplete first bar.

    Args:
        first_onset: seconds at which the first note begins.

    Attributes:
        times: seconds in the performance, from 0 on: of its beginning and of the beats. [N]
        ticks: ticks in the score. [N]
        time_signatures: of the score, one where the length of bars changes.
        tempos: of the score, `TEMPO`; with them it sounds as the performance, from tick 0 on.
    """

    def __init__(self, beats: Beats, first_onset: float) -> None:
        times, starts = _with_beat_before(beats, first_onset)
        times, starts = _filled(times, starts, beats.beats_per_bar)
        beat, sixteenth = round(TICKS_PER_BEAT * beats.quarters), TICKS_PER_BEAT // 4
        first = min(int(np.searchsorted(times, 0)), len(times) - 2)  # after the beginning
        interval = times[1] - times[0] if first == 0 else times[first] - times[first - 1]
        times, starts = times[first:], starts[starts >= first] - first
        lead = 0
        if times[0] > 0:
            lead = max(1, round(times[0] / interval * beat / sixteenth)) * sixteenth
        self.times, self.ticks = times, lead + np.arange(len(times)) * beat
        starts = starts if len(starts) else np.zeros(1, np.int64)
        lengths = np.append(np.diff(starts), beats.beats_per_bar)
        self.time_signatures = list(_time_signatures(beats, self.ticks[starts], lengths))
        if lead:
            self.times, self.ticks = np.append(0, self.times), np.append(0, self.ticks)
        seconds, ticks = np.diff(self.times), np.diff(self.ticks)
        bpm = 60 * ticks / TICKS_PER_BEAT / seconds
        per_quarter = np.rint(60e6 / bpm)  # as in the file; equal ones are one tempo
        is_new = np.append(True, np.diff(per_quarter) != 0)
        self.tempos = np.empty(np.count_nonzero(is_new), TEMPO)
        self.tempos["tick"], self.tempos["bpm"] = self.ticks[:-1][is_new], bpm[is_new]

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

    It sounds as before. Its tempi follow each beat; see `Score.mean_tempos`. Beats of the source
    `file` change nothing.
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
    left_out = TEMPO_CHANGE, TIME_SIGNATURE
    tracks = [FileTrack() for _ in file.tracks]
    tracks[0].add_changes(Score(TICKS_PER_BEAT, [], beat_map.tempos, beat_map.time_signatures))
    for track, state in zip(tracks, file.tracks, strict=True):
        events = [e for e in state.events if e.status != META or e.meta[0] not in left_out]
        ticks = np.array([*(event.tick for event in events), state.tick], np.int64)
        *moved, track.end_of_track = beat_map.ticks_at(score.seconds_at(ticks)).tolist()
        for event, tick in zip(events, moved, strict=True):
            track.add(tick, OTHER, event.message)
    return as_file(file._replace(ticks_per_beat=TICKS_PER_BEAT), tracks)


def on_beats(
    score: Score,
    data: bytes | None,
    setting: str,
    pace_bars: int,
    metre: tuple[int, int] | None = None,
) -> tuple[Score, bytes | None]:
    """Return a piece, and its file, on the beats that a setting names.

    The file sounds as before, at the tempo of each beat; the score has the mean tempo of several
    bars. `repairs` says what was found. Where the file's own beats are right, both stay themselves.

    Args:
        data: the MIDI file that the score was read from; None if there is none.
        setting: `auto`, `file`, or the path of a file of beats, see `read_beats`.
        pace_bars: bars that share a tempo.
        metre: numerator and denominator of the time signature; None: the one that is found.

    Raises:
        UserError: the file of beats cannot be read, or has bars of another metre.
    """
    what = "beats found"
    if setting == "auto":
        beats = find_beats(score, metre=metre)
    elif setting == "file":
        beats, what = beats_of_file(score, metre), "bars as given"
    else:
        beats, what = read_beats(setting), "beats as given"
        if not len(beats.bar_starts):
            beats = find_beats(score, beats.times, metre)
        elif metre is not None:
            given, beats = beats, replace(beats, time_signature=metre)
            if beats.beats_per_bar != given.beats_per_bar:
                raise UserError(
                    f"{setting}: most bars have {given.beats_per_bar} beats, not those of "
                    f"time_signature={metre[0]}/{metre[1]}"
                )
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
    if beats.source != "annotated" and len(times) > 2 and _lasts_long(times, interval):
        times, starts = times[1:], starts[starts > 0] - 1
    missing = max(0, int(np.ceil((times[0] - first_onset) / interval - _EARLY)))
    before = times[0] - interval * np.arange(missing, 0, -1)
    times = np.concatenate([before, times])
    if first_onset < times[1]:
        times[0] = min(times[0], first_onset)
    return times, starts + missing


def _lasts_long(times: FloatArray, interval: float) -> bool:
    return bool(_SLOW_START * interval < times[1] - times[0] < _LONGEST_BEAT)


def _filled(times: FloatArray, starts: IntArray, bar: int) -> tuple[FloatArray, IntArray]:
    """Return beats, and where bars begin among them, with whole bars of beats in long silence.

    A MIDI file has no beats of more than 16 s.

    Args:
        bar: beats in most bars.
    """
    intervals = np.diff(times)
    silence = np.where(intervals > _LONGEST_BEAT, intervals, 0)
    if not silence.any():
        return times, starts
    most = _MOST_SILENT_BEATS // np.count_nonzero(silence)
    bars = np.minimum(silence / np.median(intervals), most) // bar  # in each interval
    added = (bars * bar).astype(np.int64)
    number = np.arange(len(times)) + np.append(0, np.cumsum(added))  # of each beat among all
    beats = np.interp(np.arange(number[-1] + 1), number, times)
    inserted = np.append(0, np.cumsum(added))[np.append(starts, len(times) - 1)]
    lines = [
        number[start] + bar * np.arange(count // bar + 1)
        for start, count in zip(starts.tolist(), np.diff(inserted).tolist(), strict=True)
    ]
    return beats, np.concatenate([np.empty(0, np.int64), *lines])


def _time_signatures(beats: Beats, ticks: IntArray, lengths: IntArray) -> Iterator[TimeSignature]:
    """Yield the time signature of each run of bars of the same length.

    The next time signature cuts an upbeat short.

    Args:
        ticks: of the bar lines. [num_bars]
        lengths: beats in each bar. [num_bars]
    """
    numerator, denominator = beats.time_signature
    per_beat = numerator // beats.beats_per_bar  # of the denominator's notes
    bars = list(zip(ticks.tolist(), lengths.tolist(), strict=True))
    beat = round(TICKS_PER_BEAT * beats.quarters)
    num_bars, upbeat = divmod(bars[0][0], beat * beats.beats_per_bar)
    if num_bars:  # before the first that begins in the music
        bars.insert(0, (upbeat, beats.beats_per_bar))
    if upbeat:
        yield TimeSignature(0, numerator, denominator)
    for length, run in groupby(bars, key=lambda bar: bar[1]):
        yield TimeSignature(next(run)[0], length * per_beat, denominator)
