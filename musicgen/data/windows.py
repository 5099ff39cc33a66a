"""Windows of tokens: random crops for training, beginnings of pieces for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from musicgen.data.cache import TokenCache
from musicgen.tokenization.base import Tokenizer


class TrainingWindows(Dataset):
    """An endless stream of bar-aligned, augmented crops: item i depends on the seed and i alone.

    Each run of `num_pieces` items visits every piece once, in an order of its own.
    """

    def __init__(
        self, cache: TokenCache, pieces: list[int], tokenizer: Tokenizer, length: int, seed: int
    ) -> None:
        self.cache, self.pieces, self.tokenizer = cache, pieces, tokenizer
        self.length, self.seed = length, seed
        self._last: tuple[int, NDArray[np.int64]] | None = None

    def __getitem__(self, item: int) -> NDArray[np.int64]:
        """Up to `length` + 1 tokens."""
        epoch, place = divmod(item, len(self.pieces))
        piece = self.pieces[self._order(epoch)[place]]
        return self.tokenizer.sample_window(
            self.cache.mapped(piece),
            np.random.default_rng((self.seed, 1, item)),
            self.length + 1,
            bar_length=self.cache.bar_lengths[piece],
            augment=True,
            places=self.cache.places(piece),
        )

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """The pieces of an epoch; the last one is kept, as it takes a while for 100,000."""
        if self._last is None or self._last[0] != epoch:
            rng = np.random.default_rng((self.seed, 0, epoch))
            self._last = epoch, rng.permutation(len(self.pieces))
        return self._last[1]


class Beginnings(Dataset):
    """The first `length` + 1 tokens of each piece, as they are, from the longest to the shortest.

    So batches of consecutive items need little padding, and the largest comes first.
    """

    def __init__(self, cache: TokenCache, pieces: list[int], length: int) -> None:
        self.cache, self.length = cache, length
        lengths = np.minimum(cache.lengths[pieces], length + 1)
        self.pieces = [pieces[i] for i in np.argsort(-lengths, kind="stable")]

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, item: int) -> NDArray[np.int64]:
        return self.cache.mapped(self.pieces[item])[: self.length + 1].astype(np.int64)


class StreamBatches(Sampler[list[int]]):
    """The items of batch s of a stream, for one of several processes, from a given batch on.

    Args:
        batch_size: items in a process's batch.
        num_batches: batches in an epoch.
        start: the batch to begin with, asked for at the start of each epoch.
        rank, world_size: this process, of how many.
    """

    def __init__(
        self,
        batch_size: int,
        num_batches: int,
        start: Callable[[], int],
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.batch_size, self.num_batches, self.start = batch_size, num_batches, start
        self.rank, self.world_size = rank, world_size

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        start = self.start()
        # An epoch that was interrupted ends where it would have ended.
        for batch in range(start, start + self.num_batches - start % self.num_batches):
            first = (batch * self.world_size + self.rank) * self.batch_size
            yield list(range(first, first + self.batch_size))
