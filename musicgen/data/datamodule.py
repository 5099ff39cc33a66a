"""The LightningDataModule of a corpus of music; one subclass per source."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytorch_lightning as pl
from torch.utils.data import DataLoader

from musicgen.data.batch import collate
from musicgen.data.encoding import Limits
from musicgen.data.home import say
from musicgen.data.prepare import (
    SPLITS,
    Piece,
    Shard,
    TokenCache,
    prepare,
    prepare_shard,
)
from musicgen.data.reading import read_with_chords
from musicgen.data.windows import Beginnings, StreamBatches, TrainingWindows
from musicgen.errors import UserError
from musicgen.midi import Score
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chord_recognition import ChordSource, check_source
from musicgen.values import number, whole

T = TypeVar("T")

# Loader processes for a GPU, and the batches that each is ahead of it.
_GPU_WORKERS, _PREFETCHED = 2, 4


class MusicData(pl.LightningDataModule):
    """MIDI files to batches of tokens.

    Training sees bar-aligned random crops, augmented as the tokenizer has it; validation and
    test see the beginning of each piece.

    Args:
        tokenizer: encodes the scores.
        cache_dir: folder of the token caches.
        length: L, tokens in a training window.
        batch_size: windows in a batch, per process.
        batches_per_epoch: None makes an epoch one crop of each piece.
        val_fraction, test_fraction: parts of the corpus, by group, where it has no split itself;
            0 makes none, and all pieces stand in.
        seed: decides crops and augmentations.
        num_workers: loader processes; 0 loads in the training process; None takes 2 for a GPU,
            which are ahead of it, and 0 otherwise.
        limits: what a piece may cost and give, see `Limits`.
        prepare_workers: processes that encode the corpus; None takes one per core.
        chords: where chords come from, if the tokenizer has them: the scores' `markers`, `auto`
            (from their notes where they have no such markers), `recognised` (always from their
            notes), or `none`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        cache_dir: str | Path,
        *,
        length: int,
        batch_size: int,
        batches_per_epoch: int | None = None,
        val_fraction: float = 0.05,
        test_fraction: float = 0.05,
        seed: int = 0,
        num_workers: int | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        prepare_workers: int | None = None,
        chords: ChordSource = "auto",
    ) -> None:
        super().__init__()
        self.tokenizer, self.cache_dir = tokenizer, Path(cache_dir)
        self.length, self.batch_size = length, batch_size
        self.batches_per_epoch = batches_per_epoch
        self.fractions = val_fraction, test_fraction
        number("data.val_fraction", val_fraction)
        number("data.test_fraction", test_fraction)
        if sum(self.fractions) >= 1:
            raise UserError(
                f"data.val_fraction={val_fraction} and data.test_fraction={test_fraction}: give "
                "parts that leave something for training, such as 0.05 each"
            )
        whole("data.length", length)
        whole("data.batch_size", batch_size)
        whole("data.batches_per_epoch", batches_per_epoch, null="one crop of each piece")
        whole("data.num_workers", num_workers, 0, null="2 for a GPU, otherwise none")
        whole("data.prepare_workers", prepare_workers, null="one per core")
        whole("data.seed", seed, 0)
        self.seed, self.num_workers = seed, num_workers
        self.limits, self.prepare_workers = Limits.of(limits), prepare_workers
        check_source("data.chords", chords)
        self.chords = chords
        self.with_positions = False
        self._cache: TokenCache | None = None

    @abstractmethod
    def pieces(self) -> list[Piece]:
        """The corpus.

        Raises:
            UserError: it is missing; says where to get it and where to put it.
        """

    @staticmethod
    @abstractmethod
    def read(path: Path) -> Score:
        """The music at a piece's path.

        Raises:
            UserError: it cannot be read.
        """

    def prepare_data(self) -> None:
        """Encode the corpus, on one process."""
        _ = self.cache

    @property
    def reader(self) -> Callable[[Path], Score]:
        """What the preparation reads with: `read`, then chords."""
        if not self.tokenizer.chords:
            return self.read
        return partial(read_with_chords, read=self.read, chords=self.chords)

    @property
    def cache(self) -> TokenCache:
        """The encoded corpus; encodes it first where it must."""
        if self._cache is None:
            self._cache = self._prepare(prepare)
        return self._cache

    def prepare_shard(self, shard: Shard) -> TokenCache | None:
        """Encode a part of the corpus; gives the cache once all parts are there."""
        self._cache = self._prepare(partial(prepare_shard, shard))
        return self._cache

    def _prepare(self, function: Callable[..., T]) -> T:
        return function(
            self.pieces(),
            self.reader,
            self.tokenizer,
            self.cache_dir,
            fractions=self.fractions,
            limits=self.limits,
            num_workers=self.prepare_workers,
        )

    def split(self, name: str) -> list[int]:
        """The cache's pieces of a split: all of them where the split has none.

        Raises:
            UserError: there is no such split.
        """
        if name not in SPLITS:
            raise UserError(f"split={name}: give one of {', '.join(SPLITS)}")
        pieces = self.cache.pieces(name)
        if pieces:
            return pieces
        say(
            f"no {name} pieces among {len(self.cache)}: all pieces stand in, so the loss says "
            "nothing about new music",
            style="yellow",
        )
        return list(range(len(self.cache)))

    def train_dataloader(self) -> DataLoader:
        pieces = self.split("train")
        windows = TrainingWindows(self.cache, pieces, self.tokenizer, self.length, self.seed)
        trainer = self.trainer
        world_size = trainer.world_size if trainer else 1
        batches = StreamBatches(
            self.batch_size,
            self.batches_per_epoch or max(1, len(pieces) // (self.batch_size * world_size)),
            self._batches_seen,
            trainer.global_rank if trainer else 0,
            world_size,
        )
        return self._loader(windows, batch_sampler=batches)

    def val_dataloader(self) -> DataLoader:
        return self._evaluation("val")

    def test_dataloader(self) -> DataLoader:
        return self._evaluation("test")

    def _evaluation(self, split: str) -> DataLoader:
        pieces = self.split(split)
        if self.trainer:
            # One process without a piece would leave the others waiting for it.
            rank, world_size = self.trainer.global_rank, self.trainer.world_size
            pieces = pieces[rank::world_size] or pieces[:1]
        windows = Beginnings(self.cache, pieces, self.length)
        return self._loader(windows, batch_size=self.batch_size)

    def _batches_seen(self) -> int:
        """Training batches behind us, also after a resume; none where one overfits the first."""
        if self.trainer is None or getattr(self.trainer, "overfit_batches", False):
            return 0
        # Not from the optimizer's steps: the last one of an epoch may be of fewer batches.
        progress = self.trainer.fit_loop.epoch_loop.batch_progress
        return progress.total.processed  # type: ignore[attr-defined]

    def _loader(self, dataset: TrainingWindows | Beginnings, **kwargs: object) -> DataLoader:
        on_gpu = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        num_workers = self.num_workers
        if num_workers is None:
            num_workers = _GPU_WORKERS if on_gpu else 0
        return DataLoader(
            dataset,
            collate_fn=partial(
                collate,
                pad_id=self.tokenizer.vocabulary.pad_id,
                locate=self.tokenizer.positions if self.with_positions else None,
            ),
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            prefetch_factor=_PREFETCHED if num_workers else None,
            pin_memory=on_gpu,
            **kwargs,  # type: ignore[arg-type]
        )
