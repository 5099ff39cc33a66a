"""Any folder of MIDI files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from musicgen.data.datamodule import MusicData
from musicgen.data.prepare import Piece
from musicgen.errors import UserError
from musicgen.midi import Score, find_midi, read

_SPLIT_FOLDERS = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}


class MidiFolder(MusicData):
    """The MIDI files below a folder.

    Top folders named train, val (valid, validation) and test are its split. Without them, groups
    of files are dealt out: each file alone, or together by what `group` finds in their paths.

    Args:
        root: the folder.
        group: regular expression on the path below `root`; files with the same first captured
            group (or whole match) stay in one split. Such as `^([^/]+)/` for a folder an artist.
    """

    def __init__(self, root: str | Path, *, group: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = Path(root).expanduser()
        try:
            self.group = re.compile(group) if group else None
        except re.error as error:
            raise UserError(f"data.group={group} is no regular expression: {error}") from None

    @staticmethod
    def read(path: Path) -> Score:
        return read(path)

    def pieces(self) -> list[Piece]:
        pieces = []
        for path in find_midi(self.root):
            name = path.relative_to(self.root).as_posix()
            group = name
            if self.group is not None:
                match = self.group.search(name)
                if match is None:
                    raise UserError(f"data.group={self.group.pattern} finds nothing in {name}")
                group = match[min(1, self.group.groups)] or match[0]
            top = name.split("/")[0].lower() if "/" in name else ""
            pieces.append(Piece(name, path, group, _SPLIT_FOLDERS.get(top)))
        return pieces
