"""Examples that lie in memory or are read one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from musicgen.data.non_music.base import Example

Item = TypeVar("Item")


@dataclass(frozen=True)
class MappedExamples(Generic[Item]):
    """One example from each item."""

    items: Sequence[Item]
    example: Callable[[Item], Example]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Example:
        return self.example(self.items[index])
