"""The texts of the Long Range Arena as bytes: film reviews, and pairs of papers."""

from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.plugins.tasks.base import Example, ExampleCorpus, Examples, SplitName
from musicgen.validation import check_float

CLASSES = ("neg", "pos")
BYTES = 257
"""Number of tokens of texts: 0 is padding, the others are the value of a byte plus 1."""
_COLUMNS = 5  # of a file of pairs: label, two ids, two texts


class IMDb(ExampleCorpus):
    """Film reviews and whether they are favourable (Maas et al. 2011), as bytes (Tay et al. 2021).

    Args:
        root: the folder `aclImdb`, with `train` and `test`.
        val_fraction: share of the training reviews that are used for validation; 0: validate on
            the test reviews, as the Long Range Arena does.
        split_seed: seed of the draw of these reviews.
    """

    vocab_size = BYTES
    num_outputs = len(CLASSES)
    how_to_get = (
        "unpack aclImdb_v1.tar.gz from ai.stanford.edu/~amaas/data/sentiment, and give its folder: "
        "data.root=aclImdb"
    )

    def __init__(self, root: str | Path, *, val_fraction: float, split_seed: int) -> None:
        check_float("val_fraction", val_fraction, below=1)
        self.root = Path(root).expanduser()
        self.val_fraction, self.split_seed = val_fraction, split_seed

    def split(self, name: SplitName, length: int) -> Examples[tuple[Path, int]]:
        """Return the reviews of a split, the first `length` bytes of each."""
        from_test = name == "test" or (name == "val" and not self.val_fraction)
        folder = self.root / ("test" if from_test else "train")
        files = [
            (path, label)
            for label, kind in enumerate(CLASSES)
            for path in sorted(self.existing(folder / kind).glob("*.txt"))
        ]
        if not from_test:
            order = np.random.default_rng(self.split_seed).permutation(len(files))
            num_val = round(self.val_fraction * len(files))
            chosen = order[:num_val] if name == "val" else order[num_val:]
            files = [files[i] for i in sorted(chosen)]

        def example(item: tuple[Path, int]) -> Example:
            path, label = item
            return Example((byte_ids(path.read_bytes()[:length]),), label)

        return Examples(files, example)


class AAN(ExampleCorpus):
    """Pairs of papers, and whether one cites the other (Radev et al. 2013; Tay et al. 2021).

    Args:
        root: the folder with `new_aan_pairs.train.tsv`, `.eval.tsv` and `.test.tsv`.
    """

    vocab_size = BYTES
    num_outputs = 2
    how_to_get = (
        "unpack lra_release.gz of github.com/google-research/long-range-arena, and give its folder "
        "of pairs: data.root=lra_release/tsv_data"
    )

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).expanduser()

    def split(self, name: SplitName, length: int) -> Examples[tuple[int, int]]:
        """Return the pairs of a split, read one by one, the first `length` bytes of each text."""
        name_in_file = "eval" if name == "val" else name
        path = self.existing(self.root / f"new_aan_pairs.{name_in_file}.tsv")
        with path.open("rb") as file:
            starts = [0, *accumulate(len(line) for line in file)]

        def example(item: tuple[int, int]) -> Example:
            line, start = item
            with path.open("rb") as file:
                file.seek(start)
                columns = file.readline().rstrip(b"\r\n").split(b"\t", _COLUMNS - 1)
            if len(columns) != _COLUMNS or columns[0] not in (b"0", b"1", b"0.0", b"1.0"):
                expected = "expected label (0 or 1), two ids and two texts, separated by tabs"
                raise UserError(f"{path}, line {line}: {expected}")
            texts = tuple(byte_ids(text[:length]) for text in columns[3:])
            return Example(texts, int(float(columns[0])))

        return Examples([*enumerate(starts[:-1], 1)], example)


def byte_ids(text: bytes) -> NDArray[np.int64]:
    """Return the tokens of a text's bytes; those of an empty text are one space. [L]"""
    return np.frombuffer(text or b" ", np.uint8).astype(np.int64) + 1
