"""Any data set of muspy, by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from musicgen.data.datamodule import MusicData
from musicgen.data.download import Archive, obtain
from musicgen.data.prepare import Piece
from musicgen.errors import UserError
from musicgen.files import write_bytes
from musicgen.midi import Score, as_score

NAMES = (
    "emopia",
    "essen",
    "haydn",
    "hymnal",
    "hymnal-tune",
    "jsb",
    "lmd",
    "lmd-aligned",
    "lmd-matched",
    "maestro",
    "maestro-v1",
    "maestro-v2",
    "music21",
    "musicnet",
    "nes",
    "nmd",
    "wikifonia",
)
_BUNDLED = "music21"  # a corpus that comes with its library
_BY_MUSIC21 = ("essen", "haydn", "nmd")
_WHOLE = 2**62  # lines of a file


class MuspyDataset(MusicData):
    """A data set that muspy reads, each file (or tune of an ABC file) a piece.

    Args:
        name: muspy's word for it, such as jsb, nes, maestro or lmd.
        root: its folder; `music21` needs none, as that library brings its corpus along.
        download: fetch and unpack it, where muspy names a licence that allows it.

    Raises:
        UserError: there is no data set of this name.
    """

    def __init__(
        self, name: str | None, root: str | Path, *, download: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if name not in NAMES:
            raise UserError(f"data.name={name}: give one of {', '.join(NAMES)}")
        self.dataset, self.root, self.download = name, Path(root).expanduser(), download

    @property
    def read(self) -> Callable[[Path], Score]:  # type: ignore[override]
        return partial(read_piece, name=self.dataset, root=self.root)

    def pieces(self) -> list[Piece]:
        _check_music21(self.dataset)
        if self.download and self.dataset != _BUNDLED and not _holds_files(self.root):
            obtain(archive_of(self.dataset), self.root)
        paths, top = _files(self.dataset, self.root)
        names = [path.relative_to(top).as_posix() for path in paths]
        return [Piece(name, path, name) for name, path in zip(names, paths, strict=True)]


def archive_of(name: str) -> Archive:
    """Where muspy says that a data set is published.

    Raises:
        UserError: muspy names no licence, or no archive.
    """
    import muspy

    kind = muspy.get_dataset(name)
    info = kind.info()
    sources = list(getattr(kind, "_sources", {}).values())  # what muspy's subclasses are to define
    if not info.license or len(sources) != 1:
        where = f"download {sources[0]['url']}" if sources else f"see {info.homepage}"
        raise UserError(
            f"data.download=true: muspy names no {'licence' if sources else 'archive'} of "
            f"data.name={name}; {where} yourself if its terms allow it, and put its files into "
            "data.root="
        )
    (source,) = sources
    digests = {key: source[key] for key in ("sha256", "md5") if source.get(key)}
    return Archive(source["filename"], source["url"], info.license, source.get("size"), digests)


def read_piece(path: Path, *, name: str, root: Path) -> Score:
    """A file of a data set, read as muspy's class for it reads it.

    Raises:
        UserError: muspy cannot read it.
    """
    import muspy

    try:
        if name == _BUNDLED:
            music = muspy.read(path)
        else:
            dataset = _open(name, root)
            music = dataset.read((path, (0, _WHOLE)) if path.suffix == ".abc" else path)
    except Exception as error:  # each parser below raises types of its own
        raise UserError(
            f"{path}: muspy cannot read it ({type(error).__name__}: {error}); get a whole copy"
        ) from None
    return as_score(music)


def _files(name: str, root: Path) -> tuple[list[Path], Path]:
    """The files of a data set, one for each piece, and the folder that they are in."""
    dataset = _open(name, root)
    if name == _BUNDLED:
        paths = [Path(path) for path in dataset.filenames]
        return paths, Path(os.path.commonpath(paths))
    if not isinstance(dataset.raw_filenames[0], tuple):
        return dataset.raw_filenames, dataset.root
    folder = root.parent / f"{root.name}-tunes"
    collections = dict.fromkeys(path for path, _ in dataset.raw_filenames)
    tunes = [
        tune
        for path in collections
        for tune in _split_tunes(path, folder / path.relative_to(dataset.root))
    ]
    return tunes, folder


def _split_tunes(path: Path, target: Path) -> list[Path]:
    """The tunes of an ABC file, each of which begins with a line `X:`, as files of their own."""
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
    """The object of muspy for a data set.

    Raises:
        UserError: its files are not there.
    """
    import muspy

    kind = muspy.get_dataset(name)
    if name == _BUNDLED:
        return kind()
    info = kind.info()
    where = "by data.download=true" if info.license else f"from {info.homepage}"
    missing = UserError(
        f"{root}: expected the files of muspy's data set {name} here; get them {where}, or give "
        "their folder as data.root="
    )
    if not _holds_files(root):
        raise missing
    (root / ".muspy.success").touch()  # without it muspy takes the data for missing
    try:
        return kind(root, use_converted=False)
    except ValueError:  # no file of its kind
        raise missing from None


def _holds_files(root: Path) -> bool:
    return root.is_dir() and any(root.iterdir())


def _check_music21(name: str) -> None:
    """Some files muspy 0.5 reads through music21, by what music21 10 has no more."""
    if name in _BY_MUSIC21:
        import music21

        if not hasattr(music21.stream.Stream, "flat"):
            raise UserError(
                f"data.name={name}: muspy reads it by an older music21 than the "
                f"{music21.VERSION_STR} that is installed; pip install 'music21<10'"
            )
