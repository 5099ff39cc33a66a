"""POP909: piano arrangements of pop songs, with beats and chords annotated, as plain 4/4 scores.

Wang et al. 2020, "POP909: A pop-song dataset for music arrangement generation".
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import make_interp_spline

from musicgen.data.datamodule import MusicData
from musicgen.data.download import Archive, obtain
from musicgen.data.prepare import Piece
from musicgen.errors import UserError
from musicgen.midi import TEMPO, Marker, NoteArray, Score, TimeSignature, read, sort_notes

SOURCE = "the folder POP909 of the GitHub repository music-x-lab/POP909-Dataset"
# Made on request, so that there is neither size nor checksum to verify; the zip has its own CRCs.
ARCHIVE = Archive(
    "POP909-Dataset-master.zip",
    "https://github.com/music-x-lab/POP909-Dataset/archive/refs/heads/master.zip",
    "MIT; the songs are commercial ones",
)

BEATS_FILE = "beat_midi.txt"
CHORDS_FILE = "chord_midi.txt"
TICKS_PER_BEAT = 480
BAR_BEATS = 4
# A note may come half a sixteenth ahead of the bar to which it belongs.
EARLY_BEATS = 1 / 8
VELOCITY_RANGE = (40, 86)

# Harte's qualities, as the chord vocabulary of REMI names them; sixths and the suspended seventh
# are simplified to what it holds.
_QUALITIES = {
    "maj": "M",
    "maj6": "M",
    "maj7": "M7",
    "7": "7",
    "min": "m",
    "min6": "m",
    "min7": "m7",
    "minmaj7": "m",
    "dim": "o",
    "dim7": "o7",
    "hdim7": "/o7",
    "aug": "+",
    "sus2": "sus2",
    "sus4": "sus4",
    "sus4(b7)": "sus4",
}
_SHARPS = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")
_NATURALS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class POP909(MusicData):
    """The songs of POP909 in duple metre.

    Args:
        root: the folder that holds the songs' folders, 001 to 909, at any depth.
        download: fetch the repository to beside `root`, and unpack it there.
    """

    def __init__(self, root: str | Path, *, download: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root, self.download = Path(root).expanduser(), download

    @staticmethod
    def read(path: Path) -> Score:
        return read_song(path)

    def pieces(self) -> list[Piece]:
        if self.download:
            obtain(ARCHIVE, self.root, only="*/POP909/*")
        return [Piece(song.name, song, song.name) for song in find_songs(self.root)]


def find_songs(root: str | Path) -> list[Path]:
    """The song folders below `root`, sorted.

    Raises:
        UserError: there are none.
    """
    songs = sorted(path.parent for path in Path(root).rglob(BEATS_FILE))
    if not songs:
        raise UserError(
            f"{root}: expected POP909's song folders (001/001.mid, 001/{BEATS_FILE}, "
            f"001/{CHORDS_FILE}, …) here; get them by data.download=true, or put {SOURCE} here"
        )
    return songs


def read_song(folder: str | Path) -> Score:
    """One song as a 4/4 score of 480 ticks a beat, from the annotated beats.

    The MIDI file's own ticks do not follow the music's beats. So each onset is placed between the
    two annotated beats around it, and a note lasts as many beats as it did. A bar begins at each
    annotated downbeat: more than 4 beats are split, fewer are filled up with silence, beats before
    the first downbeat end a bar. The bar in which the first note sounds is the first.

    - Tempo: the mean over each bar, where it changes. One for each beat would say how the beats
      were tracked rather than how the music moves.
    - Chords: markers such as `A_M7` or `N_N` where they change, without inversions.
    - Velocities: rescaled linearly, for the whole song, to 40–86.
    - The tracks MELODY, BRIDGE and PIANO are kept.

    Args:
        folder: `NNN`, with `NNN.mid`, `beat_midi.txt` (seconds, flag every 2 beats, downbeat flag)
            and `chord_midi.txt` (start and end in seconds, chord in Harte's notation).

    Raises:
        UserError: a file is missing or malformed, or the song is not in 4/4.
    """
    folder = Path(folder)
    score = read(folder / f"{folder.name}.mid")
    if not score.num_notes:
        raise UserError(f"{folder}: the song has no notes; get a whole copy of {SOURCE}")
    beats, downbeats = _read_beats(folder / BEATS_FILE)
    beat_of = make_interp_spline(beats, np.arange(len(beats)), k=1)  # extrapolates at both ends

    starts, ends = [], []
    for track in score.tracks:
        onset = track.notes["onset"]
        starts.append(beat_of(_seconds(score, onset)))
        ends.append(beat_of(_seconds(score, onset + track.notes["duration"])))
    bars = _bars(downbeats, np.concatenate(starts))

    for track, start, end in zip(score.tracks, starts, ends, strict=True):
        track.notes["onset"] = np.maximum(0, _ticks(start, bars))
        track.notes["duration"] = np.maximum(1, np.rint((end - start) * TICKS_PER_BEAT))
    _rescale_velocities([track.notes for track in score.tracks])
    for track in score.tracks:
        track.notes = sort_notes(track.notes)
    metre = [TimeSignature(0, BAR_BEATS, 4)]
    piece = Score(TICKS_PER_BEAT, score.tracks, time_signatures=metre, repairs=score.repairs)
    piece.tempos = _tempos(beats, bars)
    chord_times, chords = _read_chords(folder / CHORDS_FILE)
    piece.markers = _markers(_ticks(np.rint(beat_of(chord_times)), bars), chords, piece.end)
    return piece


def _read_beats(path: Path) -> tuple[FloatArray, IntArray]:
    """Seconds of every beat [num_beats], and which of them are downbeats [num_downbeats]."""
    rows = _rows(path)
    try:
        beats, _, flags = np.array(rows, dtype=np.float64).T
    except ValueError:
        raise UserError(f"{path}: expected three numbers a line; get {SOURCE}") from None
    downbeats = np.flatnonzero(flags)
    if len(downbeats) < 2 or not (np.diff(beats) > 0).all():
        raise UserError(f"{path}: expected rising times with downbeats; get {SOURCE}")
    bar_length = int(np.bincount(np.diff(downbeats)).argmax())
    if bar_length != BAR_BEATS:
        raise UserError(f"{path}: most bars have {bar_length} beats, not 4; leave this song out")
    return beats, downbeats


def _read_chords(path: Path) -> tuple[FloatArray, list[str]]:
    """Seconds at which each chord begins [num_chords], and its name."""
    rows = _rows(path)
    try:
        return np.array([float(start) for start, _, _ in rows]), [_chord(row[2]) for row in rows]
    except (ValueError, LookupError) as error:
        raise UserError(
            f"{path}: expected start, end and chord a line ({error}); get {SOURCE}"
        ) from None


def _rows(path: Path) -> list[list[str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{path}: cannot be read; get {SOURCE}") from None
    return [line.split() for line in lines if line.strip()]


def _chord(label: str) -> str:
    """Harte's notation to REMI's: `Bb:min7/b3` to `A#_m7`, `N` to `N_N`."""
    root, _, quality = label.partition("/")[0].partition(":")
    if root == "N":
        return "N_N"
    pitch_class = _NATURALS[root[0]] + root.count("#") - root.count("b")
    return f"{_SHARPS[pitch_class % 12]}_{_QUALITIES[quality]}"


def _seconds(score: Score, ticks: IntArray) -> FloatArray:
    """The times at which the file's own ticks sound."""
    # A file without a tempo at its beginning starts at 120 bpm.
    change = np.append(0, score.tempos["tick"])
    tick_length = 60 / (np.append(120.0, score.tempos["bpm"]) * score.ticks_per_beat)
    change_time = np.append(0, np.cumsum(np.diff(change) * tick_length[:-1]))
    index = np.searchsorted(change, ticks, side="right") - 1
    return change_time[index] + (ticks - change[index]) * tick_length[index]


def _bars(downbeats: IntArray, onsets: FloatArray) -> IntArray:
    """The beats at which bars begin [num_bars], from the bar of the first onset on.

    Beats are counted from the first annotated one; bars before it begin at negative ones.
    """
    first, last = onsets.min() + EARLY_BEATS, onsets.max() + EARLY_BEATS
    num_before = max(0, int(np.ceil((downbeats[0] - first) / BAR_BEATS)))
    before = downbeats[0] - BAR_BEATS * np.arange(num_before, 0, -1)
    edges = np.append(downbeats, max(downbeats[-1], int(last)) + 1)
    spans = [np.arange(*span, BAR_BEATS) for span in pairwise(edges)]
    bars = np.concatenate([before, *spans])
    return bars[np.searchsorted(bars, first, side="right") - 1 :]


def _ticks(beats: FloatArray, bars: IntArray) -> IntArray:
    """Places in beats as ticks of a score in which every bar has 4 beats; negative before it."""
    bar = np.maximum(0, np.searchsorted(bars, beats + EARLY_BEATS, side="right") - 1)
    in_bar = beats - bars[bar]
    return np.rint((BAR_BEATS * bar + in_bar) * TICKS_PER_BEAT).astype(np.int64)


def _rescale_velocities(tracks: list[NoteArray]) -> None:
    velocities = np.concatenate([notes["velocity"] for notes in tracks])
    span = (velocities.min(), velocities.max())
    for notes in tracks:
        # A song of one velocity gets the highest.
        notes["velocity"] = np.rint(np.interp(notes["velocity"], span, VELOCITY_RANGE))


def _tempos(beats: FloatArray, bars: IntArray) -> NDArray[np.void]:
    """The mean tempo of each bar, to 0.1 bpm, where it changes."""
    seconds_of = make_interp_spline(np.arange(len(beats)), beats, k=1)
    edges = np.append(bars, bars[-1] + BAR_BEATS)
    bpm = np.round(60 * np.diff(edges) / np.diff(seconds_of(edges)), 1)
    tempos = np.empty(len(bars), TEMPO)
    tempos["tick"] = np.arange(len(bars)) * BAR_BEATS * TICKS_PER_BEAT
    tempos["bpm"] = bpm
    return tempos[np.diff(bpm, prepend=0) != 0]


def _markers(ticks: IntArray, chords: list[str], end: int) -> list[Marker]:
    """Chords where they change, from tick 0 until the last note ends."""
    markers: list[Marker] = []
    for tick, chord in zip(np.maximum(0, ticks).tolist(), chords, strict=True):
        if markers and markers[-1].tick == tick:  # before the first bar: the last one holds
            markers.pop()
        if tick < end and (not markers or markers[-1].text != chord):
            markers.append(Marker(tick, chord))
    return markers
