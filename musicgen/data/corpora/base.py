"""The interface of a corpus: a list of pieces, and how to read them."""

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
"""The splits by the names that corpora use for them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a corpus.

    Attributes:
        name: unique name in the corpus.
        where: path of its file, or of the folder of its files; as text, it takes less memory.
        group: pieces of one group are in the same split.
        split: its split, if the corpus has a published one; else None.
    """

    name: str
    where: str | Path
    group: str
    split: str | None = None

    @property
    def path(self) -> Path:
        return Path(self.where)


class Corpus(ABC):
    """Base class of corpora. A corpus knows no tokenizer, and worker processes can unpickle it.

    A subclass implements `pieces` and `read`, or `read_piece` if a file has several pieces.

    Args:
        root: its folder.
        exclude: names of pieces that `without_excluded` leaves out, or a file with one name per
            line.

    Attributes:
        in_package: whether the pieces are files of a Python package; there is no setting `root`.
    """

    in_package: ClassVar[bool] = False

    def __init__(self, root: str | Path, *, exclude: str | Sequence[str] | None = None) -> None:
        if not str(root).strip():  # it would be the current folder
            raise ParameterError("root", root, "expected a folder")
        self.root, self.excluded = Path(root).expanduser(), read_names(exclude)

    @abstractmethod
    def pieces(self) -> list[Piece]:
        """Return the pieces.

        Raises:
            UserError: the corpus is missing; the message says how to get it.
        """

    def without_excluded(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces without those that are excluded.

        Raises:
            ParameterError: an excluded name is not among the pieces.
        """
        if unknown := self.excluded - {piece.name for piece in pieces}:
            some = f", such as {pieces[0].name}" if pieces else ""
            raise ParameterError("exclude", min(unknown), f"expected the name of a piece{some}")
        return [piece for piece in pieces if piece.name not in self.excluded]

    def read_piece(self, piece: Piece) -> Score:
        """Return the score of a piece.

        Raises:
            UserError: it cannot be read.
        """
        return self.read(piece.path)

    def read(self, path: Path) -> Score:
        """Return the score at the path of a piece.

        Raises:
            UserError: it cannot be read.
        """
        raise NotImplementedError

    def reader_id(self) -> str:
        """Return a text that identifies what `read` does; token caches depend on it.

        Override it if settings affect `read`. Change it whenever `read` returns other scores.
        """
        return type(self).__qualname__

    def missing(self, expected: str, cure: str) -> ParameterError:
        """Return the error for a `root` without the expected files, with two cures."""
        setting = shlex.quote(f"data.root={self.root}")
        own_files = f"or train on your own MIDI files: data=midi_folder {setting}"
        return ParameterError("root", self.root, f"expected {expected} in it; {cure}, {own_files}")

    def missing_split(self, split: str) -> str:
        """Return the error message for an empty split; "": all pieces are used instead."""
        return ""


def read_names(exclude: str | Sequence[str] | None) -> set[str]:
    """Return the names in a list, or in a file with one name per line.

    Raises:
        ParameterError: the file does not exist.
    """
    if not isinstance(exclude, str):
        return set(exclude or ())
    path = Path(exclude).expanduser()
    if not path.is_file():
        expected = "expected a file with one name of a piece per line, or a list of names"
        raise ParameterError("exclude", exclude, expected)
    lines = os.fsdecode(path.read_bytes()).split("\n")
    return {name for line in lines if (name := line.removesuffix("\r"))}


def evenly_spaced(items: Sequence[T], count: int | None) -> list[T]:
    """Return `count` evenly spaced items; all if there are fewer, or if `count` is None."""
    if count is None or count >= len(items):
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]
