"""Texts: film reviews and pairs of papers as bytes (Long Range Arena), and WikiText as words."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from musicgen.console import log
from musicgen.errors import UserError
from musicgen.files import atomic_path, write_text
from musicgen.plugins.tasks.datamodule import Example, ExampleCorpus, Examples, SplitName
from musicgen.validation import check_float, check_seed

CLASSES = ("neg", "pos")
BYTES = 257
"""Number of tokens of texts: 0 is padding, the others are the value of a byte plus 1."""
_COLUMNS = 5  # of a file of pairs: label, two ids, two texts
SPECIAL = ("PAD", "MASK")
UNKNOWN, END = "<unk>", "<eos>"
_NAMES: dict[SplitName, str] = {"train": "train", "val": "valid", "test": "test"}


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
        check_seed("split_seed", split_seed)
        self.root = Path(root).expanduser()
        self.val_fraction, self.split_seed = val_fraction, split_seed

    def split(self, name: SplitName, length: int) -> Examples:
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

    def split(self, name: SplitName, length: int) -> Examples:
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
    """Return the tokens of a text's bytes; an empty text becomes one space. [L]"""
    return np.frombuffer(text or b" ", np.uint8).astype(np.int64) + 1


class WikiText(ExampleCorpus):
    """WikiText-103 or WikiText-2 (Merity et al. 2017), in windows of consecutive words.

    The vocabulary has the most frequent words of the training file, and an end of the line. Other
    words are `<unk>`.

    Args:
        root: the folder with `wiki.train.tokens`, `wiki.valid.tokens` and `wiki.test.tokens`.
        cache_dir: folder of the encoded words.
        num_words: number of words in the vocabulary; null: all.
    """

    how_to_get = (
        "download wikitext-103-v1.zip (Merity et al. 2017), unpack it, and give its folder: "
        "data.root=wikitext-103"
    )

    def __init__(self, root: str | Path, cache_dir: str | Path, *, num_words: int | None) -> None:
        self.root, self.cache_dir = Path(root).expanduser(), Path(cache_dir).expanduser()
        self.num_words = num_words

    @cached_property
    def words(self) -> list[str]:
        """The words of the vocabulary; their tokens follow the special ones."""
        path = self._cached("txt", "train")
        if not path.is_file():
            log(f"counting the words of {self._path('train')}")
            counts = Counter(chain.from_iterable(_lines(self._path("train"))))
            counts[UNKNOWN] += 0
            ranked = sorted(counts, key=lambda word: (-counts[word], word))[: self.num_words]
            if UNKNOWN not in ranked:
                ranked[-1] = UNKNOWN
            write_text(path, "\n".join(ranked))
        return path.read_text(encoding="utf-8").split("\n")

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return len(SPECIAL) + len(self.words)

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        return self.vocab_size

    def split(self, name: SplitName, length: int) -> Examples:
        """Return windows of `length` words; the target of a word is the next word."""
        ids = self._ids(name)

        def example(start: int) -> Example:
            window = ids[start : start + length + 1].astype(np.int64)
            return Example((window[:-1],), window[1:])

        return Examples(range(0, len(ids) - 1, length), example)

    def _ids(self, name: SplitName) -> NDArray[np.int32]:
        """Return the tokens of a split, encoded on first use; the array is read on demand."""
        path = self._cached("npy", name)
        if not path.is_file():
            ids = {word: i for i, word in enumerate(self.words, len(SPECIAL))}
            unknown = ids[UNKNOWN]
            words = chain.from_iterable(_lines(self._path(name)))
            encoded = np.fromiter((ids.get(word, unknown) for word in words), np.int32)
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                np.save(file, encoded)
        return np.load(path, mmap_mode="r")

    def _path(self, name: SplitName) -> Path:
        return self.existing(self.root / f"wiki.{_NAMES[name]}.tokens")

    def _cached(self, suffix: str, name: SplitName) -> Path:
        """Return the path of encoded words; its name has a hash of files and settings."""
        stats = [path.stat() for path in (self._path("train"), self._path(name))]
        facts = [self.num_words, *((stat.st_size, stat.st_mtime_ns) for stat in stats)]
        digest = hashlib.blake2b(repr(facts).encode(), digest_size=6).hexdigest()
        return self.cache_dir / f"wikitext-{name}-{digest}.{suffix}"


def _lines(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield [*line.split(), END]
