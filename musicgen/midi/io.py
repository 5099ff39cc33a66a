"""Scores from and to MIDI files, other libraries' objects, and sound."""

import io
import os
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import symusic
from numpy.typing import NDArray

from musicgen.errors import ParameterError, UserError, errors_name
from musicgen.files import atomic_path, write_bytes
from musicgen.midi.events import KEY_SIGNATURE, MARKER, TEMPO_CHANGE, TIME_SIGNATURE, read_text
from musicgen.midi.scan import scan_file
from musicgen.midi.score import (
    TEMPO,
    KeySignature,
    Marker,
    Score,
    TimeSignature,
    Track,
    notes_from,
    sort_notes,
)
from musicgen.midi.tracks import file_parts, open_file
from musicgen.package_data import own_or_example
from musicgen.plugins import reader, suffixes
from musicgen.text import pluralize
from musicgen.validation import check_int

SAMPLE_RATE = 44_100  # Hz
_MOST_SIGNATURES = 10_000  # more than bars in any song; each takes time wherever bars are found
MIDI_SUFFIXES = frozenset({".mid", ".midi", ".kar", ".rmi", ".smf"})
SLOWEST = 60e6 / (2**24 - 1)  # beats a minute of the longest beat in the format


def read(path: str | Path, *, repeats: bool = False) -> Score:
    """Read a MIDI file, or a file that a plugin reads, such as a printed score.

    Args:
        repeats: whether a printed score is read with its repeats.

    Raises:
        UserError: the file is damaged; the message names it.
    """
    return read_with_data(path, repeats=repeats)[0]


def read_with_data(
    path: str | Path, *, repeats: bool = False, keep_events: bool = False
) -> tuple[Score, bytes]:
    """Read a file as `read` does; also return it as the bytes of a MIDI file.

    Args:
        keep_events: see `loads`.
    """
    path = Path(path)
    if not path.is_file():
        path = own_or_example(path)
        if path.is_fifo() or path.is_char_device():  # reading it may never end
            raise UserError(f"{path}: no regular file; give a MIDI file or a score")
    file = file_of(path)
    if file.suffix.lower() in suffixes():
        score = reader(file).read(path, repeats=repeats)
        return score, dumps(score)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a MIDI file") from None
    with errors_name(path):
        return loads(data, keep_events=keep_events), data


def loads(data: bytes, *, keep_events: bool = False) -> Score:
    """Return the `Score` in the bytes of a MIDI file; raise `UserError` if it cannot be read.

    - Each channel and program of a file's track becomes a track of the Score. A channel without a
      program change in its own track has the program that another track of its port sets.
    - A track is of drums if it is on channel 9, or has a bank, a message of GS or XG, or a name of
      drums.
    - Impossible tempi and time signatures (0 bpm, 0/4) are left out, and those of one beat (1/4).
    - All Notes Off and All Sound Off end notes, and so does a note-off in another track, if the
      note has none in its own. A note without any gets an end, see `length_without_end`.

    `Score.repairs` lists what was changed.

    Args:
        keep_events: read event by event, which takes longer, and keep the events for `open_file`.
    """
    file = (None if keep_events else scan_file(data)) or open_file(data)
    metas: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
    events = (each for track in file.tracks for each in track.metas)
    for tick, kind, value in sorted(events, key=itemgetter(0)):
        metas[kind].append((tick, value))
    if len(metas[TIME_SIGNATURE]) > _MOST_SIGNATURES:
        count = pluralize(len(metas[TIME_SIGNATURE]), "changes of the time signature")
        raise UserError(f"{count}, of at most {_MOST_SIGNATURES:,}; export it again")
    tempos = [(tick, 60e6 / int.from_bytes(x[:3], "big")) for tick, x in metas[TEMPO_CHANGE]]
    # A denominator is a power of two in the file; past 64ths it is damage. Software without time
    # signatures writes 1/4; as an upbeat it is a bar that the next signature cuts short.
    signatures = [(tick, x[0], 1 << x[1]) for tick, x in metas[TIME_SIGNATURE]]
    valid = [TimeSignature(*each) for each in signatures if each[1] > 1 and each[2] <= 64]
    counts = {
        "notes without an end closed": sum(track.num_unended for track in file.tracks),
        "metres of one beat or past 64ths left out": len(signatures) - len(valid),
        "notes under the sustain pedal, which is not heard": sum(
            track.num_pedalled for track in file.tracks
        ),
    }
    return Score(
        file.ticks_per_beat,
        [track for _, _, track in file_parts(file.tracks)],
        np.array(tempos, TEMPO),
        valid,
        [Marker(tick, read_text(text)) for tick, text in metas[MARKER] if text],
        [*file.repairs, *(pluralize(count, what) for what, count in counts.items() if count)],
        [
            KeySignature(tick, (x[0] + 128) % 256 - 128, x[1:2] == b"\x01")
            for tick, x in metas[KEY_SIGNATURE]
        ],
    )


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
        out.tempos.append(symusic.Tempo(tick, qpm=max(bpm, SLOWEST)))
    for signature in score.time_signatures:
        out.time_signatures.append(symusic.TimeSignature(*signature))
    for tick, fifths, minor in score.key_signatures:
        out.key_signatures.append(symusic.KeySignature(tick, fifths, int(minor)))
    for marker in score.markers:
        out.markers.append(symusic.TextMeta(marker.tick, marker.text))
    return out.dumps_midi()


def find_music(folder: str | Path) -> list[Path]:
    """Return the MIDI files and scores below `folder`, sorted, and the tunes of books.

    Raises:
        UserError: there is none.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give one that holds MIDI files or scores")
    # In the order of paths, whose parts are compared one by one.
    found = sorted(_music_below(str(folder)), key=lambda path: path.replace(os.sep, "\0"))
    if not found:
        raise UserError(f"{folder}: holds no MIDI file and no score; give a folder that does")
    return [music for path in found for music in divide_book(Path(path))]


def _music_below(folder: str) -> Iterator[str]:
    """Yield the paths of the MIDI files and scores below a folder, without links to folders.

    A corpus may have a million files, so paths are plain text, and no file is looked up by itself.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _music_below(entry.path)
            # macOS creates `._name.mid` resource forks next to the real files.
            elif entry.name[0] != "." and _is_music(entry.name) and entry.is_file():
                yield entry.path


def _is_music(name: str) -> bool:
    _, dot, suffix = name.rpartition(".")
    suffix = dot + suffix.lower()
    return suffix in MIDI_SUFFIXES or suffix in suffixes()


def without_suffix(name: str) -> str:
    """Return the name of a music file without its suffix; other names stay as they are."""
    return str(PurePosixPath(name).with_suffix("")) if _is_music(name) else name


def file_of(path: Path) -> Path:
    """Return the file with the music at a path: the book of a tune, or else the path itself."""
    is_piece = path.name.isdecimal() and path.parent.suffix.lower() in suffixes()
    return path.parent if is_piece and path.parent.is_file() else path


def music_name(path: Path) -> str:
    """Return the name of the file at a path; for a tune of a book, BOOK/TUNE."""
    return path.name if file_of(path) == path else f"{path.parent.name}/{path.name}"


def divide_book(path: Path) -> list[Path]:
    """Return a path per piece of a file: of a book of tunes, `book.abc/07`; mostly its own."""
    if path.suffix.lower() not in suffixes():
        return [path]
    divide = getattr(reader(path), "divide", None)
    return [path] if divide is None else divide(path)


def program_number(program: int | str) -> int:
    """Return a General MIDI program, 0 to 127, by number or by name, such as `Violin`."""
    if isinstance(program, str) and not program.isdigit():
        from pretty_midi import instrument_name_to_program  # takes a while to import

        try:
            return int(instrument_name_to_program(program))
        except ValueError:
            expected = "expected 0 to 127, or a name of General MIDI such as Acoustic Grand Piano"
            raise ParameterError("program", program, expected) from None
    number = int(program) if isinstance(program, str) else program
    check_int("program", number, 0, maximum=127)
    return number


def as_score(music: Any) -> Score:
    """Convert an object of miditoolkit, muspy or pretty_midi to a `Score`; a Score stays itself."""
    if isinstance(music, Score):
        return music
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
    module: Any = import_module(library)
    if library == "pretty_midi":
        return module.PrettyMIDI(io.BytesIO(data))
    reader: Any = import_module("mido") if library == "muspy" else module
    try:
        music = reader.MidiFile(file=io.BytesIO(data), charset="utf-8")
    except UnicodeDecodeError:  # names in a user's file
        music = reader.MidiFile(file=io.BytesIO(data), charset="latin-1")
    return module.from_mido(music) if library == "muspy" else music


def _from_muspy(music: Any) -> Score:
    """Convert an object of muspy, which cannot write keys such as E flat, nor annotations."""
    tracks = []
    for track in music.tracks:
        rows = ((n.time, n.duration, n.pitch, n.velocity) for n in track.notes)
        tracks.append(Track(track.name or "", track.program, track.is_drum, notes_from(rows)))
    tempos = [(t.time, t.qpm) for t in music.tempos if t.qpm > 0]
    keys = [(key, _fifths(key)) for key in music.key_signatures]
    return Score(
        music.resolution,
        tracks,
        np.array(sorted(tempos, key=itemgetter(0)), TEMPO),
        sorted(TimeSignature(s.time, s.numerator, s.denominator) for s in music.time_signatures),
        sorted(Marker(each.time, str(each.annotation)) for each in music.annotations),
        key_signatures=sorted(
            KeySignature(key.time, fifths, key.mode == "minor")
            for key, fifths in keys
            if fifths is not None
        ),
    )


def _fifths(key: Any) -> int | None:
    """Return the sharps, or as a negative number the flats, of a key of muspy, if it has some."""
    if key.fifths is not None or key.root is None:
        return key.fifths
    return (7 * (key.root + 3 * (key.mode == "minor")) + 6) % 12 - 6


class Soundfont:
    """A soundfont file (.sf2 or .sf3), which gives each General MIDI program its sound."""

    def __init__(self, path: str | Path) -> None:
        """Open the file; raise `UserError` if it is no soundfont."""
        path = Path(path).expanduser()
        try:
            path.open("rb").close()
            self._synthesizer: Any = symusic.Synthesizer(path, SAMPLE_RATE)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no soundfont"
            raise UserError(
                f"{path}: cannot be read ({reason}); give a General MIDI soundfont, a .sf2 file"
            ) from None

    def render(self, score: Score) -> NDArray[np.float32]:
        """Return the sound in stereo [2, N]; loud passages may exceed ±1."""
        if not score.num_notes:
            return np.zeros((2, 0), np.float32)
        return self._synthesizer.render(symusic.Score.from_midi(dumps(score)), True)

    def write_wav(self, score: Score, path: str | Path) -> None:
        """Write a WAV file of 16 bits, atomically; music that would clip is made softer."""
        sound = self.render(score)
        loudest = float(np.abs(sound).max(initial=0)) / (1 - 2**-15)  # as 2^15 - 1
        with atomic_path(path) as temporary:
            symusic.dump_wav(str(temporary), sound / max(1.0, loudest), SAMPLE_RATE, True)
