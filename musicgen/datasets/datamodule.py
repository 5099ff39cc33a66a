"""The LightningDataModule of a data set of examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from musicgen.batches import IGNORED, Batch, StreamBatches
from musicgen.datasets.base import PAD, Example, ExampleCorpus, Examples, SplitName
from musicgen.errors import ParameterError
from musicgen.validation import check_int

_GROUPS = 32
"""Batches among which examples are sorted by length."""


class ExampleDataModule(pl.LightningDataModule):
    """Batches of the examples of a data set that is not music.

    Args:
        length: most tokens of a sequence; longer ones are cut.
        batch_size: examples in a batch, per process.
        batches_per_epoch: None makes an epoch each example once, but for an incomplete batch.
        seed: decides the order of training examples, new in each epoch.
        num_workers: loader processes; 0 loads in the training process; None uses 2 for a GPU,
            and 0 otherwise.
        coordinates: names of the columns of `Batch.positions`. One is the token index; two are
            row and column of an image.

    Raises:
        ParameterError: a number is invalid, or the examples lack the coordinates.
    """

    def __init__(
        self,
        corpus: ExampleCorpus,
        *,
        length: int,
        batch_size: int,
        batches_per_epoch: int | None = None,
        seed: int = 0,
        num_workers: int | None = None,
        coordinates: Sequence[str] = ("index",),
    ) -> None:
        super().__init__()
        check_int("length", length)
        check_int("batch_size", batch_size)
        check_int("batches_per_epoch", batches_per_epoch, none_means="each example once")
        check_int("seed", seed, 0)
        check_int("num_workers", num_workers, 0, none_means="2 for a GPU, otherwise none")
        num_coordinates = 1 if corpus.grid is None else 2
        if len(coordinates) > num_coordinates:
            expected = (
                "expected index" if corpus.grid is None else "expected index, or 2: row, column"
            )
            raise ParameterError("coordinates", list(coordinates), expected)
        self.corpus, self.length, self.batch_size = corpus, length, batch_size
        self.batches_per_epoch, self.seed, self.num_workers = batches_per_epoch, seed, num_workers
        self.coordinates = tuple(coordinates)

    def prepare_data(self) -> None:
        """Read or generate the examples, in one process."""
        self.split("train")

    def split(self, name: SplitName) -> Examples:
        """Return the examples of a split."""
        return self.corpus.split(name, self.length)

    def train_dataloader(self) -> DataLoader:
        rank, world_size = self._process()
        group = self.batch_size * world_size
        examples = ShuffledExamples(self.split("train"), self.seed, group)
        num_batches = self.batches_per_epoch or len(examples.examples) // group
        batches = StreamBatches(
            self.batch_size, max(1, num_batches), self._batches_seen, rank, world_size
        )
        return self._loader(examples, batch_sampler=batches)

    def val_dataloader(self) -> DataLoader:
        if self._overfits():  # the question is whether these batches can be learned
            return self.train_dataloader()
        return self._eval_dataloader("val")

    def test_dataloader(self) -> DataLoader:
        return self._eval_dataloader("test")

    def _eval_dataloader(self, split: SplitName) -> DataLoader:
        rank, world_size = self._process()
        return self._loader(
            EvalExamples(self.split(split), rank, world_size), batch_size=self.batch_size
        )

    def _process(self) -> tuple[int, int]:
        """Return the rank of this process, and the number of processes."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _batches_seen(self) -> int:
        """Return the number of past training batches, also after a resume; 0 when overfitting."""
        if self.trainer is None or self._overfits():
            return 0
        progress = self.trainer.fit_loop.epoch_loop.batch_progress
        return progress.total.processed  # type: ignore[attr-defined]

    def _overfits(self) -> bool:
        return bool(self.trainer is not None and getattr(self.trainer, "overfit_batches", 0))

    def _loader(self, examples: Dataset, **kwargs: object) -> DataLoader:
        on_gpu = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        num_workers = self.num_workers
        if num_workers is None:
            num_workers = 2 if on_gpu else 0
        grid = self.corpus.grid if len(self.coordinates) > 1 else None
        return DataLoader(
            examples,
            collate_fn=partial(collate, grid=grid),
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            prefetch_factor=4 if num_workers else None,
            pin_memory=on_gpu,
            **kwargs,  # type: ignore[arg-type]
        )


class ShuffledExamples(Dataset):
    """An endless stream, which visits all examples in each epoch, in a new order.

    Item i depends on the arguments and i alone.

    Args:
        group: items whose examples, if their `lengths` are known, have similar lengths: a batch of
            them needs little padding.
    """

    def __init__(self, examples: Examples, seed: int, group: int = 1) -> None:
        self.examples, self.seed, self.group = examples, seed, group
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, np.int64))

    def __getitem__(self, item: int) -> Example:
        epoch, index = divmod(item, len(self.examples))
        if self._order[0] != epoch:
            rng = np.random.default_rng((self.seed, epoch))
            self._order = epoch, self._draw(rng)
        return self.examples[int(self._order[1][index])]

    def _draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        order = rng.permutation(len(self.examples))
        lengths = getattr(self.examples, "lengths", None)
        size = _GROUPS * self.group
        if lengths is None or self.group == 1:
            return order
        for start in range(0, len(order) - size + 1, size):
            part = order[start : start + size]
            groups = part[np.argsort(lengths[part], kind="stable")].reshape(_GROUPS, -1)
            order[start : start + size] = rng.permutation(groups).ravel()
        return order


class EvalExamples(Dataset):
    """Every `world_size`-th example, from `rank` on.

    A process without an example would leave the others waiting: it gets one without a target.
    """

    def __init__(self, examples: Examples, rank: int, world_size: int) -> None:
        self.examples = examples
        self.indices = range(rank, len(examples), world_size)

    def __len__(self) -> int:
        return max(1, len(self.indices))

    def __getitem__(self, item: int) -> Example:
        if not self.indices:
            example = self.examples[0]
            return example._replace(target=np.full_like(example.target, IGNORED))
        return self.examples[self.indices[item]]


def collate(examples: Sequence[Example], *, grid: tuple[int, int] | None = None) -> Batch:
    """Pad examples to a batch; the rows are all first sequences, then all second ones.

    Args:
        grid: rows and columns of images whose positions are wanted; None: token indices.
    """
    rows = [
        sequence
        for tower in zip(*(x.sequences for x in examples), strict=True)
        for sequence in tower
    ]
    lengths = [len(row) for row in rows]
    tokens = _padded(rows, max(lengths), PAD)
    if isinstance(examples[0].target, np.ndarray) and examples[0].target.ndim:
        targets = _padded([np.asarray(x.target) for x in examples], max(lengths), IGNORED)
    else:
        targets = torch.tensor([int(x.target) for x in examples])
    index = torch.arange(max(lengths))
    positions = index[:, None]
    if grid is not None:
        positions = torch.stack((index // grid[1], index % grid[1]), dim=-1)
    key_mask = None
    if min(lengths) < max(lengths):
        key_mask = index < torch.tensor(lengths)[:, None]
    return Batch(tokens, targets, positions[None], key_mask)


def _padded(rows: Sequence[NDArray], length: int, value: int) -> Tensor:
    padded = np.full((len(rows), length, *rows[0].shape[1:]), value, rows[0].dtype)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(padded)
