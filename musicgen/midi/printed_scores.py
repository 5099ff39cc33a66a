"""Printed scores in MusicXML, Humdrum **kern, MEI or ABC as `Score`s."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

from musicgen.errors import UserError, errors_name
from musicgen.midi.abc_notation import read_tune, split_tunes
from musicgen.midi.mei import read_mei
from musicgen.midi.musicxml import read_musicxml
from musicgen.midi.score import Score
from musicgen.midi.sheet import Sheet
from musicgen.midi.xml_files import decode, parse_xml, unzip_score
from musicgen.text import pluralize

SCORE_SUFFIXES = {".abc": "abc", ".krn": "humdrum", ".mei": "mei"}
SCORE_SUFFIXES |= dict.fromkeys((".musicxml", ".mxl", ".xml"), "xml")
"""The suffixes of printed scores, and the names of their formats."""

MAX_BYTES = 2**25
"""Of a score, unzipped: of the songs in public corpora, the longest have a tenth."""

MAX_SECONDS = 120
"""The longest wait for the process that engraves a score; see `engrave` for its other limits."""


def read_score(path: str | Path, *, repeats: bool = False) -> Score:
    """Read a printed score; its suffix tells its format, see `SCORE_SUFFIXES`.

    - A part is a track; the staves of a piano are one. A single staff with words is a choir.
    - Bars begin at the printed bar lines: an incomplete first bar begins with silence, incomplete
      bars that follow each other, such as those around a repeat sign, are one, and every other bar
      of another length has its own time signature.
    - Tied notes are one. Grace notes and cue notes are left out. Velocities are all the same.
    - The key is that of most staves with pitches, as it sounds.
    - Markers are printed chord symbols, and the fermatas of the highest part that has one.
    - Of a book of tunes in ABC the first is read.

    Args:
        repeats: play what is repeated; without it every bar stands once.

    Raises:
        UserError: the file is damaged, too large, or holds no music; the message names it.
    """
    path = Path(path)
    with errors_name(path):
        try:
            size = path.stat().st_size
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    size = sum(file.file_size for file in archive.infolist())
            if size > MAX_BYTES:
                raise UserError(f"more than {MAX_BYTES >> 20} MB of text; give a smaller score")
            data = path.read_bytes()
            if data[:2] == b"PK":
                data = unzip_score(data)
            return _read_sheet(data, SCORE_SUFFIXES[path.suffix.lower()], repeats).score()
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


def _read_sheet(data: bytes, form: str, repeats: bool) -> Sheet:
    text = decode(data)
    if form == "xml":
        return read_musicxml(parse_xml(text), repeats)
    if form == "abc":
        tunes = split_tunes(text)
        if not tunes:
            raise ValueError("no tune with a key")
        sheet = read_tune(tunes[0], repeats)
        if len(tunes) > 1:
            sheet.repairs.append(f"{pluralize(len(tunes) - 1, 'tunes')} after the first left out")
        return sheet
    mei, events = _engrave(text, form, "expandAlways" if repeats else "expandNever")
    sheet = read_mei(ElementTree.fromstring(mei), events)
    movements = len(re.findall(r"<mdiv\b", text))
    if movements > 1:
        sheet.repairs.append(f"{pluralize(movements - 1, 'movements')} after the first left out")
    return sheet


def _engrave(text: str, form: str, expand: str) -> tuple[str, list[dict[str, object]]]:
    """Return MEI of a score, and the events of verovio's timemap.

    Raises:
        ValueError: it is damaged, or takes too much time or memory.
    """
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
