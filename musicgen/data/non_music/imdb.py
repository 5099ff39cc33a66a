"""The Long Range Arena's Text: the sentiment of film reviews, byte by byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from musicgen.data.non_music.base import Example, ExampleCorpus, SplitName
from musicgen.data.non_music.lists import MappedExamples
from musicgen.errors import UserError
from musicgen.validation import check_float, check_int

CLASSES = ("neg", "pos")
BYTES = 257
"""Ids of texts: 0 is padding, the others are a byte's value plus 1."""


class IMDb(ExampleCorpus):
    """The reviews of Maas et al. (2011), as bytes (Tay et al. 2021).

    Args:
        root: the folder `aclImdb`, with `train` and `test`.
        val_fraction: of the training reviews, for validation; 0: it uses the test reviews, as the
            Long Range Arena does.
        split_seed: decides which reviews.
    """

    vocab_size = BYTES
    num_outputs = len(CLASSES)
    how_to_get = (
        "unpack aclImdb_v1.tar.gz from ai.stanford.edu/~amaas/data/sentiment, and give its folder: "
        "data.root=aclImdb"
    )

    def __init__(self, root: str | Path, *, val_fraction: float = 0.0, split_seed: int = 0) -> None:
        check_float("val_fraction", val_fraction, below=1)
        check_int("split_seed", split_seed, 0)
        self.root = Path(root).expanduser()
        self.val_fraction, self.split_seed = val_fraction, split_seed

    def split(self, name: SplitName, length: int) -> MappedExamples[tuple[Path, int]]:
        """Return the reviews of a split, the first `length` bytes of each."""
        from_test = name == "test" or (name == "val" and not self.val_fraction)
        files = self._files(self.root / ("test" if from_test else "train"))
        if not from_test:
            order = np.random.default_rng(self.split_seed).permutation(len(files))
            num_val = round(self.val_fraction * len(files))
            files = [
                files[i] for i in sorted(order[:num_val] if name == "val" else order[num_val:])
            ]
        if not files:
            raise UserError(f"{self.root}: no reviews for {name}; {self.how_to_get}")

        def example(item: tuple[Path, int]) -> Example:
            path, label = item
            return Example((byte_ids(path.read_bytes()[:length]),), label)

        return MappedExamples(files, example)

    def _files(self, folder: Path) -> list[tuple[Path, int]]:
        for name in CLASSES:
            if not (folder / name).is_dir():
                raise self.missing(folder / name)
        return [
            (path, label)
            for label, name in enumerate(CLASSES)
            for path in sorted((folder / name).glob("*.txt"))
        ]


def byte_ids(text: bytes) -> NDArray[np.int64]:
    """Return the ids of a text's bytes; an empty text is one space."""
    return np.frombuffer(text or b" ", np.uint8).astype(np.int64) + 1
