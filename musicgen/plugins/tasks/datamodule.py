"""Data sets that are not music: examples with a class or targets, and their batches."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Subset

from musicgen.batches import IGNORED, Batch, StreamDataModule
from musicgen.errors import ParameterError, UserError

SplitName = Literal["train", "val", "test"]
PAD = 0
"""The token of padding, in data sets whose examples differ in length."""
_GROUPS = 32
"""Number of batches over which examples are sorted by length."""


class Example(NamedTuple):
    """An example of a task.

    Attributes:
        sequences: one sequence, or two that are compared: tokens [L] or vectors [L, C].
        target: the example's class, or a target per token [L].
    """

    sequences: tuple[NDArray[Any], ...]
    target: int | NDArray[np.int64]


class Examples(Dataset):
    """The examples of one split, each made from an item when it is needed.

    Args:
        items: what examples are made from, such as paths.
        example: makes an example from an item.
        lengths: lengths of the sequences, to form batches of similar lengths; None: unknown. [N]
    """

    def __init__(
        self,
        items: Sequence[Any],
        example: Callable[[Any], Example],
        lengths: NDArray[np.int64] | None = None,
    ) -> None:
        self.items, self.example, self.lengths = items, example, lengths

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Example:
        return self.example(self.items[index])


class ExampleCorpus(ABC):
    """A data set of a task: its examples, and the sizes of a model for it.

    Attributes:
        vocab_size: number of tokens, padding included; None: the input are vectors.
        input_dim: width C of the vectors.
        num_outputs: number of logits: one per class, or per token.
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
    def split(self, name: SplitName, length: int) -> Examples:
        """Return the examples of a split, with their sequences cut to `length` tokens.

        Raises:
            UserError: files are missing or damaged.
        """

    def check_holds_image(self, length: int) -> None:
        """Raise `ParameterError` if `length` tokens are fewer than the pixels of an image."""
        pixels = math.prod(self.grid or ())
        if length < pixels:
            raise ParameterError("length", length, f"expected {pixels}, the pixels of an image")

    def existing(self, path: Path) -> Path:
        """Return a path of the data set; raise a `UserError` if it does not exist."""
        if not path.exists():
            raise UserError(f"{path}: not found; {self.how_to_get}")
        return path


class ExampleDataModule(StreamDataModule):
    """Batches of the examples of a data set that is not music.

    Args:
        corpus: the data set.
        coordinates: one: the token index; two: row and column of an image.
        settings: settings of `StreamDataModule`; sequences longer than `length` are cut.

    Raises:
        ParameterError: a number is invalid, or the examples do not have the coordinates.
    """

    def __init__(
        self, corpus: ExampleCorpus, *, coordinates: Sequence[str] = ("index",), **settings: Any
    ) -> None:
        super().__init__(coordinates=coordinates, **settings)
        if len(coordinates) > (1 if corpus.grid is None else 2):
            expected = "index" if corpus.grid is None else "index, or 2: row, column"
            raise ParameterError("coordinates", list(coordinates), f"expected {expected}")
        self.corpus = corpus

    def prepare_data(self) -> None:
        """Read or generate the examples, in one process."""
        self.split("train")

    def split(self, name: SplitName) -> Examples:
        """Return the examples of a split; raise `UserError` if it has none."""
        examples = self.corpus.split(name, self.length)
        if len(examples) == 0:
            raise UserError(f"data: no examples for {name}; give more, or fewer to other splits")
        return examples

    def train_dataloader(self) -> DataLoader:
        examples = ShuffledExamples(self.split("train"), self.seed, self.batch_size)
        return self._loader(examples, batch_sampler=self.stream(len(examples.examples)))

    def eval_dataloader(self, split: SplitName) -> DataLoader:
        examples = self.split(split)
        own, missing = self.eval_items(len(examples))
        first = examples[0]
        without_target: Any = [first._replace(target=np.full_like(first.target, IGNORED))]
        items = Subset(examples, own) + missing * without_target
        return self._loader(items, batch_size=self.share())

    def _loader(self, examples: Dataset, **kwargs: object) -> DataLoader:
        grid = self.corpus.grid if len(self.coordinates) > 1 else None
        return self.loader(examples, partial(collate, grid=grid), **kwargs)


class ShuffledExamples(Dataset):
    """An endless stream that visits all examples once per epoch, each time in a new order.

    Item i depends only on the arguments and on i.

    Args:
        seed: seed of the orders.
        group: number of consecutive items whose examples have similar lengths, if their `lengths`
            are known, so that a batch of them needs little padding.
    """

    def __init__(self, examples: Examples, seed: int, group: int) -> None:
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
        lengths = self.examples.lengths
        size = _GROUPS * self.group
        if lengths is None or self.group == 1:
            return order
        for start in range(0, len(order) - size + 1, size):
            part = order[start : start + size]
            groups = part[np.argsort(lengths[part], kind="stable")].reshape(_GROUPS, -1)
            order[start : start + size] = rng.permutation(groups).ravel()
        return order


def collate(examples: Sequence[Example], *, grid: tuple[int, int] | None = None) -> Batch:
    """Return a batch of examples: their first sequences, then their second ones, all padded.

    Args:
        grid: rows and columns of an image, whose positions are row and column; None: there are no
            positions in the batch, and the model takes token indices.
    """
    towers = zip(*(x.sequences for x in examples), strict=True)
    sequences = [torch.from_numpy(sequence) for tower in towers for sequence in tower]
    lengths = [len(sequence) for sequence in sequences]
    tokens = pad_sequence(sequences, batch_first=True, padding_value=PAD)
    labels = [torch.as_tensor(x.target) for x in examples]
    is_class = labels[0].ndim == 0  # else there is a target per token
    targets = torch.stack(labels) if is_class else pad_sequence(labels, True, IGNORED)
    index = torch.arange(max(lengths))
    positions = None
    if grid is not None:
        positions = torch.stack((index // grid[1], index % grid[1]), dim=-1)[None]
    key_mask = None
    if min(lengths) < max(lengths):
        key_mask = index < torch.tensor(lengths)[:, None]
    return Batch(tokens, targets, positions, key_mask)
