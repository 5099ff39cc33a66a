"""The LightningDataModule of a corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset

from musicgen.batches import Batch, StreamBatches
from musicgen.data.corpora.base import Corpus
from musicgen.data.loading.batch import collate, collate_positioned
from musicgen.data.loading.windows import (
    EvalWindows,
    PositionedWindows,
    TrainingWindows,
    WindowStart,
)
from musicgen.data.preparation.encoded_corpus import EncodedCorpus
from musicgen.errors import ParameterError
from musicgen.tokenization.base import Tokenizer
from musicgen.validation import check_choice, check_float, check_int


class MusicDataModule(EncodedCorpus, pl.LightningDataModule):
    """Batches of a corpus's tokens.

    Training uses bar-aligned crops with the tokenizer's augmentations, see `TrainingWindows`;
    validation and test use the beginning of each piece.

    Args:
        length: L, tokens in a training window.
        batch_size: windows in a batch, per process.
        batches_per_epoch: None makes an epoch one crop of each piece.
        window, skip_beginning: where training windows begin; see `TrainingWindows`.
        seed: decides crops and augmentations.
        num_workers: loader processes; 0 loads in the training process; None uses 2 for a GPU,
            and 0 otherwise.
        coordinates: names of the columns of `Batch.positions`, see `TokenCoordinates`.
        encoding: as for `EncodedCorpus`.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        cache_dir: str | Path,
        *,
        length: int,
        batch_size: int,
        batches_per_epoch: int | None = None,
        window: WindowStart = "random",
        skip_beginning: float = 0.0,
        seed: int = 0,
        num_workers: int | None = None,
        coordinates: Sequence[str] = ("index",),
        **encoding: Any,
    ) -> None:
        pl.LightningDataModule.__init__(self)
        EncodedCorpus.__init__(self, corpus, tokenizer, cache_dir, **encoding)
        check_int("length", length)
        check_int("batch_size", batch_size)
        check_int("batches_per_epoch", batches_per_epoch, none_means="one crop of each piece")
        check_choice("window", window, get_args(WindowStart))
        check_float("skip_beginning", skip_beginning, maximum=1)
        if skip_beginning and window != "beginning":
            raise ParameterError(
                "skip_beginning", skip_beginning, "expected 0, or window=beginning"
            )
        check_int("seed", seed, 0)
        check_int("num_workers", num_workers, 0, none_means="2 for a GPU, otherwise none")
        tokenizer.check_coordinates(coordinates)
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.batches_per_epoch, self.num_workers = batches_per_epoch, num_workers
        self.window, self.skip_beginning = window, skip_beginning
        self.coordinates = tuple(coordinates)

    def prepare_data(self) -> None:
        """Encode the corpus, in one process."""
        _ = self.cache

    def train_dataloader(self) -> DataLoader:
        pieces = self.split("train")
        windows = TrainingWindows(
            self.cache,
            pieces,
            self.tokenizer,
            self.length,
            self.seed,
            window=self.window,
            skip_beginning=self.skip_beginning,
        )
        rank, world_size = self._process()
        num_batches = self.batches_per_epoch or len(pieces) // (self.batch_size * world_size)
        batches = StreamBatches(
            self.batch_size, max(1, num_batches), self._batches_seen, rank, world_size
        )
        return self._loader(windows, batch_sampler=batches)

    def val_dataloader(self) -> DataLoader:
        if self._overfits():  # the question is whether these batches can be learned
            return self.train_dataloader()
        return self._eval_dataloader("val")

    def test_dataloader(self) -> DataLoader:
        return self._eval_dataloader("test")

    def _eval_dataloader(self, split: str) -> DataLoader:
        pieces = self.split(split)
        rank, world_size = self._process()
        # A process without a batch would leave the others waiting for it: it gets one without
        # targets.
        length = self.length if rank < len(pieces) else 0
        windows = EvalWindows(self.cache, pieces[rank::world_size] or pieces[:1], length)
        return self._loader(windows, batch_size=self.batch_size)

    def _process(self) -> tuple[int, int]:
        """Return the rank of this process, and the number of processes."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _batches_seen(self) -> int:
        """Return the number of past training batches, also after a resume; 0 when overfitting."""
        if self.trainer is None or self._overfits():
            return 0
        # Not from the optimizer's steps: the last one of an epoch may have fewer batches.
        progress = self.trainer.fit_loop.epoch_loop.batch_progress
        return progress.total.processed  # type: ignore[attr-defined]

    def _overfits(self) -> bool:
        return bool(self.trainer is not None and getattr(self.trainer, "overfit_batches", 0))

    def _loader(self, dataset: TrainingWindows | EvalWindows, **kwargs: object) -> DataLoader:
        on_gpu = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        num_workers = self.num_workers
        if num_workers is None:
            num_workers = 2 if on_gpu else 0
        pad_id = self.tokenizer.vocabulary.pad_id
        items: Dataset = dataset
        collate_items: Callable[..., Batch] = collate
        if self.coordinates != ("index",):
            items = PositionedWindows(dataset, self.tokenizer, self.coordinates)
            collate_items = collate_positioned
        return DataLoader(
            items,
            collate_fn=partial(collate_items, pad_id=pad_id),
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            prefetch_factor=4 if num_workers else None,
            pin_memory=on_gpu,
            **kwargs,  # type: ignore[arg-type]
        )
