"""Files of printed scores in MusicXML, Humdrum **kern, MEI or ABC, read as `Score`s."""

import html
import re
import zipfile
from contextlib import suppress
from functools import lru_cache, partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from musicgen.errors import UserError, errors_name
from musicgen.midi.io import file_of
from musicgen.midi.score import Score
from musicgen.plugins.scores.abc_fields import split_tunes
from musicgen.plugins.scores.abc_tunes import read_tune
from musicgen.plugins.scores.bars_and_repeats import MAX_BARS
from musicgen.plugins.scores.engraver import engraver
from musicgen.plugins.scores.mei import read_mei
from musicgen.plugins.scores.musicxml import read_musicxml
from musicgen.plugins.scores.sheet import Sheet
from musicgen.text import pluralize

MAX_BYTES = 2**25
"""Of a score, unzipped: of the songs in public corpora, the longest have a tenth."""

MAX_DEPTH = 200
"""Of XML. Scores nest a tenth of it; trees without end exhaust Python."""

_CHUNK = 2**16  # bytes that are inflated at a time
_MOST_NOTES = 200_000  # of a score; the longest symphonies have fewer
_LONGEST_TUNE = 2**19  # characters of ABC


def read_score(path: str | Path, *, repeats: bool = False) -> Score:
    """Read a printed score; its suffix tells its format.

    - A part is a track; the staves of a piano are one. A single staff with words is a choir.
    - Bars begin at the printed bar lines: an incomplete first bar begins with silence, incomplete
      bars that follow each other, such as those around a repeat sign, are one, and every other bar
      of another length has its own time signature. Bars of more than 1,020 quarters, which have no
      time signature in MIDI, become bars of the metre in force.
    - Tied notes are one. Grace notes and cue notes are left out. Velocities are all the same.
    - Microtones are rounded, and macros of ABC are not played; `Score.repairs` counts them.
    - The key is that of most staves with pitches, as it sounds.
    - Markers are printed chord symbols, double bars, and fermatas of the highest part that has one.
    - Of a book of tunes in ABC the first is read. `book.abc/2` is the path of the second.

    Args:
        repeats: whether repeats, D.C., D.S. and the order of sections (`P:` in ABC) are expanded.

    Raises:
        UserError: the file is damaged, too large, or holds no music; the message names it.
    """
    path = Path(path)
    with errors_name(path):
        try:
            return _read_sheet(path, repeats).score()
        except UserError:
            raise
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
            raise UserError(f"no score that can be read ({error}); export it again") from None


def _read_sheet(path: Path, repeats: bool) -> Sheet:
    file = file_of(path)
    size = file.stat().st_size
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            size = sum(each.file_size for each in archive.infolist())
    if size > MAX_BYTES:
        raise UserError(f"more than {MAX_BYTES >> 20} MB of text; give a smaller score")
    suffix = file.suffix.lower()
    if suffix == ".abc":
        return _read_abc(path, file, repeats)
    data = file.read_bytes()
    text = _decode(_unzip(data) if data[:2] == b"PK" else data)
    if suffix in (".krn", ".mei"):
        return _engrave(text, suffix == ".krn", repeats)
    num_parts = max(1, len(re.findall(r"<score-part[\s>]", text)))
    for name, most in ("note", _MOST_NOTES), ("measure", MAX_BARS * num_parts):
        if len(re.findall(rf"<{name}[\s/>]", text)) > most:
            raise UserError(f"more than {most:,} elements {name}; give a shorter score")
    return read_musicxml(parse_xml(text), repeats)


def _read_abc(path: Path, book: Path, repeats: bool) -> Sheet:
    """Return the tune at a path; at the path of a book its first.

    Raises:
        UserError: the book has no tune of this number.
    """
    tunes = _tunes_of(book)
    number = 1 if path == book else int(path.name)
    if not 1 <= number <= len(tunes):
        raise UserError(f"there is no such tune; {book.name} has {pluralize(len(tunes), 'tunes')}")
    if len(tunes[number - 1]) > _LONGEST_TUNE:
        raise UserError(f"a tune of more than {_LONGEST_TUNE:,} characters; give a shorter one")
    sheet = read_tune(tunes[number - 1], repeats)
    if path == book and len(tunes) > 1:
        sheet.repairs.append(f"tune 1 of {len(tunes):,}; {book.name}/2 is the next")
    return sheet


def divide_book(path: Path) -> list[Path]:
    """Return a path per tune of a book in ABC, such as `book.abc/07`; of other files their own.

    A book of one tune is a file like any other.
    """
    if path.suffix.lower() != ".abc":
        return [path]
    try:
        count = len(_tunes_of(path)) if path.stat().st_size <= MAX_BYTES else 1
    except OSError:  # reading the file reports it, as it does a file that is too large
        count = 1
    if count < 2:
        return [path]
    return [path / str(number).zfill(len(str(count))) for number in range(1, count + 1)]


def _tunes_of(book: Path) -> list[str]:
    """Return the text of each tune of a book; see `split_tunes`."""
    stat = book.stat()
    return _split_file(book, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=2)  # the tunes of a book are read one after the other
def _split_file(book: Path, size: int, time: int) -> list[str]:
    """Return the tunes of a book, cached for its size and time of change."""
    return split_tunes(_decode(book.read_bytes()))


def _engrave(text: str, is_kern: bool, repeats: bool) -> Sheet:
    """Return a score in MEI or Humdrum, which verovio engraves in another process.

    Raises:
        ValueError: it is damaged, or takes too much time or memory.
        UserError: verovio is missing.
    """
    if find_spec("verovio") is None:
        raise UserError("MEI and Humdrum need verovio; run: pip install -e '.[scores]'")
    form, expand = "humdrum" if is_kern else "mei", "expandAlways" if repeats else "expandNever"
    mei, events = engraver().engrave(text, form, expand)
    sheet = read_mei(ElementTree.fromstring(mei), events)
    num_movements = len(re.findall(r"<mdiv\b", text))
    if num_movements > 1:
        rest = pluralize(num_movements - 1, "movements")
        sheet.repairs.append(f"{rest} after the first left out")
    return sheet


def _decode(data: bytes) -> str:
    """Return a text in UTF-8, UTF-16 or Latin-1."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    with suppress(UnicodeDecodeError):
        return data.decode("utf-8-sig")
    return data.decode("latin-1")


def _unzip(data: bytes) -> bytes:
    """Return the score in a zipped file: the one that its container names, or its only one.

    Raises:
        ValueError: it holds no score, or is packed by another method than MusicXML's.
    """

    def inflated(name: str) -> bytes:
        # `read` without a size, and other methods, inflate all before they look at the size.
        if archive.getinfo(name).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("not packed by deflation")
        with archive.open(name) as file:
            return b"".join(iter(partial(file.read, _CHUNK), b""))

    with zipfile.ZipFile(BytesIO(data)) as archive:
        names = archive.namelist()
        scores = [
            name
            for name in names
            if name.lower().endswith((".xml", ".musicxml")) and not name.startswith("META-INF/")
        ]
        if "META-INF/container.xml" in names:  # some programs write it without escapes
            container = _decode(inflated("META-INF/container.xml"))
            match = re.search(r"""full-path\s*=\s*("[^"<>]*"|'[^<>]*')""", container)
            named = html.unescape(match[1][1:-1]) if match else ""
            scores = [named] if named in names else scores
        if not scores:
            raise ValueError("no score in it")
        return inflated(scores[0])


def parse_xml(text: str) -> ElementTree.Element:
    """Return the root of an XML file; entities are not expanded, and namespaces left out.

    Raises:
        ValueError: it is damaged, or nested too deeply.
    """
    builder = ElementTree.TreeBuilder()
    open_tags = list[str]()

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(open_tags) == MAX_DEPTH:
            raise ValueError("nested too deeply")
        open_tags.append(tag.rpartition(" ")[2])
        builder.start(open_tags[-1], attributes)

    def other(text: str) -> None:
        if open_tags and text.startswith("&"):
            builder.data(text)

    parser: Any = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: builder.end(open_tags.pop())
    parser.CharacterDataHandler = builder.data
    parser.DefaultHandler = other  # with this handler expat expands no entities
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise ValueError(f"damaged XML: {error}") from None
    return builder.close()
