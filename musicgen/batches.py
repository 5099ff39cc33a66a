"""Batches of a task, and which items of a data set they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from torch import Tensor
from torch.utils.data import Sampler

IGNORED = -100
"""Target that losses ignore."""


@dataclass
class Batch:
    """Inputs and targets of a task.

    Attributes:
        tokens: ids [B, L], or vectors [B, L, C].
        targets: of each token [B, L], such as the next one, or of each example [N]; `IGNORED` where
            there is none.
        positions: the coordinates that the model reads, from the token index on. [1|B, L, P]
        key_mask: [B, L], false at padding that tokens before it would see; None: there is none.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor
    key_mask: Tensor | None = None

    @property
    def num_targets(self) -> Tensor:
        return (self.targets != IGNORED).sum()

    def pin_memory(self) -> Batch:
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        return Batch(**{k: None if x is None else x.pin_memory() for k, x in tensors.items()})


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
