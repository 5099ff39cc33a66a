"""WikiText: articles of an encyclopedia, a token for each word."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from musicgen.console import log
from musicgen.files import atomic_path, write_text
from musicgen.plugins.tasks.base import Example, ExampleCorpus, Examples, SplitName

SPECIAL = ("PAD", "MASK")
UNKNOWN, END = "<unk>", "<eos>"
_NAMES: dict[SplitName, str] = {"train": "train", "val": "valid", "test": "test"}


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

    def split(self, name: SplitName, length: int) -> Examples[int]:
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
