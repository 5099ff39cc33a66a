"""Piano arrangements of pop songs: POP909, with annotated beats and chords, and Pop1K7."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from musicgen.data.corpora.base import Corpus, Piece
from musicgen.errors import UserError
from musicgen.midi import (
    TEMPO,
    TICKS_PER_BEAT,
    Marker,
    Score,
    TimeSignature,
    find_music,
    read,
    sort_notes,
)
from musicgen.midi.score import FloatArray, IntArray
from musicgen.tokenization.chords import CHORDS, chord_index

SOURCE = "the folder POP909 of the GitHub repository music-x-lab/POP909-Dataset"
POP1K7_SOURCE = "Pop1K7.zip of https://zenodo.org/records/13167761"
POP1K7_FOLDER = "midi_analyzed"
BEATS_FILE = "beat_midi.txt"
CHORDS_FILE = "chord_midi.txt"
BAR_BEATS = 4
# A note may begin half a sixteenth before its bar.
EARLY_BEATS = 1 / 8
VELOCITY_RANGE = (40, 86)

# Qualities in Harte's notation -> REMI's vocabulary, without sixth chords and suspended sevenths.
_QUALITIES = {
    "maj": "M", "maj6": "M", "maj7": "M7", "7": "7", "min": "m", "min6": "m", "min7": "m7",
    "minmaj7": "m", "dim": "o", "dim7": "o7", "hdim7": "/o7", "aug": "+", "sus2": "sus2",
    "sus4": "sus4", "sus4(b7)": "sus4",
}  # fmt: skip


class POP909(Corpus):
    """The songs of POP909 in 4/4.

    Wang et al. 2020, "POP909: A pop-song dataset for music arrangement generation".

    Args:
        root: a folder that contains the folders of songs, 001 to 909, at any depth.
        exclude: names of songs to leave out, such as `018`, or a file with one name per line.
    """

    def __init__(self, root: str | Path, *, exclude: str | Sequence[str] | None) -> None:
        super().__init__(root, exclude=exclude)

    def pieces(self) -> list[Piece]:
        songs = sorted(path.parent for path in self.root.rglob(BEATS_FILE))
        if not songs:
            expected = f"song folders with NNN.mid, {BEATS_FILE} and {CHORDS_FILE}"
            raise self.missing(expected, f"put {SOURCE} here")
        return self.without_excluded([Piece(song.name, song, song.name) for song in songs])

    def read(self, path: Path) -> Score:
        """Return a song as a score in 4/4 with 480 ticks per beat, by the annotated beats.

        Ticks of the MIDI file do not follow the beats of the music. Each onset is therefore
        interpolated between the two annotated beats around it, and durations are measured in beats.
        A bar begins at each annotated downbeat. Bars of more than 4 beats are split, and shorter
        ones are padded with silence. Beats before the first downbeat are the end of a bar. The
        score begins with the bar of the first note.

        - Tempo: the mean over each bar, where it changes. A tempo per beat would follow errors of
          the beat tracker rather than the music.
        - Chords: markers such as `A_M7` or `N_N` where they change, without inversions.
        - Velocities: rescaled linearly over the whole song to 40–86.
        - Tracks: MELODY, BRIDGE and PIANO.

        Args:
            path: folder `NNN`, with `NNN.mid`, `beat_midi.txt` (seconds, flag every 2 beats,
                downbeat flag) and `chord_midi.txt` (start and end in seconds, chord in Harte's
                notation).

        Raises:
            UserError: a file is missing or malformed, or the song is not in 4/4.
        """
        score = read(path / f"{path.name}.mid")
        if not score.num_notes:
            raise UserError(f"{path}: the song has no notes; get a complete copy of {SOURCE}")
        beats, downbeats = _read_beats(path / BEATS_FILE)
        from scipy.interpolate import make_interp_spline  # slow to import

        # Both extrapolate at both ends.
        beat_of = make_interp_spline(beats, np.arange(len(beats)), k=1)
        seconds_of = make_interp_spline(np.arange(len(beats)), beats, k=1)

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
            # If all velocities of a song are equal, they become the highest.
            notes["velocity"] = np.rint(np.interp(notes["velocity"], span, VELOCITY_RANGE))
            track.notes = sort_notes(notes)
        signatures = [TimeSignature(0, BAR_BEATS, 4)]
        piece = Score(
            TICKS_PER_BEAT, score.tracks, time_signatures=signatures, repairs=score.repairs
        )
        piece.tempos = _tempos(seconds_of, bars)
        chord_times, chords = _read_chords(path / CHORDS_FILE)
        piece.markers = _markers(_ticks(np.rint(beat_of(chord_times)), bars), chords, piece.end)
        return piece


def _read_beats(path: Path) -> tuple[FloatArray, IntArray]:
    """Return the time of every beat in seconds [num_beats], and the indices of the downbeats.

    Raises:
        UserError: the file is missing or malformed, or most bars do not have 4 beats.
    """
    try:
        beats, _, flags = np.array(_rows(path), dtype=np.float64).T
    except (OSError, ValueError):
        raise UserError(f"{path}: expected three numbers per line; get {SOURCE}") from None
    downbeats = np.flatnonzero(flags)
    if len(downbeats) < 2 or not (np.diff(beats) > 0).all():
        raise UserError(f"{path}: expected increasing times with downbeats; get {SOURCE}")
    bar_length = int(np.bincount(np.diff(downbeats)).argmax())
    if bar_length != BAR_BEATS:
        raise UserError(f"{path}: most bars have {bar_length} beats, not 4; leave this song out")
    return beats, downbeats


def _read_chords(path: Path) -> tuple[FloatArray, list[str]]:
    """Return the times at which chords begin, in seconds [num_chords], and their names.

    Raises:
        UserError: the file is missing or malformed.
    """
    try:
        rows = _rows(path)
        starts = np.array([float(start) for start, _, _ in rows])
        return starts, [_chord(label) for _, _, label in rows]
    except (OSError, ValueError, LookupError) as error:
        raise UserError(
            f"{path}: expected start, end and chord on each line ({error}); get {SOURCE}"
        ) from None


def _rows(path: Path) -> list[list[str]]:
    """Return the words of each line that is not empty."""
    return [line.split() for line in path.read_text("utf-8").splitlines() if line.strip()]


def _chord(label: str) -> str:
    """Return a chord of Harte's notation in REMI's: `A#_m7` for `Bb:min7/b3`, `N_N` for `N`.

    Raises:
        LookupError: the vocabulary has no such chord.
    """
    root, _, quality = label.partition("/")[0].partition(":")
    if root == "N":
        return "N_N"
    index = chord_index(f"{root}_{_QUALITIES[quality]}")
    if index is None:
        raise LookupError(label)
    return CHORDS[index]


def _bars(downbeats: IntArray, onsets: FloatArray) -> IntArray:
    """Return the beats at which bars begin [num_bars], starting with the bar of the first onset.

    Beats count from the first annotated one. Bars before it begin at negative beats.
    """
    first, last = onsets.min() + EARLY_BEATS, onsets.max() + EARLY_BEATS
    num_before = max(0, int(np.ceil((downbeats[0] - first) / BAR_BEATS)))
    before = downbeats[0] - BAR_BEATS * np.arange(num_before, 0, -1)
    edges = np.append(downbeats, max(downbeats[-1], int(last)) + 1)
    spans = [np.arange(*span, BAR_BEATS) for span in pairwise(edges)]
    bars = np.concatenate([before, *spans])
    return bars[np.searchsorted(bars, first, side="right") - 1 :]


def _ticks(beats: FloatArray, bars: IntArray) -> IntArray:
    """Return beats as ticks of a score whose bars all have 4 beats; negative before its first bar.

    Args:
        bars: beats at which bars begin [num_bars].
    """
    bar = np.maximum(0, np.searchsorted(bars, beats + EARLY_BEATS, side="right") - 1)
    in_bar = beats - bars[bar]
    return np.rint((BAR_BEATS * bar + in_bar) * TICKS_PER_BEAT).astype(np.int64)


def _tempos(seconds_of: Callable[[IntArray], FloatArray], bars: IntArray) -> NDArray[np.void]:
    """Return tempo changes: the mean tempo of each bar, rounded to 0.1 bpm."""
    edges = np.append(bars, bars[-1] + BAR_BEATS)
    bpm = np.round(60 * np.diff(edges) / np.diff(seconds_of(edges)), 1)
    tempos = np.empty(len(bars), TEMPO)
    tempos["tick"] = np.arange(len(bars)) * BAR_BEATS * TICKS_PER_BEAT
    tempos["bpm"] = bpm
    return tempos[np.diff(bpm, prepend=0) != 0]


def _markers(ticks: IntArray, chords: list[str], end: int) -> list[Marker]:
    """Return markers where the chord changes, from tick 0 until the last note ends."""
    markers: list[Marker] = []
    for tick, chord in zip(np.maximum(0, ticks).tolist(), chords, strict=True):
        if markers and markers[-1].tick == tick:  # of the chords before tick 0, the last applies
            markers.pop()
        if tick < end and (not markers or markers[-1].text != chord):
            markers.append(Marker(tick, chord))
    return markers


class Pop1K7(Corpus):
    """The songs of Pop1K7: transcribed covers with estimated beats, tempi and chords.

    Hsiao et al. 2021, "Compound Word Transformer: Learning to compose full-song music over dynamic
    directed hypergraphs". Each song is its own group.

    Args:
        root: a folder that contains `midi_analyzed`, at any depth.
        exclude: names of files to leave out, or a file with one name per line.
    """

    def __init__(self, root: str | Path, *, exclude: str | Sequence[str] | None) -> None:
        super().__init__(root, exclude=exclude)

    def pieces(self) -> list[Piece]:
        folder = self.root
        if folder.name != POP1K7_FOLDER:
            folder = next(self.root.rglob(POP1K7_FOLDER), self.root / POP1K7_FOLDER)
        if not folder.is_dir():
            expected = f"the folder {POP1K7_FOLDER} of Pop1K7"
            raise self.missing(expected, f"unpack {POP1K7_SOURCE} here")
        return self.without_excluded(
            [
                Piece(name := path.relative_to(folder).as_posix(), path, name)
                for path in find_music(folder)
            ]
        )

    def read(self, path: Path) -> Score:
        """Return a song, from the bar in which its first note begins.

        Ticks follow the tracked beats, and bars of four beats start at tick 0. Time signatures are
        removed: in most files a second one begins one to three beats off these bars. Notes keep
        their small deviations from the grid, except that notes up to half a sixteenth before the
        first bar are moved to its beginning. Only markers of chords, such as `A_M7_A`, remain.
        """
        score = read(path)
        if not score.num_notes:
            return score
        bar, half_sixteenth = 4 * score.ticks_per_beat, score.ticks_per_beat // 4 // 2
        start = (score.start + half_sixteenth) // bar * bar
        for track in score.tracks:
            np.maximum(track.notes["onset"], start, out=track.notes["onset"])
        chords = [marker for marker in score.markers if chord_index(marker.text) is not None]
        return replace(score, markers=chords, time_signatures=[]).clip(start, score.end + 1)

    def reader_id(self) -> str:
        return f"{super().reader_id()} without time signatures"
