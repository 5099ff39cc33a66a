"""Made images: whether two marks are near each other."""

from __future__ import annotations

import numpy as np

from musicgen.data.non_music.base import Example, ExampleCorpus, MappedExamples, SplitName
from musicgen.validation import check_int

BACKGROUND, MARK = 0, 1


class Marks(ExampleCorpus):
    """Images with two marks; the classes, equally frequent, are far and near.

    Marks are near if neither their rows nor their columns differ by more than `reach`. Among the
    token indices, row by row, near marks lie in bands a row apart.

    Args:
        side: rows and columns of an image.
        reach: largest difference of rows, and of columns, of near marks.
        num_train, num_val, num_test: number of images.
        corpus_seed: decides the images.
    """

    vocab_size = 2
    num_outputs = 2

    def __init__(
        self,
        *,
        side: int,
        reach: int,
        num_train: int,
        num_val: int,
        num_test: int,
        corpus_seed: int,
    ) -> None:
        check_int("reach", reach, 1, maximum=side - 2)  # both classes exist
        self.sizes = {"train": num_train, "val": num_val, "test": num_test}
        self.side, self.reach, self.corpus_seed = side, reach, corpus_seed
        self.grid = (side, side)

    def split(self, name: SplitName, length: int) -> MappedExamples[int]:
        """Return the images of a split; `length` holds all pixels."""
        self.check_holds_image(length)
        stream = list(self.sizes).index(name)

        def example(item: int) -> Example:
            rng = np.random.default_rng((self.corpus_seed, stream, item))
            label = int(rng.integers(2))
            while True:
                marks = rng.integers(self.side, size=(2, 2))  # [mark, row and column]
                distance = int(abs(marks[0] - marks[1]).max())
                if distance and (distance <= self.reach) == bool(label):
                    break
            image = np.full((self.side, self.side), BACKGROUND, np.int64)
            image[marks[:, 0], marks[:, 1]] = MARK
            return Example((image.ravel(),), label)

        return MappedExamples(range(self.sizes[name]), example)
