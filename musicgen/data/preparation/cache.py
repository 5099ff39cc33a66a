"""The tokens of a corpus on disk: the input of the loader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.data.corpora.base import Piece
from musicgen.data.preparation.duplicates import SKETCH_SIZE, find_duplicates
from musicgen.data.preparation.splits import split_groups
from musicgen.data.preparation.store import SKETCHES, PieceStore, open_arrays, write_pieces
from musicgen.data.preparation.summary import SUMMARY, summarise, write_table
from musicgen.errors import UserError

INDEX = "index.json"


class TokenCache:
    """A `PieceStore` with an index of the kept pieces; the arrays are memory-mapped.

    Attributes:
        names, splits, bar_lengths: one of each per piece.
        lengths: numbers of tokens. [num_pieces]
    """

    def __init__(self, folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        self.folder = folder
        self.names: list[str] = index["names"]
        self.splits: list[str] = index["splits"]
        self.bar_lengths: list[int] = index["bar_lengths"]
        self.lengths: NDArray[np.int64] = np.array(index["num_tokens"], dtype=np.int64)
        self._token_offsets = np.append(0, np.cumsum(self.lengths))
        self._bar_offsets = np.append(0, np.cumsum(index["num_bars"])).astype(np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, piece: int) -> NDArray[np.int64]:
        """Read the tokens of one piece. [L]."""
        return self.mapped(piece).astype(np.int64)

    def mapped(self, piece: int) -> NDArray[Any]:
        """Return the tokens of one piece without reading them. [L]."""
        tokens = open_arrays(self.folder)[0]
        return tokens[self._token_offsets[piece] : self._token_offsets[piece + 1]]

    def crop_starts(self, piece: int) -> NDArray[Any]:
        """Return the starts of a piece's crops, see `Tokenizer.crop_starts`. [num_bars, 2]."""
        crop_starts = open_arrays(self.folder)[1]
        return crop_starts[self._bar_offsets[piece] : self._bar_offsets[piece + 1]]

    def pieces(self, split: str) -> list[int]:
        """Return the indices of a split's pieces."""
        return [i for i, name in enumerate(self.splits) if name == split]


def build_cache(
    folder: Path,
    pieces: Sequence[Piece],
    sources: Sequence[tuple[PieceStore, int]],
    fractions: tuple[float, float],
) -> None:
    """Fill a folder with a cache: the same bytes for the same pieces, whatever their sources.

    Args:
        sources: the store of each encoded piece, and its index there.

    Raises:
        UserError: no piece can be used.
    """
    records = [store.records[index] for store, index in sources]
    kept = [i for i, record in enumerate(records) if not record.skipped]
    if not kept:
        first = f"{pieces[0].path}: {records[0].skipped}" if records else "there is none"
        raise UserError(f"none of {len(pieces)} pieces can be used; the first: {first}")
    write_pieces(folder, (store[index] for store, index in sources))
    sketches = np.fromfile(folder / SKETCHES, np.uint64).reshape(-1, SKETCH_SIZE)
    # The original is the first piece, by name, of the same music.
    by_name = sorted(kept, key=lambda i: pieces[i].name)
    first_of = find_duplicates(sketches[by_name])
    originals = {i: by_name[j] for i, j in zip(by_name, first_of, strict=True) if i != by_name[j]}
    grouped = [replace(pieces[i], group=pieces[originals.get(i, i)].group) for i in kept]
    split_of = dict(zip(kept, split_groups(grouped, fractions), strict=True))
    index = {
        "names": [records[i].name for i in kept],
        "splits": list(split_of.values()),
        "bar_lengths": [records[i].bar_length for i in kept],
        "num_tokens": [records[i].num_tokens for i in kept],
        "num_bars": [records[i].num_bars for i in kept],
    }
    (folder / INDEX).write_text(json.dumps(index))

    splits = [split_of.get(i, "") for i in range(len(records))]
    names = {i: records[original].name for i, original in originals.items()}
    duplicate_of = [names.get(i, "") for i in range(len(records))]
    write_table(folder, records, splits, duplicate_of)
    summary = summarise(records, splits, duplicate_of)
    (folder / SUMMARY).write_text(summary + "\n", encoding="utf-8", errors="surrogateescape")
