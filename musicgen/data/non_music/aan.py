"""The Long Range Arena's Retrieval: whether one paper cites another, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from musicgen.data.non_music.base import Example, ExampleCorpus, SplitName
from musicgen.data.non_music.imdb import BYTES, byte_ids
from musicgen.errors import UserError

_COLUMNS = 5  # label, two ids, two texts


class AAN(ExampleCorpus):
    """Pairs of papers of the ACL Anthology Network (Radev et al. 2013; Tay et al. 2021).

    Args:
        root: the folder with `new_aan_pairs.train.tsv`, `.eval.tsv` and `.test.tsv`.
    """

    vocab_size = BYTES
    num_outputs = 2
    how_to_get = (
        "unpack lra_release.gz of github.com/google-research/long-range-arena, and give its folder "
        "of pairs: data.root=lra_release/tsv_data"
    )
    files: ClassVar[dict[SplitName, str]] = {
        "train": "new_aan_pairs.train.tsv",
        "val": "new_aan_pairs.eval.tsv",
        "test": "new_aan_pairs.test.tsv",
    }

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).expanduser()

    def split(self, name: SplitName, length: int) -> Pairs:
        """Return the pairs of a split, the first `length` bytes of each text."""
        path = self.root / self.files[name]
        if not path.is_file():
            raise self.missing(path)
        return Pairs(path, length)


class Pairs:
    """The lines of a file of pairs, read one by one."""

    def __init__(self, path: Path, length: int) -> None:
        self.path, self.length = path, length
        with path.open("rb") as file:
            sizes = np.fromiter((len(line) for line in file), np.int64)
        if not len(sizes):
            raise UserError(f"{path}: empty; {AAN.how_to_get}")
        self._starts: NDArray[np.int64] = np.cumsum(sizes) - sizes

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Example:
        with self.path.open("rb") as file:
            file.seek(int(self._starts[index]))
            columns = file.readline().rstrip(b"\r\n").split(b"\t", _COLUMNS - 1)
        if len(columns) != _COLUMNS or columns[0] not in (b"0", b"1", b"0.0", b"1.0"):
            expected = "expected label (0 or 1), two ids and two texts, separated by tabs"
            raise UserError(f"{self.path}, line {index + 1}: {expected}")
        texts = tuple(byte_ids(text[: self.length]) for text in columns[3:])
        return Example(texts, int(float(columns[0])))
