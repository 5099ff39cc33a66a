"""Interface of labelled data sets that are not music."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import ParameterError, UserError

SplitName = Literal["train", "val", "test"]
Item = TypeVar("Item")
PAD = 0
"""Id of padding, in data sets whose examples differ in length."""


class Example(NamedTuple):
    """An example of a task.

    Attributes:
        sequences: ids [L] or vectors [L, C]; one, or two that are compared.
        target: its class; or the target of each token, [L].
    """

    sequences: tuple[NDArray[Any], ...]
    target: int | NDArray[np.int64]


@dataclass(frozen=True)
class Examples(Generic[Item]):
    """The examples of one split, in random access: one from each item.

    Attributes:
        lengths: of the sequences, if batches are to hold similar ones. [num_examples]
    """

    items: Sequence[Item]
    example: Callable[[Item], Example]
    lengths: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Example:
        return self.example(self.items[index])


class ExampleCorpus(ABC):
    """A data set of a task: its examples, and what a model for it needs to know.

    Attributes:
        vocab_size: number of token ids, padding included; None: tokens are vectors.
        input_dim: width C of these.
        num_outputs: logits of a model: classes, or token ids.
        grid: rows and columns of an image, whose tokens are its pixels row by row; None: no image.
    """

    vocab_size: int | None
    input_dim: int | None = None
    num_outputs: int
    grid: tuple[int, int] | None = None
    how_to_get: ClassVar[str] = ""
    """One line for whom the files are missing."""

    @abstractmethod
    def split(self, name: SplitName, length: int) -> Examples[Any]:
        """Return the examples of a split; sequences are cut to `length` tokens.

        Raises:
            UserError: files are missing or damaged.
        """

    def check_holds_image(self, length: int) -> None:
        """Raise `ParameterError` if sequences of `length` tokens do not hold all pixels."""
        assert self.grid is not None
        rows, columns = self.grid
        if length < rows * columns:
            expected = f"expected {rows * columns}, the pixels of an image"
            raise ParameterError("length", length, expected)

    def existing(self, path: Path) -> Path:
        """Return a path of the data set; raise `UserError` if it does not exist."""
        if not path.exists():
            raise UserError(f"{path}: not found; {self.how_to_get}")
        return path
