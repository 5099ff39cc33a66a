"""Files to a token cache: memory-mapped, named after content and settings, written atomically."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from musicgen.errors import UserError
from musicgen.midi import Score
from musicgen.tokenization.base import EncodingReport, Tokenizer

# Raise it when the same files and settings would give another cache.
_FORMAT = 2
SPLITS = ("train", "val", "test")
console = Console(stderr=True)


@dataclass(frozen=True)
class Piece:
    """One piece of a corpus.

    Attributes:
        name: what reports call it.
        path: its file, or the folder of its files.
        group: pieces of one group stay in one split.
        split: the corpus' own split, if it has one.
    """

    name: str
    path: Path
    group: str
    split: str | None = None


class TokenCache:
    """The tokens of a corpus on disk, memory-mapped.

    Attributes:
        names, splits, bar_lengths: of each piece.
    """

    def __init__(self, folder: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        self.folder = folder
        self.names: list[str] = index["names"]
        self.splits: list[str] = index["splits"]
        self.bar_lengths: list[int] = index["bar_lengths"]
        self._offsets = np.array(index["offsets"])
        self._tokens = np.load(folder / "tokens.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, piece: int) -> NDArray[np.int64]:
        """The tokens of one piece."""
        start, end = self._offsets[piece : piece + 2]
        return self._tokens[start:end].astype(np.int64)

    def pieces(self, split: str) -> list[int]:
        """The pieces of a split."""
        return [i for i, name in enumerate(self.splits) if name == split]


def prepare(
    pieces: Sequence[Piece],
    read: Callable[[Path], Score],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    fractions: tuple[float, float],
    num_workers: int | None = None,
) -> TokenCache:
    """Encode a corpus, unless the same content was encoded before with the same settings.

    What cannot be read is left out, counted on the terminal and listed with its reason in the
    cache's `report.csv`, as are the notes that the vocabulary cannot hold.

    Args:
        pieces: the corpus.
        read: reads a piece's path; a function that can be pickled.
        tokenizer: encodes the scores.
        folder: where caches live.
        fractions: parts of the groups that go to validation and to test.
        num_workers: processes; None takes one per core.

    Raises:
        UserError: no piece could be read.
    """
    settings = {"format": _FORMAT, "tokenizer": tokenizer.settings(), "name": tokenizer.name}
    settings["vocabulary"] = tokenizer.vocabulary.hash
    settings["fractions"] = list(fractions)
    target = folder / f"{tokenizer.name}-{_fingerprint(pieces, read, settings)}"
    if not (target / "index.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Not by `tempfile`, whose folders no other user may read.
        temporary = folder / f".preparing-{uuid.uuid4().hex}"
        temporary.mkdir()
        try:
            _build(pieces, read, tokenizer, temporary, fractions, num_workers)
            try:
                temporary.rename(target)
            except OSError:  # another process was first, with the same content
                if not (target / "index.json").exists():
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _announce(target)
    return TokenCache(target)


def split_groups(pieces: Sequence[Piece], fractions: tuple[float, float]) -> list[str]:
    """A split for each piece: its own, or the one that its group's name decides.

    A name gives each group a number in [0, 1): so a group stays where it is when the corpus grows,
    and what was trained on is never taken for held out. Only a corpus so small that a split would
    be empty moves a group: of three or more, each of training, validation and test gets one.
    """
    shares = {
        group: int.from_bytes(hashlib.blake2b(os.fsencode(group), digest_size=8).digest()) / 2**64
        for group in {piece.group for piece in pieces if piece.split is None}
    }
    val, test = fractions
    where = {
        group: "val" if share < val else "test" if share < val + test else "train"
        for group, share in shares.items()
    }
    order = sorted(shares, key=lambda group: shares[group])
    if len(order) < 3:
        where = dict.fromkeys(order, "train")
    else:
        for place, split in ((0, "val"), (1, "test"), (-1, "train")):
            if split not in where.values():
                where[order[place]] = split
    return [piece.split or where[piece.group] for piece in pieces]


def _fingerprint(pieces: Sequence[Piece], read: Callable, settings: dict[str, Any]) -> str:
    """Of everything that decides the cache: settings, reader, names, content."""
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=12)
    digest.update(f"{read.__module__}.{read.__qualname__}".encode())
    for piece in pieces:
        digest.update(repr((piece.name, piece.group, piece.split)).encode())
        files = sorted(piece.path.iterdir()) if piece.path.is_dir() else [piece.path]
        for file in files:
            with suppress(OSError):  # `read` reports what cannot be read
                digest.update(hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest()


def _encode(
    path: Path, *, read: Callable[[Path], Score], tokenizer: Tokenizer
) -> tuple[NDArray[np.int64], int, EncodingReport] | str:
    """A piece's tokens, bar length and report, or the reason why there are none."""
    try:
        score = read(path)
    except UserError as error:
        return str(error)
    tokens, report = tokenizer.encode_with_report(score)
    if report.notes_kept == 0:
        return f"{path}: no note that the {tokenizer.name} vocabulary holds ({report.summary()})"
    return tokens, tokenizer.bar_length(score), report


def _build(
    pieces: Sequence[Piece],
    read: Callable[[Path], Score],
    tokenizer: Tokenizer,
    folder: Path,
    fractions: tuple[float, float],
    num_workers: int | None,
) -> None:
    encode = partial(_encode, read=read, tokenizer=tokenizer)
    num_workers = min(num_workers or os.cpu_count() or 1, 1 + len(pieces) // 32)
    progress = Progress(
        *Progress.get_default_columns()[:3],
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    results = []
    with progress, ProcessPoolExecutor(num_workers) as pool:
        paths = [piece.path for piece in pieces]
        encoded = map(encode, paths) if num_workers == 1 else pool.map(encode, paths, chunksize=8)
        results = list(progress.track(encoded, len(pieces), description="encoding"))
    kept = [(p, r) for p, r in zip(pieces, results, strict=True) if not isinstance(r, str)]
    if not kept:
        raise UserError(f"none of {len(pieces)} pieces can be used; the first: {results[0]}")
    with _open_report(folder, "w") as file:
        writer = csv.writer(file)
        writer.writerow(["piece", "kept", "tokens", "notes"])
        for piece, result in zip(pieces, results, strict=True):
            if isinstance(result, str):
                writer.writerow([piece.name, False, 0, result])
            else:
                writer.writerow([piece.name, True, len(result[0]), result[2].summary()])
    # 16 bits hold every vocabulary here, and halve the cache.
    assert len(tokenizer.vocabulary) <= np.iinfo(np.uint16).max
    tokens = np.concatenate([result[0] for _, result in kept]).astype(np.uint16)
    np.save(folder / "tokens.npy", tokens)
    offsets = np.cumsum([0] + [len(result[0]) for _, result in kept])
    index = {
        "names": [piece.name for piece, _ in kept],
        "splits": split_groups([piece for piece, _ in kept], fractions),
        "bar_lengths": [result[1] for _, result in kept],
        "offsets": offsets.tolist(),
    }
    (folder / "index.json").write_text(json.dumps(index))


def _open_report(folder: Path, mode: str) -> IO[str]:
    """A file name need not be valid UTF-8, and is written as the bytes it has on disk."""
    return (folder / "report.csv").open(
        mode, newline="", encoding="utf-8", errors="surrogateescape"
    )


def _announce(folder: Path) -> None:
    """One line on what was kept, and one if anything was not."""
    cache = TokenCache(folder)
    with _open_report(folder, "r") as file:
        rows = list(csv.DictReader(file))
    total = sum(int(row["tokens"]) for row in rows)
    counts = ", ".join(f"{len(cache.pieces(split))} {split}" for split in SPLITS)
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(f"{len(cache)} pieces ({counts}), {total:,} tokens in {folder}")
    skipped = [row for row in rows if row["kept"] == "False"]
    if skipped:
        say(
            f"{len(skipped)} of {len(rows)} pieces left out, the reasons in "
            f"{folder / 'report.csv'}; the first: {skipped[0]['notes']}",
            style="yellow",
        )
