"""The interface of data sets that are not music: examples with a class or targets."""

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
"""The token of padding, in data sets whose examples differ in length."""


class Example(NamedTuple):
    """An example of a task.

    Attributes:
        sequences: one sequence, or two that are compared: tokens [L] or vectors [L, C].
        target: the example's class, or a target for each token [L].
    """

    sequences: tuple[NDArray[Any], ...]
    target: int | NDArray[np.int64]


@dataclass(frozen=True)
class Examples(Generic[Item]):
    """The examples of one split, each made from an item when it is needed.

    Attributes:
        lengths: lengths of the sequences, by which batches are formed; None: by no order. [N]
    """

    items: Sequence[Item]
    example: Callable[[Item], Example]
    lengths: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Example:
        return self.example(self.items[index])


class ExampleCorpus(ABC):
    """A data set of a task: its examples, and the sizes of a model for it.

    Attributes:
        vocab_size: number of tokens, padding included; None: the input are vectors.
        input_dim: width C of the vectors.
        num_outputs: number of logits: one for each class, or for each token.
        grid: rows and columns of an image, whose tokens are its pixels row by row; None: examples
            are not images.
    """

    vocab_size: int | None
    input_dim: int | None = None
    num_outputs: int
    grid: tuple[int, int] | None = None
    how_to_get: ClassVar[str] = ""
    """How to download the files: the end of the message that says that they are missing."""

    @abstractmethod
    def split(self, name: SplitName, length: int) -> Examples[Any]:
        """Return the examples of a split, with their sequences cut to `length` tokens.

        Raises:
            UserError: files are missing or damaged.
        """

    def check_holds_image(self, length: int) -> None:
        """Raise `ParameterError` if `length` tokens are fewer than the pixels of an image."""
        assert self.grid is not None
        rows, columns = self.grid
        if length < rows * columns:
            expected = f"expected {rows * columns}, the pixels of an image"
            raise ParameterError("length", length, expected)

    def existing(self, path: Path) -> Path:
        """Return a path of the data set; raise a `UserError` if it does not exist."""
        if not path.exists():
            raise UserError(f"{path}: not found; {self.how_to_get}")
        return path
