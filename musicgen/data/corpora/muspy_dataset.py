"""Any dataset of muspy, by name."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from musicgen.data.corpora.base import Corpus, Piece, missing_corpus, pieces_below
from musicgen.data.corpora.download import Archive, download_archive, holds_files
from musicgen.errors import ParameterError, UserError
from musicgen.midi import Score, as_score
from musicgen.validation import check_choice

# But for Essen, Haydn and NMD, whose readers need a music21 older than version 10.
NAMES = (
    *("emopia", "hymnal", "hymnal-tune", "jsb", "lmd", "lmd-aligned", "lmd-matched"),
    *("maestro", "maestro-v1", "maestro-v2", "musicnet", "nes", "wikifonia"),
)


class MuspyDataset(Corpus):
    """A dataset that muspy reads; each file is a piece.

    Args:
        name: muspy's name for it, such as jsb, nes, maestro or lmd.
        root: its folder.
        download: fetch and unpack it, if muspy names a licence that allows it.
    """

    def __init__(self, name: str | None, root: str | Path, *, download: bool) -> None:
        super().__init__(root)
        check_choice("name", name, NAMES)
        self.name, self.download = str(name), download

    def pieces(self) -> list[Piece]:
        if self.download and not holds_files(self.root):
            download_archive(archive_of(self.name), self.root)
        dataset = _open(self.name, self.root)
        return pieces_below(dataset.root, dataset.raw_filenames)

    def read(self, path: Path) -> Score:
        """Read a file as muspy's class for the dataset reads it."""
        try:
            return as_score(_open(self.name, self.root).read(path))
        except Exception as error:  # muspy's parsers raise many types
            raise UserError(
                f"{path}: muspy cannot read it ({type(error).__name__}: {error}); "
                "get a complete copy"
            ) from None

    def reader_id(self) -> str:
        return f"muspy {self.name}"


def archive_of(name: str) -> Archive:
    """Return the archive in which a dataset is published, according to muspy.

    Raises:
        ValueError: muspy names no licence, or no single archive.
    """
    import muspy

    dataset = muspy.get_dataset(name)
    info = dataset.info()
    sources = list(getattr(dataset, "_sources", {}).values())  # muspy's subclasses define it
    if not info.license or len(sources) != 1:
        where = f"download {sources[0]['url']}" if sources else f"see {info.homepage}"
        expected = (
            f"muspy names no {'licence' if sources else 'archive'} of name={name}; {where} "
            "yourself if its terms allow it, and put its files into root"
        )
        raise ParameterError("download", "true", expected)
    (source,) = sources
    return Archive(source["filename"], source["url"], info.license, source.get("sha256"))


@lru_cache(maxsize=1)
def _open(name: str, root: Path) -> Any:
    """Return muspy's object for a dataset."""
    import muspy

    dataset = muspy.get_dataset(name)
    info = dataset.info()
    cure = "set download=true" if info.license else f"get them from {info.homepage}"
    expected = f"the files of muspy's dataset {name}"
    if not holds_files(root):
        raise missing_corpus(root, expected, cure)
    mark = root / ".muspy.success"  # muspy requires it
    marked = mark.exists()
    mark.touch()
    try:
        return dataset(root, use_converted=False)
    except ValueError:  # no file of its format
        if not marked:
            mark.unlink()
        raise missing_corpus(root, expected, cure) from None
