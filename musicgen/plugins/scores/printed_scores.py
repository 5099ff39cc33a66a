"""Printed scores in MusicXML, Humdrum **kern, MEI or ABC as `Score`s."""

import json
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from musicgen.errors import UserError, errors_name
from musicgen.midi.io import file_of
from musicgen.midi.score import Score
from musicgen.plugins.scores.abc_books import tunes_of
from musicgen.plugins.scores.abc_notation import read_tune
from musicgen.plugins.scores.mei import read_mei
from musicgen.plugins.scores.musicxml import read_musicxml
from musicgen.plugins.scores.sheet import MAX_BARS, MAX_BYTES, Sheet
from musicgen.plugins.scores.xml_files import decode, parse_xml, unzip_score
from musicgen.text import pluralize

SCORE_SUFFIXES = {".abc": "abc", ".krn": "humdrum", ".mei": "mei"}
SCORE_SUFFIXES |= dict.fromkeys((".musicxml", ".mxl", ".xml"), "xml")
"""The suffixes of printed scores, and the names of their formats."""

MAX_SECONDS = 120
"""The longest wait for the process that engraves a score; see `engrave` for its other limits."""


_MOST_NOTES = 200_000  # of a score; the longest symphonies have fewer
_LONGEST_TUNE = 2**19  # characters of ABC


def read_score(path: str | Path, *, repeats: bool = False) -> Score:
    """Read a printed score; its suffix tells its format, see `SCORE_SUFFIXES`.

    - A part is a track; the staves of a piano are one. A single staff with words is a choir.
    - Bars begin at the printed bar lines: an incomplete first bar begins with silence, incomplete
      bars that follow each other, such as those around a repeat sign, are one, and every other bar
      of another length has its own time signature.
    - Tied notes are one. Grace notes and cue notes are left out. Velocities are all the same.
    - The key is that of most staves with pitches, as it sounds.
    - Markers are printed chord symbols, and the fermatas of the highest part that has one.
    - Of a book of tunes in ABC the first is read. `book.abc/2` is the path of the second.

    Args:
        repeats: play what is repeated, D.C. and D.S. too; without it every bar stands once.

    Raises:
        UserError: the file is damaged, too large, or holds no music; the message names it.
    """
    path = Path(path)
    file = file_of(path)
    with errors_name(path):
        try:
            size = file.stat().st_size
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    size = sum(file.file_size for file in archive.infolist())
            if size > MAX_BYTES:
                raise UserError(f"more than {MAX_BYTES >> 20} MB of text; give a smaller score")
            form = SCORE_SUFFIXES[file.suffix.lower()]
            if form == "abc":
                return _read_abc(path, file, repeats).score()
            data = file.read_bytes()
            if data[:2] == b"PK":
                data = unzip_score(data)
            return _read_sheet(data, form, repeats).score()
        except OSError as error:
            raise UserError(f"cannot be read ({error.strerror}); give a score") from None
        except (
            zipfile.BadZipFile,
            ElementTree.ParseError,
            LookupError,
            ValueError,
            ArithmeticError,
            RuntimeError,  # an encrypted archive
        ) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"no score that can be read ({error}); export it again") from None


def _read_abc(path: Path, book: Path, repeats: bool) -> Sheet:
    """Return the tune at a path; at the path of a book its first.

    Raises:
        UserError: the book has no tune of this number.
    """
    tunes = tunes_of(book)
    number = 1 if path == book else int(path.name)
    if not 1 <= number <= len(tunes):
        raise UserError(f"there is no such tune; {book.name} has {pluralize(len(tunes), 'tunes')}")
    if len(tunes[number - 1]) > _LONGEST_TUNE:
        raise UserError(f"a tune of more than {_LONGEST_TUNE:,} characters; give a shorter one")
    sheet = read_tune(tunes[number - 1], repeats)
    if path == book and len(tunes) > 1:
        sheet.repairs.append(f"tune 1 of {len(tunes):,}; {book.name}/2 is the next")
    return sheet


def _read_sheet(data: bytes, form: str, repeats: bool) -> Sheet:
    text = decode(data)
    if form == "xml":
        _check_length(text)
        return read_musicxml(parse_xml(text), repeats)
    mei, events = _engrave(text, form, "expandAlways" if repeats else "expandNever")
    sheet = read_mei(ElementTree.fromstring(mei), events)
    movements = len(re.findall(r"<mdiv\b", text))
    if movements > 1:
        sheet.repairs.append(f"{pluralize(movements - 1, 'movements')} after the first left out")
    return sheet


def _check_length(text: str) -> None:
    """Raise `UserError` if a score in MusicXML is too long to be read in a minute or two."""
    parts = max(1, len(re.findall(r"<score-part[\s>]", text)))
    for name, most in ("note", _MOST_NOTES), ("measure", MAX_BARS * parts):
        if len(re.findall(rf"<{name}[\s/>]", text)) > most:
            raise UserError(f"more than {most:,} elements {name}; give a shorter score")


def _engrave(text: str, form: str, expand: str) -> tuple[str, list[dict[str, object]]]:
    """Return MEI of a score, and the events of verovio's timemap.

    Raises:
        ValueError: it is damaged, or takes too much time or memory.
        UserError: verovio is missing.
    """
    if find_spec("verovio") is None:
        raise UserError("MEI and Humdrum need verovio; run: pip install -e '.[scores]'")
    program = Path(__file__).with_name("engrave.py")
    command = [sys.executable, "-P", str(program), form, expand]
    try:
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, timeout=MAX_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"engraving it takes more than {MAX_SECONDS} seconds") from None
    if done.returncode:
        raise ValueError("damaged")
    mei, events = json.loads(done.stdout)
    return mei, events
