"""The interface of a corpus: its pieces, and how to read each of them."""

import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from musicgen.errors import ParameterError
from musicgen.midi import Score

T = TypeVar("T")

SPLITS = ("train", "val", "test")
SPLIT_NAMES = {name: name for name in SPLITS} | {"valid": "val", "validation": "val"}
"""The splits by the names that corpora give them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a corpus. Its paths are text, which takes less memory for a million pieces.

    Attributes:
        where: path of its file, or of the folder of its files.
        group: pieces of one group stay in one split.
        split: the corpus's own split, if it has one.
    """

    name: str
    where: str | Path
    group: str
    split: str | None = None

    @property
    def path(self) -> Path:
        return Path(self.where)


class Corpus(ABC):
    """A source of pieces. It knows no tokenizer, and can be pickled for worker processes.

    A corpus implements `read`, or `read_piece` if a file holds several pieces.

    Args:
        exclude: names of pieces that `kept` leaves out, or a file with them, one a line.

    Attributes:
        in_package: whether a Python package contains it, so that it has no setting `root`.
    """

    in_package: ClassVar[bool] = False

    def __init__(self, root: str | Path, *, exclude: str | Sequence[str] | None = None) -> None:
        self.root, self.excluded = Path(root).expanduser(), read_names(exclude)

    @abstractmethod
    def pieces(self) -> list[Piece]:
        """List the pieces; if the corpus is missing, raise a ValueError that says how to get it."""

    def kept(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces that are not excluded; raise ParameterError if one is unknown."""
        if unknown := self.excluded - {piece.name for piece in pieces}:
            some = f", such as {pieces[0].name}" if pieces else ""
            raise ParameterError("exclude", min(unknown), f"expected the name of a piece{some}")
        return [piece for piece in pieces if piece.name not in self.excluded]

    def read_piece(self, piece: Piece) -> Score:
        """Read a piece; raise a ValueError if it cannot be read."""
        return self.read(piece.path)

    def read(self, path: Path) -> Score:
        """Read the music at a piece's path; raise a ValueError if it cannot be read."""
        raise NotImplementedError

    def reader_id(self) -> str:
        """Return a text that identifies the reader; token caches depend on it.

        Override it if settings affect `read`; change it whenever `read` returns something else.
        """
        return type(self).__qualname__

    def missing_split(self, split: str) -> str:
        """Return the error if a split is empty; none, the default: all pieces replace it."""
        return ""


def read_names(exclude: str | Sequence[str] | None) -> set[str]:
    """Return the names in a list, or in a file, one a line."""
    if not isinstance(exclude, str):
        return set(exclude or ())
    path = Path(exclude).expanduser()
    if not path.is_file():
        expected = "expected a file with names of pieces, one a line, or a list of names"
        raise ParameterError("exclude", exclude, expected)
    lines = os.fsdecode(path.read_bytes()).split("\n")
    return {name for line in lines if (name := line.removesuffix("\r"))}


def evenly_spaced(items: Sequence[T], count: int | None) -> list[T]:
    """Return `count` of the items, evenly spaced; all of them if there are fewer, or for None."""
    if count is None or count >= len(items):
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


def missing_corpus(root: Path, expected: str, cure: str) -> ParameterError:
    """Return the error that `root` does not contain the expected files."""
    setting = shlex.quote(f"data.root={root}")
    own = f"or train on files of your own: data=midi_folder {setting}"
    return ParameterError("root", root, f"expected {expected} in it; {cure}, {own}")
