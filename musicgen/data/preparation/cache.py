"""The files of a preparation: stores of encoded pieces, and the token cache that training reads."""

from __future__ import annotations

import csv
import errno
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.data.corpora.base import SPLITS, Piece
from musicgen.data.preparation.encoding import PieceRecord
from musicgen.data.preparation.splits import SKETCH_SIZE, Sketches, find_duplicates, split_groups
from musicgen.errors import UserError
from musicgen.midi.score import IntArray
from musicgen.text import csv_cell, pluralize

INDEX, NAMES, FILES, REPORT = "index.npy", "names.json", "files.json", "report.csv"
_NUM_NAMED = 5  # pieces, and unusable files, that the summary names

_INDEX_ROW = np.dtype(
    [(name, np.int32) for name in ("split", "bar_length", "tokens", "bars", "file")]
    + [("start", np.int64)]
)
_TABLES = """
CREATE TABLE IF NOT EXISTS pieces (
    key TEXT PRIMARY KEY, record TEXT, sketch BLOB, start INTEGER, stop INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (name TEXT);
"""

StoredPiece = tuple[PieceRecord, Sketches, str, int]
"""A record, a sketch, the name of the file with the arrays, and the first byte of the arrays."""


class PieceStore:
    """Encoded pieces, by a key that is a hash of their name and files.

    Records are in a SQLite file, arrays in a binary file. Added pieces are stored even if the
    process is killed later. Only one process at a time may add pieces.

    Attributes:
        data_file: name of the file of arrays, in the folder of the SQLite file. It is unique, so
            that a cache never reads the arrays of another store.
    """

    def __init__(self, path: Path, table: sqlite3.Connection) -> None:
        self._table, self._folder = table, path.parent
        table.executescript(_TABLES)
        named = "SELECT name FROM files"
        if table.execute(named).fetchone() is None:  # else nothing waits for others to write
            # In one statement, as two processes may open a new store at the same time.
            new = "INSERT INTO files SELECT ? WHERE NOT EXISTS (SELECT * FROM files)"
            table.execute(new, (f"{path.stem}-{secrets.token_hex(4)}.bin",))
        (self.data_file,) = table.execute(named).fetchone()
        # Bytes of the file of arrays that belong to pieces in the table.
        (self._size,) = table.execute("SELECT coalesce(max(stop), 0) FROM pieces").fetchone()

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[PieceStore]:
        """Open a store for a `with` block; create it if necessary.

        Raises:
            OSError: the disk is full.
            UserError: the file is damaged, for example by a power failure.
        """
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as table:
                table.execute("PRAGMA synchronous = OFF")
                yield cls(path, table)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
            if error.sqlite_errorcode in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise UserError(
                    f"{path}: damaged; remove it, and it will be created again"
                ) from None
            raise

    def keys(self) -> set[str]:
        """Return the keys of all pieces."""
        return {key for (key,) in self._table.execute("SELECT key FROM pieces")}

    def add(self, results: Iterable[tuple[Mapping[str, PieceRecord], Sketches, bytes]]) -> None:
        """Add pieces in one transaction.

        Args:
            results: per encoded piece, the records of all pieces with the same content by their
                keys, the sketch, and the arrays, stored once; see `encode_piece`.
        """
        rows, start = [], self._size
        with (self._folder / self.data_file).open("ab") as file:
            file.truncate(start)  # what a killed process wrote without an entry in the table
            for records, sketch, arrays in results:
                stop = start + file.write(arrays)
                for key, record in records.items():
                    rows.append((key, json.dumps(vars(record)), sketch.tobytes(), start, stop))
                start = stop
        with self._table:  # ends the transaction in any case
            self._table.execute("BEGIN")
            self._table.executemany("INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, ?, ?)", rows)
        self._size = start

    def __getitem__(self, key: str) -> StoredPiece:
        query = "SELECT record, sketch, start FROM pieces WHERE key = ?"
        record, sketch, start = self._table.execute(query, (key,)).fetchone()
        sketch = np.frombuffer(sketch, np.uint64)
        return PieceRecord(**json.loads(record)), sketch, self.data_file, start


class TokenCache:
    """The tokens of the usable pieces of a corpus, as input of the loader.

    It is an index of arrays in the memory-mapped files of the stores.

    Attributes:
        lengths: number of tokens of each piece [num_pieces].
        bar_lengths: number of grid steps in a bar of each piece.

    Raises:
        FileNotFoundError: the folder has no cache, or a file with tokens is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index = np.load(folder / INDEX)
        self.lengths: IntArray = self._index["tokens"].astype(np.int64)
        self.bar_lengths: list[int] = self._index["bar_length"].tolist()
        # As plain arrays, as slicing a memmap is slow.
        self._files = [
            np.asarray(np.memmap(folder.parent / name, np.uint8, "r"))
            for name in json.loads((folder / FILES).read_text())
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenCache, (self.folder,)  # each process maps the files itself

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, piece: int) -> IntArray:
        """Return the tokens of a piece: [L], int64."""
        return self.mapped(piece).astype(np.int64)

    def mapped(self, piece: int) -> NDArray[Any]:
        """Return the tokens of a piece, memory-mapped: [L], uint16."""
        _, _, num_tokens, num_bars, file, start = self._index[piece].item()
        start += 8 * num_bars
        return self._files[file][start : start + 2 * num_tokens].view(np.uint16)

    def crop_starts(self, piece: int) -> NDArray[Any]:
        """Return where crops of a piece may start: [num_bars, 2], see `Crops.starts`."""
        *_, num_bars, file, start = self._index[piece].item()
        return self._files[file][start : start + 8 * num_bars].view(np.int32).reshape(-1, 2)

    @cached_property
    def names(self) -> list[str]:
        """The names of the pieces, read on first use."""
        names: list[str] = json.loads((self.folder / NAMES).read_text())
        return names

    @property
    def splits(self) -> list[str]:
        """The split of each piece."""
        return [SPLITS[split] for split in self._index["split"]]

    def pieces(self, split: str) -> list[int]:
        """Return the indices of the pieces of a split."""
        return np.flatnonzero(self._index["split"] == SPLITS.index(split)).tolist()


def build_cache(
    folder: Path,
    pieces: Sequence[Piece],
    stored: Callable[[], Iterable[StoredPiece]],
    fractions: tuple[float, float],
) -> list[str]:
    """Write a cache into a folder; return the lines of a summary.

    Args:
        folder: an empty folder.
        pieces: all pieces of the corpus.
        stored: returns the stored pieces in the same order; they are read one at a time.
        fractions: shares of validation and test pieces.

    Raises:
        UserError: no piece can be used.
    """
    index = np.zeros(len(pieces), _INDEX_ROW)
    sketches = np.empty((len(pieces), SKETCH_SIZE), np.uint64)
    files: dict[str, int] = {}
    for i, (record, sketch, file, start) in enumerate(stored()):
        sketches[i] = sketch
        if record.num_tokens:
            number = files.setdefault(file, len(files))
            index[i] = 0, record.bar_length, record.num_tokens, record.num_bars, number, start
    usable = np.flatnonzero(index["tokens"]).tolist()
    if not usable:
        first = next(
            (f"{pieces[0].path}: {record.skipped}" for record, *_ in stored()), "there is none"
        )
        raise UserError(f"none of {len(pieces)} pieces can be used; the first: {first}")
    (folder / NAMES).write_text(json.dumps([pieces[i].name for i in usable]))
    (folder / FILES).write_text(json.dumps([*files]))
    # The original of a piece is the first one by name with the same music, perhaps itself.
    by_name = sorted(usable, key=lambda i: pieces[i].name)
    originals = dict(zip(by_name, find_duplicates(sketches, by_name), strict=True))
    grouped = [replace(pieces[i], group=pieces[originals[i]].group) for i in usable]
    splits, duplicate_of = [""] * len(pieces), [""] * len(pieces)
    for i, split in zip(usable, split_groups(grouped, fractions), strict=True):
        splits[i], index["split"][i] = split, SPLITS.index(split)
        if originals[i] != i:
            duplicate_of[i] = pieces[originals[i]].name
    np.save(folder / INDEX, index[usable])
    return write_report(folder, (record for record, *_ in stored()), splits, duplicate_of)


def write_report(
    folder: Path, records: Iterable[PieceRecord], splits: Sequence[str], originals: Sequence[str]
) -> list[str]:
    """Write `report.csv`, with a row per piece; return the lines of a summary.

    Args:
        splits: split of each piece; "" for a piece that is left out.
        originals: name of the piece that each piece duplicates; "" for all others.
    """
    split_of: dict[str, str] = {}
    duplicates: list[tuple[str, str, str]] = []  # name, original and split
    left_out: list[str] = []
    totals = np.zeros(5, int)  # pieces, and the counts of the columns
    # File names may be invalid UTF-8, and are written as their bytes on disk.
    with (folder / REPORT).open(
        "w", newline="", encoding="utf-8", errors="surrogateescape"
    ) as file:
        writer = csv.writer(file)
        columns = ["tokens", "bars", "notes_read", "notes_kept"]
        writer.writerow(["piece", "kept", "split", *columns, "duplicate_of", "notes"])
        for record, split, original in zip(records, splits, originals, strict=True):
            counts = [record.num_tokens, record.num_bars, record.notes_read, record.notes_kept]
            notes = record.skipped or record.report
            row = [record.name, not record.skipped, split, *counts, original, notes]
            writer.writerow(map(csv_cell, row))
            split_of[record.name] = split
            if original:
                duplicates.append((record.name, original, split))
            if record.skipped:
                left_out.append(f"{record.name}: {record.skipped}")
            else:
                totals += [1, *counts]
    num_pieces, tokens, bars, read, kept = totals.tolist()
    shares = ", ".join(f"{splits.count(split)} {split}" for split in SPLITS)
    lines = [
        f"{pluralize(num_pieces, 'pieces')} ({shares}), {pluralize(tokens, 'tokens')} in "
        f"{pluralize(bars, 'bars')}, {kept:,} of {pluralize(read, 'notes')} kept"
    ]
    if duplicates:
        where, pairs = "in the splits of their originals", duplicates
        if moved := [each for each in duplicates if each[2] != split_of[each[1]]]:
            where = f"{len(moved)} of them in another split than the original (published split)"
            pairs = moved
        names = ", ".join(f"{name} = {original}" for name, original, _ in pairs[:_NUM_NAMED])
        more = f" and {len(pairs) - _NUM_NAMED} more" if len(pairs) > _NUM_NAMED else ""
        lines.append(f"duplicates: {len(duplicates)}, {where}: {names}{more}")
    else:
        lines.append("duplicates: none")
    if left_out:
        lines.append(f"left out: {len(left_out)} of {len(splits)} pieces")
        lines += [f"  {reason}" for reason in left_out[:_NUM_NAMED]]
        if len(left_out) > _NUM_NAMED:
            lines.append(f"  and {len(left_out) - _NUM_NAMED} more")
    return lines
