"""POP909: piano arrangements of pop songs with annotated beats and chords, as plain 4/4 scores.

Wang et al. 2020, "POP909: A pop-song dataset for music arrangement generation".
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from musicgen.data.corpora.base import Corpus, Piece, missing_corpus
from musicgen.errors import UserError
from musicgen.midi import TEMPO, TICKS_PER_BEAT, Marker, Score, TimeSignature, read, sort_notes
from musicgen.tokenization.chords.symbols import CHORDS, chord_index

SOURCE = "the folder POP909 of the GitHub repository music-x-lab/POP909-Dataset"
BEATS_FILE = "beat_midi.txt"
CHORDS_FILE = "chord_midi.txt"
BAR_BEATS = 4
# A note may come half a sixteenth ahead of its bar.
EARLY_BEATS = 1 / 8
VELOCITY_RANGE = (40, 86)

# Harte's qualities to those of REMI's chord vocabulary, which has no sixths nor suspended seventh.
_QUALITIES = {
    "maj": "M", "maj6": "M", "maj7": "M7", "7": "7", "min": "m", "min6": "m", "min7": "m7",
    "minmaj7": "m", "dim": "o", "dim7": "o7", "hdim7": "/o7", "aug": "+", "sus2": "sus2",
    "sus4": "sus4", "sus4(b7)": "sus4",
}  # fmt: skip
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class POP909(Corpus):
    """The songs of POP909 in duple metre.

    Args:
        root: the folder that contains the songs' folders, 001 to 909, at any depth.
        exclude: names of songs to leave out, such as `018`, or a file with them, one a line.
    """

    def __init__(self, root: str | Path, *, exclude: str | Sequence[str] | None) -> None:
        super().__init__(root, exclude=exclude)

    def pieces(self) -> list[Piece]:
        songs = sorted(path.parent for path in self.root.rglob(BEATS_FILE))
        if not songs:
            expected = f"song folders with NNN.mid, {BEATS_FILE} and {CHORDS_FILE}"
            raise missing_corpus(self.root, expected, f"put {SOURCE} here")
        return self.kept([Piece(song.name, song, song.name) for song in songs])

    def read(self, path: Path) -> Score:
        """Read one song as a 4/4 score of 480 ticks a beat, from the annotated beats.

        The MIDI file's own ticks do not follow the music's beats. Each onset is therefore
        interpolated between the two annotated beats around it, and durations are measured in beats.
        A bar begins at each annotated downbeat: bars of more than 4 beats are split, shorter ones
        are padded with silence, and beats before the first downbeat end a bar. The first bar is the
        one in which the first note sounds.

        - Tempo: the mean over each bar, where it changes. Tempi per beat would follow the beat
          tracker's errors rather than the music.
        - Chords: markers such as `A_M7` or `N_N` where they change, without inversions.
        - Velocities: rescaled linearly over the whole song to 40–86.
        - Tracks: MELODY, BRIDGE and PIANO.

        Args:
            path: folder `NNN`, with `NNN.mid`, `beat_midi.txt` (seconds, flag every 2 beats,
                downbeat flag) and `chord_midi.txt` (start and end in seconds, chord in Harte's
                notation).

        Raises:
            ValueError: a file is missing or malformed, or the song is not in 4/4.
        """
        score = read(path / f"{path.name}.mid")
        if not score.num_notes:
            raise UserError(f"{path}: the song has no notes; get a complete copy of {SOURCE}")
        beats, downbeats = _read_beats(path / BEATS_FILE)
        from scipy.interpolate import make_interp_spline  # slow to import

        beat_of = make_interp_spline(beats, np.arange(len(beats)), k=1)  # extrapolates at both ends

        starts, ends = [], []
        for track in score.tracks:
            onset = track.notes["onset"]
            starts.append(beat_of(score.seconds_at(onset)))
            ends.append(beat_of(score.seconds_at(onset + track.notes["duration"])))
        bars = _bars(downbeats, np.concatenate(starts))
        velocities = score.notes["velocity"]
        span = velocities.min(), velocities.max()

        for track, start, end in zip(score.tracks, starts, ends, strict=True):
            notes = track.notes
            notes["onset"] = np.maximum(0, _ticks(start, bars))
            notes["duration"] = np.maximum(1, np.rint((end - start) * TICKS_PER_BEAT))
            # A song of one velocity gets the highest.
            notes["velocity"] = np.rint(np.interp(notes["velocity"], span, VELOCITY_RANGE))
            track.notes = sort_notes(notes)
        metre = [TimeSignature(0, BAR_BEATS, 4)]
        piece = Score(TICKS_PER_BEAT, score.tracks, time_signatures=metre, repairs=score.repairs)
        piece.tempos = _tempos(beats, bars)
        chord_times, chords = _read_chords(path / CHORDS_FILE)
        piece.markers = _markers(_ticks(np.rint(beat_of(chord_times)), bars), chords, piece.end)
        return piece


def _read_beats(path: Path) -> tuple[FloatArray, IntArray]:
    """Return the seconds of every beat [num_beats], and the downbeats' indices [num_downbeats]."""
    try:
        beats, _, flags = np.array(_rows(path), dtype=np.float64).T
    except (OSError, ValueError):
        raise UserError(f"{path}: expected three numbers a line; get {SOURCE}") from None
    downbeats = np.flatnonzero(flags)
    if len(downbeats) < 2 or not (np.diff(beats) > 0).all():
        raise UserError(f"{path}: expected increasing times with downbeats; get {SOURCE}")
    bar_length = int(np.bincount(np.diff(downbeats)).argmax())
    if bar_length != BAR_BEATS:
        raise UserError(f"{path}: most bars have {bar_length} beats, not 4; leave this song out")
    return beats, downbeats


def _read_chords(path: Path) -> tuple[FloatArray, list[str]]:
    """Return the seconds at which chords begin [num_chords], and their names."""
    try:
        rows = _rows(path)
        return np.array([float(start) for start, _, _ in rows]), [_chord(row[2]) for row in rows]
    except (OSError, ValueError, LookupError) as error:
        raise UserError(
            f"{path}: expected start, end and chord a line ({error}); get {SOURCE}"
        ) from None


def _rows(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text("utf-8").splitlines() if line.strip()]


def _chord(label: str) -> str:
    """Convert Harte's notation to REMI's: `Bb:min7/b3` to `A#_m7`, `N` to `N_N`."""
    root, _, quality = label.partition("/")[0].partition(":")
    if root == "N":
        return "N_N"
    index = chord_index(f"{root}_{_QUALITIES[quality]}")
    if index is None:
        raise LookupError(label)
    return CHORDS[index]


def _bars(downbeats: IntArray, onsets: FloatArray) -> IntArray:
    """Return the beats at which bars begin [num_bars], from the bar of the first onset on.

    Beat 0 is the first annotated one; bars before it begin at negative beats.
    """
    first, last = onsets.min() + EARLY_BEATS, onsets.max() + EARLY_BEATS
    num_before = max(0, int(np.ceil((downbeats[0] - first) / BAR_BEATS)))
    before = downbeats[0] - BAR_BEATS * np.arange(num_before, 0, -1)
    edges = np.append(downbeats, max(downbeats[-1], int(last)) + 1)
    spans = [np.arange(*span, BAR_BEATS) for span in pairwise(edges)]
    bars = np.concatenate([before, *spans])
    return bars[np.searchsorted(bars, first, side="right") - 1 :]


def _ticks(beats: FloatArray, bars: IntArray) -> IntArray:
    """Convert beats to ticks of a score whose bars all have 4 beats; negative before its start."""
    bar = np.maximum(0, np.searchsorted(bars, beats + EARLY_BEATS, side="right") - 1)
    in_bar = beats - bars[bar]
    return np.rint((BAR_BEATS * bar + in_bar) * TICKS_PER_BEAT).astype(np.int64)


def _tempos(beats: FloatArray, bars: IntArray) -> NDArray[np.void]:
    """Return the mean tempo of each bar, to 0.1 bpm, where it changes."""
    from scipy.interpolate import make_interp_spline  # slow to import

    seconds_of = make_interp_spline(np.arange(len(beats)), beats, k=1)
    edges = np.append(bars, bars[-1] + BAR_BEATS)
    bpm = np.round(60 * np.diff(edges) / np.diff(seconds_of(edges)), 1)
    tempos = np.empty(len(bars), TEMPO)
    tempos["tick"] = np.arange(len(bars)) * BAR_BEATS * TICKS_PER_BEAT
    tempos["bpm"] = bpm
    return tempos[np.diff(bpm, prepend=0) != 0]


def _markers(ticks: IntArray, chords: list[str], end: int) -> list[Marker]:
    """Return chords where they change, from tick 0 until the last note ends."""
    markers: list[Marker] = []
    for tick, chord in zip(np.maximum(0, ticks).tolist(), chords, strict=True):
        if markers and markers[-1].tick == tick:  # before the first bar: the last one holds
            markers.pop()
        if tick < end and (not markers or markers[-1].text != chord):
            markers.append(Marker(tick, chord))
    return markers
