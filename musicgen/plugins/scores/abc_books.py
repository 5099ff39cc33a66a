"""Books of tunes in ABC notation, which are read as folders of tunes are.

A tune has a path of its own: `book.abc/07` is the seventh tune of `book.abc`. A book of one tune
is a file like any other.
"""

from functools import lru_cache
from pathlib import Path

from musicgen.plugins.scores.abc_notation import split_tunes
from musicgen.plugins.scores.sheet import MAX_BYTES
from musicgen.plugins.scores.xml_files import decode

ABC_SUFFIX = ".abc"


def divide_book(path: Path) -> list[Path]:
    """Return the paths of the tunes of a book; of any other file, its own path alone."""
    if path.suffix.lower() != ABC_SUFFIX:
        return [path]
    try:
        count = len(tunes_of(path)) if path.stat().st_size <= MAX_BYTES else 1
    except OSError:  # reading the file reports it, as it does a file that is too large
        count = 1
    if count < 2:
        return [path]
    return [path / str(number).zfill(len(str(count))) for number in range(1, count + 1)]


def tunes_of(book: Path) -> list[str]:
    """Return the text of each tune of a book; see `split_tunes`."""
    stat = book.stat()
    return _split_file(book, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=2)  # the tunes of a book are read one after the other
def _split_file(book: Path, size: int, time: int) -> list[str]:
    """Return the tunes of a book, cached for its size and time of change."""
    return split_tunes(decode(book.read_bytes()))
