"""Windows of tokens: random crops for training, the beginnings of pieces for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from musicgen.data.preparation.token_cache import TokenCache
from musicgen.tokenization.base import Tokenizer


class TrainingWindows(Dataset):
    """An endless stream of bar-aligned, augmented crops; item i depends on the seed and i alone.

    Each run of `num_pieces` items visits every piece once, in a new order.
    """

    def __init__(
        self, cache: TokenCache, pieces: list[int], tokenizer: Tokenizer, length: int, seed: int
    ) -> None:
        self.cache, self.pieces, self.tokenizer = cache, pieces, tokenizer
        self.length, self.seed = length, seed
        self._last_order = (-1, np.empty(0, np.int64))

    def __getitem__(self, item: int) -> NDArray[np.int64]:
        """Return up to `length` + 1 tokens."""
        epoch, index = divmod(item, len(self.pieces))
        if self._last_order[0] != epoch:  # cached, since large ones are slow
            rng = np.random.default_rng((self.seed, 0, epoch))
            self._last_order = epoch, rng.permutation(len(self.pieces))
        piece = self.pieces[self._last_order[1][index]]
        return self.tokenizer.sample_window(
            self.cache.mapped(piece),
            np.random.default_rng((self.seed, 1, item)),
            self.length + 1,
            bar_length=self.cache.bar_lengths[piece],
            augment=True,
            crop_starts=self.cache.crop_starts(piece),
        )


class EvalWindows(Dataset):
    """The first `length` + 1 tokens of each piece, from the longest to the shortest.

    Batches of consecutive items therefore need little padding, and the largest comes first.
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
    """The items of each batch of a stream, for one of several processes.

    Args:
        num_batches: batches in an epoch.
        start: returns the first batch; called at the start of each epoch.
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
        # An interrupted epoch ends where it would have ended.
        for batch in range(start, start + self.num_batches - start % self.num_batches):
            first = (batch * self.world_size + self.rank) * self.batch_size
            yield list(range(first, first + self.batch_size))
