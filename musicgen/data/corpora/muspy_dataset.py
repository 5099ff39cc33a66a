"""Any dataset of muspy, by name."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from musicgen.data.corpora.base import Corpus, Piece, missing_corpus, pieces_below
from musicgen.data.corpora.download import Archive, download_archive, holds_files
from musicgen.errors import ParameterError, UserError
from musicgen.files import write_bytes
from musicgen.midi import Score, as_score
from musicgen.validation import check_choice

NAMES = (
    *("emopia", "essen", "haydn", "hymnal", "hymnal-tune", "jsb", "lmd", "lmd-aligned"),
    *("lmd-matched", "maestro", "maestro-v1", "maestro-v2", "musicnet", "nes", "nmd"),
    "wikifonia",
)


class MuspyDataset(Corpus):
    """A dataset that muspy reads; each file (or tune of an ABC file) is a piece.

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
        paths, top = _files(self.name, self.root)
        return pieces_below(top, paths)

    def read(self, path: Path) -> Score:
        """Read a file as muspy's class for the dataset reads it."""
        try:
            all_lines = (path, (0, 2**62))
            dataset = _open(self.name, self.root)
            music = dataset.read(all_lines if path.suffix == ".abc" else path)
        except Exception as error:  # muspy's parsers raise many types
            raise UserError(
                f"{path}: muspy cannot read it ({type(error).__name__}: {error}); "
                "get a complete copy, or see data/README.md"
            ) from None
        return as_score(music)

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


def _files(name: str, root: Path) -> tuple[list[Path], Path]:
    """Return the files of a dataset, one per piece, and the folder that contains them."""
    dataset = _open(name, root)
    if not isinstance(dataset.raw_filenames[0], tuple):
        return dataset.raw_filenames, dataset.root
    folder = root.parent / f"{root.name}-tunes"
    tunes = []
    for path in dict.fromkeys(path for path, _ in dataset.raw_filenames):
        tunes += _split_tunes(path, folder / path.relative_to(dataset.root))
    return tunes, folder


def _split_tunes(path: Path, target: Path) -> list[Path]:
    """Write the tunes of an ABC file, each beginning with a line `X:`, to files of their own."""
    lines = path.read_bytes().splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.startswith(b"X:")]
    tunes = []
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True), 1):
        tune = target.with_name(f"{target.stem}-{number:04}.abc")
        content = b"".join(lines[start:end]).decode("utf-8", "replace").encode()
        if not tune.is_file() or tune.read_bytes() != content:
            write_bytes(tune, content)
        tunes.append(tune)
    return tunes


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
