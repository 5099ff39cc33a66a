"""Conversion of MIDI files, and of other libraries' objects, to and from `Score`."""

import io
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import attrgetter, itemgetter
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import symusic
from numpy.typing import NDArray

from musicgen.errors import UserError, errors_name
from musicgen.files import write_bytes
from musicgen.midi.channels import for_parser
from musicgen.midi.damaged_files import UNCLOSED, close_notes, repaired
from musicgen.midi.printed_scores import SCORE_SUFFIXES, read_score
from musicgen.midi.roles import names_drums
from musicgen.midi.score import (
    NOTE,
    TEMPO,
    KeySignature,
    Marker,
    NoteArray,
    Score,
    TimeSignature,
    Track,
    notes_from,
    sort_notes,
)
from musicgen.package_data import own_or_example
from musicgen.text import pluralize

MIDI_SUFFIXES = frozenset({".mid", ".midi", ".kar", ".rmi", ".smf"})
MUSIC_SUFFIXES = MIDI_SUFFIXES | SCORE_SUFFIXES.keys()
_SLOWEST = 60e6 / (2**24 - 1)  # beats a minute of the longest beat in the format


def read(path: str | Path) -> Score:
    """Read a MIDI file or a printed score; raise `UserError`, which names it, if it is damaged."""
    return read_with_data(path)[0]


def read_with_data(path: str | Path) -> tuple[Score, bytes]:
    """Read a file as `read` does; return the bytes of the MIDI file, of a score as one, too."""
    path = own_or_example(path)
    if path.is_fifo() or path.is_char_device():  # which may never end
        raise UserError(f"{path}: no regular file; give a MIDI file or a score")
    if path.suffix.lower() in SCORE_SUFFIXES:
        score = read_score(path)
        return score, dumps(score)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a MIDI file") from None
    with errors_name(path):
        return loads(data), data


def loads(data: bytes) -> Score:
    """Return the `Score` in the bytes of a MIDI file; raise `UserError` if there is none.

    Impossible tempi and time signatures (0 bpm, 0/4), those of a single beat (1/4) and tracks
    without events are omitted. A note without an end ends at the next note-off of its key, or else
    with its track, after 4 beats at most. `Score.repairs` lists these changes.
    """
    data, repairs = repaired(data)
    data = for_parser(data)
    try:
        parsed: Any = symusic.Score.from_midi(data)
    except Exception as error:  # the parser raises various types
        reason = str(error).removeprefix("MiniMidi: ").split("!")[0]
        raise UserError(f"broken MIDI ({reason}); export it again from a music program") from None
    score = _from_symusic(parsed)
    num_notes = parsed.note_num()
    with suppress(Exception):  # the parser reads some damaged tracks only unchanged
        for power in range(0, 13, 3):  # more than one pass only if notes have no end
            parsed = symusic.Score.from_midi(close_notes(data, 2**power))
            if parsed.note_num() == num_notes:
                break
            num_notes = parsed.note_num()
            score = _from_symusic(parsed, unclosed=UNCLOSED)
    score.repairs = [*repairs, *score.repairs]
    return score


def write(score: Score, path: str | Path) -> None:
    """Write a standard MIDI file (format 1) atomically, creating its folder. See `dumps`."""
    write_bytes(path, dumps(score))


def dumps(score: Score) -> bytes:
    """Return the bytes of a standard MIDI file of `score`; equal scores give equal bytes.

    The format has no notes of velocity 0, no empty markers and no tempi below 3.58 bpm, rounds
    tempi to microseconds per beat, and ends the first of several overlapping notes of one pitch
    first.
    """
    assert score.end < 2**28, "past the last tick of the format"
    out: Any = symusic.Score(score.ticks_per_beat)
    # Without a track the writer does not sort the other events, which breaks the file.
    for track in score.tracks or [Track()]:
        new: Any = symusic.Track(track.name, track.program, track.is_drum)
        notes = sort_notes(track.notes)
        for column in "pitch", "velocity":
            assert ((notes[column] >= 0) & (notes[column] < 128)).all(), f"{column} outside 0-127"
        columns: list[Any] = [notes[name].astype(np.int32) for name in ("onset", "duration")]
        columns += [notes[name].astype(np.int8) for name in ("pitch", "velocity")]
        new.notes = symusic.Note.from_numpy(*columns)
        out.tracks.append(new)
    for tick, bpm in score.tempos.tolist():
        out.tempos.append(symusic.Tempo(tick, qpm=max(bpm, _SLOWEST)))
    for signature in score.time_signatures:
        out.time_signatures.append(symusic.TimeSignature(*signature))
    for tick, fifths in score.key_signatures:
        out.key_signatures.append(symusic.KeySignature(tick, fifths, 0))
    for marker in score.markers:
        out.markers.append(symusic.TextMeta(marker.tick, marker.text))
    return out.dumps_midi()


def find_music(folder: str | Path) -> list[Path]:
    """Return the MIDI files and scores below `folder`, sorted; raise `UserError` without one."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give one that holds MIDI files or scores")
    found = [
        path
        for path in _walk(folder)
        # macOS creates `._name.mid` resource forks beside the real files.
        if path.suffix.lower() in MUSIC_SUFFIXES and path.name[0] != "." and path.is_file()
    ]
    if not found:
        raise UserError(f"{folder}: holds no MIDI file and no score; give a folder that does")
    return found


def _walk(folder: Path) -> Iterator[Path]:
    """Yield what is below a folder, sorted by path, but for folders; follow no links to folders."""
    entries: list[tuple[str, bool]] = []
    with suppress(PermissionError), os.scandir(folder) as found:
        entries = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)
    for name, is_folder in entries:
        if is_folder:
            yield from _walk(folder / name)
        else:
            yield folder / name


def without_suffix(name: str) -> str:
    """Return the name of a music file without its suffix; other names stay as they are."""
    path = PurePosixPath(name)
    return str(path.with_suffix("")) if path.suffix.lower() in MUSIC_SUFFIXES else name


def as_score(music: Any) -> Score:
    """Convert a path, or an object of miditoolkit, muspy or pretty_midi, to a `Score`."""
    if isinstance(music, Score):
        return music
    if isinstance(music, str | Path):
        return read(music)
    # Compare module names, so that none of them needs to be imported.
    library, file = type(music).__module__.partition(".")[0], io.BytesIO()
    if library == "muspy":
        return _from_muspy(music)
    if library == "miditoolkit":
        music.dump(file=file, charset="utf-8")
    elif library == "pretty_midi":
        music.write(file)
    else:
        kinds = "a Score, a path, or an object of miditoolkit, muspy or pretty_midi"
        raise TypeError(f"expected {kinds}, got {type(music).__name__}")
    return loads(file.getvalue())


def to_library(data: bytes, library: Literal["miditoolkit", "muspy", "pretty_midi"]) -> Any:
    """Return the music in the bytes of a MIDI file as an object of another library."""
    file = io.BytesIO(data)
    if library == "miditoolkit":
        import miditoolkit

        return miditoolkit.MidiFile(file=file, charset="utf-8")
    if library == "pretty_midi":
        import pretty_midi

        return pretty_midi.PrettyMIDI(file)
    import mido
    import muspy

    return muspy.from_mido(mido.MidiFile(file=file, charset="utf-8"))


def _from_symusic(parsed: Any, unclosed: float = math.inf) -> Score:
    """Convert the parser's Score; notes of `unclosed` ticks or more have no end in the file."""
    tracks = []
    num_closed = num_pedalled = 0
    for track in parsed.tracks:
        columns = track.notes.numpy()
        notes = np.empty(len(columns["time"]), NOTE)
        notes["onset"], notes["duration"] = columns["time"], columns["duration"]
        notes["pitch"], notes["velocity"] = columns["pitch"], columns["velocity"]
        # The parser's bytes and 32-bit ticks overflow in damaged files.
        if (notes.view(np.int64) < 0).any():
            damage = "velocity past 127, or a time past 2^31 ticks"
            raise UserError(f"broken MIDI ({damage}); get a whole copy")
        is_open = notes["duration"] >= unclosed
        if is_open.any():
            longest = 4 * parsed.ticks_per_quarter
            notes["duration"][is_open] -= int(unclosed)
            notes["duration"][is_open] = _open_durations(notes[is_open], notes[~is_open], longest)
            num_closed += int(is_open.sum())
        num_pedalled += _count_pedalled(notes, track.pedals.numpy())
        is_drum = track.is_drum or names_drums(track.name, track.program)
        tracks.append(Track(track.name, track.program, is_drum, notes))
    # The order at one tick is kept.
    by_time = attrgetter("time")
    tempos = [t for t in sorted(parsed.tempos, key=by_time) if 0 < t.qpm < math.inf]
    # A denominator is a power of two in the file; past 64ths it is damage. Programs that know no
    # metre write 1/4; as an upbeat it is a bar that the next signature cuts short.
    signatures = sorted(parsed.time_signatures, key=by_time)
    valid = [s for s in signatures if s.numerator > 1 and 0 < s.denominator <= 64]
    keys = sorted(parsed.key_signatures, key=by_time)
    score = Score(
        parsed.ticks_per_quarter,
        tracks,
        np.array([(t.time, t.qpm) for t in tempos], TEMPO),
        [TimeSignature(s.time, s.numerator, s.denominator) for s in valid],
        [Marker(m.time, m.text) for m in sorted(parsed.markers, key=by_time)],
        key_signatures=[KeySignature(k.time, k.key) for k in keys if -7 <= k.key <= 7],
    )
    repairs = {
        "notes without an end closed": num_closed,
        "impossible tempi left out": len(parsed.tempos) - len(tempos),
        "unusable time signatures left out": len(signatures) - len(valid),
        "notes under the sustain pedal, which is not heard": num_pedalled,
    }
    score.repairs = [pluralize(count, repair) for repair, count in repairs.items() if count]
    return score


def _count_pedalled(notes: NoteArray, pedals: Mapping[str, NDArray[np.int64]]) -> int:
    """Return how many notes end while the sustain pedal is down."""
    end, down = notes["onset"] + notes["duration"], pedals["time"]
    up = np.append(down + pedals["duration"], 0)[np.searchsorted(down, end, "right") - 1]
    return int(np.count_nonzero(end < up))


def _open_durations(notes: NoteArray, others: NoteArray, longest: int) -> NDArray[np.int64]:
    """Return durations of notes without an end: until the next note-off of the key.

    Without one they last until the end of the track, as in `notes`, or for `longest` ticks.
    """
    ends = np.sort(others["pitch"] << 32 | others["onset"] + others["duration"])
    after = notes["pitch"] << 32 | notes["onset"] + 1
    release = np.append(ends, 128 << 32)[np.searchsorted(ends, after)]
    is_released = release >> 32 == notes["pitch"]
    at_end = np.clip(notes["duration"], 1, longest)
    return np.where(is_released, release - (notes["pitch"] << 32) - notes["onset"], at_end)


def _from_muspy(music: Any) -> Score:
    """Convert an object of muspy, which cannot write keys such as E flat, nor annotations."""
    tracks = []
    for track in music.tracks:
        rows = ((n.time, n.duration, n.pitch, n.velocity or 64) for n in track.notes)
        tracks.append(Track(track.name or "", track.program, track.is_drum, notes_from(rows)))
    tempos = [(t.time, t.qpm) for t in music.tempos if t.qpm > 0]
    keys = ((k.time, 7 * (k.root + 3 * (k.mode == "minor"))) for k in music.key_signatures)
    return Score(
        music.resolution,
        tracks,
        np.array(sorted(tempos, key=itemgetter(0)), TEMPO),
        sorted(TimeSignature(s.time, s.numerator, s.denominator) for s in music.time_signatures),
        sorted(Marker(each.time, str(each.annotation)) for each in music.annotations),
        key_signatures=sorted(KeySignature(at, (fifths + 6) % 12 - 6) for at, fifths in keys),
    )
