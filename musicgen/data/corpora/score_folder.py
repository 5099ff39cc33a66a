"""Folders of printed scores, such as clones of public repositories."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from musicgen.data.corpora.base import Piece, missing_corpus
from musicgen.data.corpora.midi_folder import MidiFolder
from musicgen.errors import ParameterError, UserError
from musicgen.midi import Score, file_of, find_music, read

_HEADER_BYTES = 2**14


class ScoreFolder(MidiFolder):
    """Printed scores below a folder, selected by path and header.

    Args:
        root: the folder.
        source: where to download it; for the message if it is missing.
        files: regular expression on the path below `root`. Other files are left out.
        group: as in `MidiFolder`.
        header: regular expression on the first 16 KiB of a file. Other files are left out. None:
            use all.
        work: regular expression on the path. Files with the same captured groups are editions of
            one work, of which the first by name is used. None: use all.
        val_groups: groups for validation; all others are for training. None: split at random.
        repeats: whether repeats are played, as in `musicgen.midi.read`.
        exclude: as in `MidiFolder`.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        source: str,
        files: str,
        group: str | None,
        header: str | None,
        work: str | None,
        val_groups: Sequence[str] | None,
        repeats: bool,
        exclude: str | Sequence[str] | None,
    ) -> None:
        super().__init__(root, group=group, exclude=exclude)
        self.source, self.repeats, self.val_groups = source, repeats, val_groups
        self.files, self.work = re.compile(files), re.compile(work or "(.*)")
        self.header = re.compile((header or "").encode(), re.MULTILINE)

    def find_files(self) -> list[Path]:
        try:
            found = find_music(self.root)
        except UserError:
            found = []
        works: dict[tuple[str, ...], Path] = {}
        for path in found:
            score = file_of(path)
            work = self.work.search(path.relative_to(self.root).as_posix())
            if work and self.files.search(score.relative_to(self.root).as_posix()):
                with score.open("rb") as file:
                    if self.header.search(file.read(_HEADER_BYTES)):
                        works.setdefault(work.groups(default=""), path)
        if not works:
            raise missing_corpus(self.root, "the scores", f"download them from {self.source}")
        return list(works.values())

    def pieces(self) -> list[Piece]:
        pieces, chosen = super().pieces(), self.val_groups
        if chosen is None:
            return pieces
        groups = [piece.group for piece in pieces]
        if unknown := set(chosen).difference(groups):
            expected = f"expected groups such as {groups[:1]}"
            raise ParameterError("val_groups", min(unknown), expected)
        return [
            replace(piece, split="val" if piece.group in chosen else "train") for piece in pieces
        ]

    def read(self, path: Path) -> Score:
        return read(path, repeats=self.repeats)

    def reader_id(self) -> str:
        return f"{super().reader_id()} repeats={self.repeats}"
