"""Corpora of files in folders: a user's own, printed scores, composed pieces, and combinations."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from musicgen.composer.corpus import Kind, compose_corpus, may_compose_in
from musicgen.data.corpora.base import SPLIT_NAMES, Corpus, Piece, evenly_spaced
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.midi import Score, file_of, find_music, read
from musicgen.validation import check_choice, check_float, check_int, check_pattern, check_seed

_HEADER_BYTES = 2**14
_MOST_COPIES = 100


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
        check_pattern("group", group or "")
        self.group = re.compile(group) if group else None

    def pieces(self) -> list[Piece]:
        pieces, name_starts = [], len(str(self.root / "x")) - 1
        for path in map(str, self.find_files()):
            name = group = path[name_starts:].replace(os.sep, "/")
            if self.group is not None:
                if (match := self.group.search(name)) is None:
                    expected = (
                        f"expected a regular expression that matches every path, such as {name}"
                    )
                    raise ParameterError("group", self.group.pattern, expected)
                group = match[min(1, self.group.groups)] or match[0]
            top, slash, _ = name.partition("/")
            split = SPLIT_NAMES.get(top.lower()) if slash else None
            pieces.append(Piece(name, path, group, split))
        return self.without_excluded(pieces)

    def find_files(self) -> list[Path]:
        """Return the paths of the pieces."""
        return find_music(self.root)

    def read(self, path: Path) -> Score:
        return read(path)


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
            one work; only the first by name is used. None: use all.
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
        for name, value in (("files", files), ("work", work), ("header", header)):
            check_pattern(name, value or "")
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
            raise self.missing("the scores", f"download them from {self.source}")
        return list(works.values())

    def pieces(self) -> list[Piece]:
        pieces, chosen = super().pieces(), self.val_groups
        if chosen is None:
            return pieces
        groups = [piece.group for piece in pieces]
        if unknown := set(chosen).difference(groups):
            expected = f"expected groups such as {groups[:1]}"
            raise ParameterError("val_groups", min(unknown), expected)
        return [replace(x, split="val" if x.group in chosen else "train") for x in pieces]

    def read(self, path: Path) -> Score:
        return read(path, repeats=self.repeats)

    def reader_id(self) -> str:
        return f"{super().reader_id()} repeats={self.repeats}"


class ComposedCorpus(MidiFolder):
    """Pieces by the composer of this package. The same seed gives the same music.

    Grooves of one family of styles, and songs of one band, are in the same split.

    Args:
        root: folder of composed corpora, each in a subfolder. It must have no other files, as a
            user who puts files there probably wants to train on them.
        kind: `pop` (piano), `songs` (voice and piano), `groove`, or `bands` (invented styles).
        num_pieces: number of pieces.
        corpus_seed: seed of the composer.
        drummers: folder of the Groove MIDI Dataset. Every second band plays to its drums, or they
            play alone. None: all drums are composed.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        kind: Kind,
        num_pieces: int,
        corpus_seed: int,
        drummers: str | Path | None = None,
    ) -> None:
        check_choice("kind", kind, get_args(Kind))
        check_int("num_pieces", num_pieces, minimum=3, maximum=10**6)  # one per split
        check_seed("corpus_seed", corpus_seed)
        if drummers is not None and kind != "bands":
            raise ParameterError("drummers", str(drummers), "expected null, or kind=bands")
        self.kind, self.num_pieces, self.corpus_seed = kind, num_pieces, corpus_seed
        self.drummers, suffix = None, ""
        if drummers is not None:
            self.drummers, suffix = Path(drummers), "-drummers"
        folder = f"{kind}-{num_pieces}-seed{corpus_seed}{suffix}"
        super().__init__(Path(root) / folder, group=None, exclude=None)

    def pieces(self) -> list[Piece]:
        """Return the pieces; compose them first if necessary.

        Raises:
            UserError: `root` has other files, and nothing is written; or `drummers` is not the
                folder of the dataset.
        """
        parent = self.root.parent
        for entry in sorted(parent.glob("[!.]*")):
            if not (entry.is_dir() and may_compose_in(entry)):
                raise UserError(
                    f"{parent}: no corpus is composed here, as the folder has other files "
                    f"({entry.name}); to train on them: "
                    f"data=midi_folder {shlex.quote(f'data.root={parent}')}"
                )
        paths = compose_corpus(
            self.root,
            kind=self.kind,
            num_pieces=self.num_pieces,
            seed=self.corpus_seed,
            drummers=self.drummers,
        )
        # The group is the folder of a family or band; other pieces have no folder.
        return [
            Piece(name := path.relative_to(self.root).as_posix(), path, name.split("/")[0])
            for path in paths
        ]


class Songbook(Corpus):
    """A corpus that combines several corpora. Names of pieces begin with the name of their corpus.

    Args:
        root: parent of the corpora's folders.
        corpora: the corpora, by name.
        weights: how often the pieces of a corpus occur, by its name: 2 repeats each piece, .5 uses
            every second one; 1 by default.
    """

    def __init__(
        self, root: str | Path, *, corpora: Mapping[str, Corpus], weights: Mapping[str, float]
    ) -> None:
        super().__init__(root)
        self.corpora, self.weights = dict(corpora), dict(weights)
        for name, weight in self.weights.items():
            check_choice(f"weights.{name}", name, self.corpora)
            check_float(f"weights.{name}", weight, maximum=_MOST_COPIES)
        for corpus in self.corpora.values():
            corpus.root = self.root / corpus.root

    def pieces(self) -> list[Piece]:
        pieces = []
        for name, corpus in self.corpora.items():
            with parameter_of(f"corpora.{name}"):
                corpus_pieces = corpus.pieces()
            times, fraction = divmod(self.weights.get(name, 1), 1)
            copies = [corpus_pieces] * int(times)
            copies.append(evenly_spaced(corpus_pieces, round(fraction * len(corpus_pieces))))
            for copy, chosen in enumerate(copies):
                folder = f"{name} {copy + 1}" if copy else name
                for piece in chosen:
                    group = f"{name}/{piece.group}"  # the same in all copies
                    pieces.append(replace(piece, name=f"{folder}/{piece.name}", group=group))
        return pieces

    def read_piece(self, piece: Piece) -> Score:
        folder, _, name = piece.name.partition("/")
        corpus = self.corpora.get(folder) or self.corpora[folder.rpartition(" ")[0]]  # of a copy
        return corpus.read_piece(replace(piece, name=name))

    def reader_id(self) -> str:
        return " ".join(corpus.reader_id() for corpus in self.corpora.values())
