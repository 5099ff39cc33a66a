"""MIDI files and other libraries' objects to and from `Score`: no other file imports those."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import symusic
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.files import write_bytes
from musicgen.midi.guard import UNCLOSED, close_notes, whole_chunks
from musicgen.midi.score import (
    NOTE,
    TEMPO,
    Marker,
    NoteArray,
    Score,
    TimeSignature,
    Track,
    sort_notes,
)

if TYPE_CHECKING:
    import miditoolkit
    import muspy

MIDI_SUFFIXES = frozenset({".mid", ".midi"})
_TICK_LIMIT = 2**28  # of the format's time differences
_LONGEST_UNCLOSED = 4  # beats


def read(path: str | Path) -> Score:
    """Read a MIDI file.

    Raises:
        UserError: the file is missing, unreadable or no standard MIDI file.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a MIDI file") from None
    try:
        return loads(data)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def loads(data: bytes) -> Score:
    """The `Score` in the bytes of a MIDI file.

    Tempi and time signatures that no player could use (0 bpm, 0/4) are left out, and so are
    tracks without events. A note that never ends does so when its key is let go after another
    note, or else with its track, after 4 beats at most. `repairs` tells what was mended.

    Raises:
        UserError: the bytes are no standard MIDI file, or one that is cut short.
    """
    data = whole_chunks(data)
    try:
        parsed: Any = symusic.Score.from_midi(data)
    except Exception as error:  # the parser raises several types
        reason = str(error).removeprefix("MiniMidi: ").split("!")[0]
        raise UserError(f"broken MIDI ({reason}); export it again from a music program") from None
    if parsed.ticks_per_quarter <= 0:
        raise UserError("SMPTE time (no beats) is not supported; export it with a beat division")
    score = _from_symusic(parsed)
    num_notes = parsed.note_num()
    with suppress(Exception):  # of bytes that only the parser takes for a whole track
        for power in range(0, 13, 3):  # more than once only where notes never ended
            parsed = symusic.Score.from_midi(close_notes(data, 2**power))
            if parsed.note_num() == num_notes:
                break
            num_notes = parsed.note_num()
            score = _from_symusic(parsed, unclosed=UNCLOSED)
    return score


def write(score: Score, path: str | Path) -> None:
    """Write a standard MIDI file (format 1) atomically; missing folders are made. See `dumps`."""
    write_bytes(path, dumps(score))


def dumps(score: Score) -> bytes:
    """The bytes of a standard MIDI file holding `score`; equal scores give equal bytes.

    The format has no notes of velocity 0 and no empty markers, it rounds tempi to microseconds a
    beat, and of notes that sound at once at one pitch of a track the first to begin ends first.

    Raises:
        UserError: an event lies past the 2^28 ticks that the format can count.
    """
    events = [*score.tempos["tick"].tolist(), *(e.tick for e in score.time_signatures)]
    if max(score.end, *events, *(m.tick for m in score.markers), 0) >= _TICK_LIMIT:
        raise UserError("the music lasts longer than 2^28 ticks; cut it, or use fewer ticks a beat")
    out: Any = symusic.Score(score.ticks_per_beat)
    # Without any track the writer leaves the other events unsorted, which breaks the file.
    for track in score.tracks or [Track()]:
        new: Any = symusic.Track(track.name, track.program, track.is_drum)
        notes = sort_notes(track.notes)
        for column in "pitch", "velocity":
            assert ((notes[column] >= 0) & (notes[column] < 128)).all(), f"{column} outside 0-127"
        new.notes = symusic.Note.from_numpy(
            notes["onset"].astype(np.int32),
            notes["duration"].astype(np.int32),
            notes["pitch"].astype(np.int8),
            notes["velocity"].astype(np.int8),
        )
        out.tracks.append(new)
    for tick, bpm in score.tempos.tolist():
        out.tempos.append(symusic.Tempo(tick, qpm=bpm))
    for signature in score.time_signatures:
        out.time_signatures.append(symusic.TimeSignature(*signature))
    for marker in score.markers:
        out.markers.append(symusic.TextMeta(marker.tick, marker.text))
    return out.dumps_midi()


def find_midi(folder: str | Path) -> list[Path]:
    """All MIDI files below `folder`, sorted by path.

    Raises:
        UserError: the folder is missing or holds no MIDI file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give one that holds .mid or .midi files")
    # macOS leaves `._name.mid` resource forks beside the real files.
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in MIDI_SUFFIXES and path.name[0] != "." and path.is_file()
    )
    if not files:
        raise UserError(f"{folder}: holds no .mid or .midi file; give a folder that does")
    return files


def as_score(music: Score | str | Path | miditoolkit.MidiFile | muspy.Music | Any) -> Score:
    """A `Score` from a path, a miditoolkit `MidiFile`, a muspy `Music`, or a `Score` itself.

    Raises:
        UserError: an unreadable file.
        TypeError: another type.
    """
    if isinstance(music, Score):
        return music
    if isinstance(music, str | Path):
        return read(music)
    # By module name, so that neither library is imported for those who do not use it.
    library = type(music).__module__.partition(".")[0]
    if library == "miditoolkit":
        return _from_miditoolkit(music)
    if library == "muspy":
        return _from_muspy(music)
    raise TypeError(f"expected a Score, a path, a MidiFile or a Music, got {type(music).__name__}")


def _from_symusic(parsed: Any, unclosed: float = math.inf) -> Score:
    """The parser's Score as ours; a note of `unclosed` ticks or more never ended."""
    tracks = []
    num_closed = 0
    for track in parsed.tracks:
        columns = track.notes.numpy()
        notes = np.empty(len(columns["time"]), NOTE)
        notes["onset"], notes["duration"] = columns["time"], columns["duration"]
        notes["pitch"], notes["velocity"] = columns["pitch"], columns["velocity"]
        # The parser's bytes and 32-bit ticks wrap around where a file is damaged.
        if any((notes[column] < 0).any() for column in NOTE.names or ()):
            raise UserError(
                "broken MIDI (velocity past 127, or a time past 2^31 ticks); get a whole copy"
            )
        is_open = notes["duration"] >= unclosed
        if is_open.any():
            longest = _LONGEST_UNCLOSED * parsed.ticks_per_quarter
            notes["duration"][is_open] -= int(unclosed)
            notes["duration"][is_open] = _closed(notes[is_open], notes[~is_open], longest)
            num_closed += int(is_open.sum())
        tracks.append(Track(track.name, track.program, track.is_drum, notes))
    tempos = _tempos((t.time, t.qpm) for t in parsed.tempos)
    signatures = _signatures((s.time, s.numerator, s.denominator) for s in parsed.time_signatures)
    mended = {
        "notes without an end closed": num_closed,
        "impossible tempi left out": len(parsed.tempos) - len(tempos),
        "impossible time signatures left out": len(parsed.time_signatures) - len(signatures),
    }
    return Score(
        parsed.ticks_per_quarter,
        tracks,
        tempos,
        signatures,
        _by_tick(Marker(m.time, m.text) for m in parsed.markers),
        [f"{count} {what}" for what, count in mended.items() if count],
    )


def _closed(notes: NoteArray, others: NoteArray, longest: int) -> NDArray[np.int64]:
    """Durations of notes that never end: until the key is let go, as a synthesizer would have it.

    If that never happens again, until the end of the track, which `notes` last for now, or
    `longest` ticks.
    """
    ends = np.sort(others["pitch"] << 32 | others["onset"] + others["duration"])
    after = notes["pitch"] << 32 | notes["onset"] + 1
    release = np.append(ends, 128 << 32)[np.searchsorted(ends, after)]
    is_let_go = release >> 32 == notes["pitch"]
    at_end = np.clip(notes["duration"], 1, longest)
    return np.where(is_let_go, release - (notes["pitch"] << 32) - notes["onset"], at_end)


def _from_miditoolkit(midi: miditoolkit.MidiFile) -> Score:
    tracks = [
        Track(
            instrument.name,
            instrument.program,
            instrument.is_drum,
            _notes((n.start, n.end - n.start, n.pitch, n.velocity) for n in instrument.notes),
        )
        for instrument in midi.instruments
    ]
    return Score(
        midi.ticks_per_beat,
        tracks,
        _tempos((t.time, t.tempo) for t in midi.tempo_changes),
        _signatures((s.time, s.numerator, s.denominator) for s in midi.time_signature_changes),
        _by_tick(Marker(m.time, m.text) for m in midi.markers),
    )


def _from_muspy(music: muspy.Music) -> Score:
    tracks = [
        Track(
            track.name or "",
            track.program,
            track.is_drum,
            _notes((n.time, n.duration, n.pitch, n.velocity or 64) for n in track.notes),
        )
        for track in music.tracks
    ]
    return Score(
        music.resolution,
        tracks,
        _tempos((t.time, t.qpm) for t in music.tempos),
        _signatures((s.time, s.numerator, s.denominator) for s in music.time_signatures),
        _by_tick(Marker(a.time, str(a.annotation)) for a in music.annotations),
    )


def _notes(rows: Any) -> NoteArray:
    return np.array(list(rows), dtype=NOTE)


def _tempos(rows: Any) -> np.ndarray:
    kept = [(tick, bpm) for tick, bpm in rows if math.isfinite(bpm) and bpm > 0]
    return np.array(_by_tick(kept), dtype=TEMPO)


def _signatures(rows: Any) -> list[TimeSignature]:
    # A denominator is a power of two in the file; past 64ths it is damage.
    return _by_tick(TimeSignature(*row) for row in rows if row[1] > 0 and 0 < row[2] <= 64)


def _by_tick(events: Iterable[Any]) -> list[Any]:
    """In order of time; of several at one tick the last in the file still comes last."""
    return sorted(events, key=lambda event: event[0])
