"""The tokens of a corpus on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from musicgen.data.shelf import PLACES, TOKENS, open_array

INDEX = "index.json"
_MAPPED = ("_tokens", "_places")


class TokenCache:
    """The tokens of a corpus on disk, memory-mapped: what a loader reads.

    Its folder is a `Shelf` with an index beside it, of the pieces that are kept.

    Attributes:
        names, splits, bar_lengths: of each piece.
        lengths: numbers of tokens. [num_pieces]
    """

    def __init__(self, folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        self.folder = folder
        self.names: list[str] = index["names"]
        self.splits: list[str] = index["splits"]
        self.bar_lengths: list[int] = index["bar_lengths"]
        self.lengths: NDArray[np.int64] = np.array(index["num_tokens"], dtype=np.int64)
        self._starts = np.append(0, np.cumsum(self.lengths))
        self._bars = np.append(0, np.cumsum(index["num_bars"])).astype(np.int64)
        self._open()

    def _open(self) -> None:
        self._tokens = open_array(self.folder / TOKENS)
        self._places = open_array(self.folder / PLACES)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, piece: int) -> NDArray[np.int64]:
        """The tokens of one piece. [L]."""
        return self.mapped(piece).astype(np.int64)

    def mapped(self, piece: int) -> NDArray[Any]:
        """The tokens of one piece, not read yet. [L]."""
        return self._tokens[self._starts[piece] : self._starts[piece + 1]]

    def places(self, piece: int) -> NDArray[Any]:
        """Where crops of a piece may begin, as `Tokenizer.crop_places` has it. [num_bars, 2]."""
        return self._places[self._bars[piece] : self._bars[piece + 1]]

    def pieces(self, split: str) -> list[int]:
        """The pieces of a split."""
        return [i for i, name in enumerate(self.splits) if name == split]

    def __getstate__(self) -> dict[str, Any]:
        """For a loader's process: it maps the files itself, rather than being sent them."""
        return {key: value for key, value in vars(self).items() if key not in _MAPPED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()
