"""Batches of a task, and loaders of an endless stream of training items."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import pytorch_lightning as pl
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from musicgen.errors import ParameterError
from musicgen.validation import check_int, check_seed

IGNORED = -100
"""Target that losses ignore."""


class Batch(NamedTuple):
    """Inputs and targets of a task.

    Attributes:
        tokens: ids [B, L], or vectors [B, L, C].
        targets: of each token [B, L], such as the next one, or of each example [N]; `IGNORED` where
            a token has no target.
        positions: the coordinates that the model reads, from the token index on; None: the token
            index alone. [1|B, L, P]
        key_mask: [B, L], false at padding that other tokens must not attend to; None: no padding.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor | None = None
    key_mask: Tensor | None = None

    @property
    def num_targets(self) -> Tensor:
        return (self.targets != IGNORED).sum()


class StreamBatches(Sampler[list[int]]):
    """Yields the indices of the items of each batch of a stream, for one of several processes.

    Args:
        batch_size: items of a batch for this process.
        num_batches: batches in an epoch.
        start: returns the number of the first batch; called at the start of each epoch.
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


class StreamDataModule(pl.LightningDataModule):
    """Loaders of training items and of items for evaluation, in each process.

    Args:
        length: L, largest number of tokens of an item.
        batch_size: items in a batch, of all processes together.
        batches_per_epoch: None makes an epoch one pass over the data.
        seed: decides the stream.
        num_workers: loader processes; 0 loads in the training process; None: 2 for a GPU, else 0.
        coordinates: names of the columns of `Batch.positions`.
    """

    def __init__(
        self,
        *,
        length: int,
        batch_size: int,
        batches_per_epoch: int | None,
        seed: int,
        num_workers: int | None,
        coordinates: Sequence[str],
    ) -> None:
        super().__init__()
        check_int("length", length)
        check_int("batch_size", batch_size, maximum=2**16)
        check_int("batches_per_epoch", batches_per_epoch, none_means="all")
        check_seed("seed", seed)
        check_int("num_workers", num_workers, 0, none_means="")
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.batches_per_epoch, self.num_workers = batches_per_epoch, num_workers
        self.coordinates = tuple(coordinates)

    def process(self) -> tuple[int, int]:
        """Return the rank of this process, and the number of processes."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def share(self, world_size: int | None = None) -> int:
        """Return the number of items of a batch that each process computes.

        Args:
            world_size: number of processes; None: those of the trainer.

        Raises:
            ParameterError: the processes cannot have equal shares.
        """
        number = self.process()[1] if world_size is None else world_size
        if self.batch_size % number:
            expected = f"expected a multiple of {number}, the processes, which share each batch"
            raise ParameterError("loader.batch_size", self.batch_size, expected)
        return self.batch_size // number

    def eval_items(self, number: int) -> tuple[range, int]:
        """Return which of some items this process evaluates, and how many it lacks, 0 or 1.

        In place of one that it lacks it evaluates an item without targets: processes that share
        the weights of a layer compute all batches together.
        """
        rank, world_size = self.process()
        own = range(rank, number, world_size)
        return own, -(-number // world_size) - len(own)

    def stream(self, num_items: int) -> StreamBatches:
        """Return the batches of an epoch for this process.

        Args:
            num_items: in the training data.
        """
        num_batches = self.batches_per_epoch or max(1, num_items // self.batch_size)
        return StreamBatches(self.share(), num_batches, self._batches_seen, *self.process())

    def on_gpu(self) -> bool:
        """Return whether the model that gets the batches is on an NVIDIA GPU."""
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def overfits(self) -> bool:
        """Return whether training repeats its first batches (Lightning's `overfit_batches`)."""
        return bool(self.trainer is not None and getattr(self.trainer, "overfit_batches", 0))

    def eval_dataloader(self, split: Literal["val", "test"]) -> DataLoader:
        """Return the batches of a held-out split for this process."""
        raise NotImplementedError

    def val_dataloader(self) -> DataLoader:
        if self.overfits():  # to see whether these batches can be learned
            loader: DataLoader = self.train_dataloader()
            return loader
        return self.eval_dataloader("val")

    def test_dataloader(self) -> DataLoader:
        return self.eval_dataloader("test")

    def _batches_seen(self) -> int:
        """Return the number of past training batches, also after a resume; 0 when overfitting."""
        if self.trainer is None or self.overfits():
            return 0
        # Not from the optimizer's steps: the last one of an epoch may have fewer batches.
        progress = self.trainer.fit_loop.epoch_loop.batch_progress
        return progress.total.processed  # type: ignore[attr-defined]

    def loader(
        self, items: Dataset, collate: Callable[[list[Any]], Batch], **kwargs: object
    ) -> DataLoader:
        """Return a loader that suits the device; `kwargs` are those of torch's."""
        on_gpu = self.on_gpu()
        num_workers = 2 * on_gpu if self.num_workers is None else self.num_workers
        return DataLoader(
            items,
            collate_fn=collate,
            num_workers=num_workers,
            worker_init_fn=_leave_group,
            persistent_workers=num_workers > 0,
            prefetch_factor=4 if num_workers else None,
            pin_memory=on_gpu,
            **kwargs,  # type: ignore[arg-type]
        )


def _leave_group(worker: int) -> None:
    """Leave the process group, so that Ctrl-C, `timeout` and SLURM stop only the main process."""
    if hasattr(os, "setpgrp"):  # else Windows
        os.setpgrp()
