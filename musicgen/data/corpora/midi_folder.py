"""The corpus of a user: any folder of MIDI files and printed scores."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from musicgen.data.corpora.base import SPLIT_NAMES, Corpus, Piece
from musicgen.errors import ParameterError
from musicgen.midi import Score, find_music, read


class MidiFolder(Corpus):
    """The MIDI files and printed scores below a folder.

    Folders train, val (or valid, validation) and test directly below `root` define the split. Other
    files are split at random, by group.

    Args:
        root: the folder.
        group: regular expression on the path below `root`. Files with the same first captured group
            (or match, without a group) are in the same split: `^([^/]+)/` keeps the folder of an
            artist together. None: each file is its own group.
        exclude: names of files to leave out, or a file with one name per line.
    """

    def __init__(
        self, root: str | Path, *, group: str | None, exclude: str | Sequence[str] | None
    ) -> None:
        super().__init__(root, exclude=exclude)
        self.group = re.compile(group) if group else None

    def pieces(self) -> list[Piece]:
        pieces, name_starts = [], len(str(self.root / "x")) - 1
        for path in map(str, self.find_files()):
            name = path[name_starts:].replace(os.sep, "/")
            top = name.split("/")[0].lower() if "/" in name else ""
            pieces.append(Piece(name, path, self._group_of(name), SPLIT_NAMES.get(top)))
        return self.without_excluded(pieces)

    def find_files(self) -> list[Path]:
        """Return the paths of the pieces."""
        return find_music(self.root)

    def _group_of(self, name: str) -> str:
        if self.group is None:
            return name
        match = self.group.search(name)
        if match is None:
            expected = f"expected a regular expression that matches every path, such as {name}"
            raise ParameterError("group", self.group.pattern, expected)
        return match[min(1, self.group.groups)] or match[0]

    def read(self, path: Path) -> Score:
        return read(path)
