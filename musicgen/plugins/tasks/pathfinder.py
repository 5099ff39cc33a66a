"""Pathfinder: whether a dashed path connects two dots."""

from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from musicgen.errors import ParameterError, UserError
from musicgen.plugins.tasks.base import Example, ExampleCorpus, Examples, SplitName
from musicgen.validation import check_choice

_FOLDERS = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}
_LABEL_COLUMN = 3
_SPLITS = {"train": (0, 0.8), "val": (0.8, 0.9), "test": (0.9, 1)}


class Pathfinder(ExampleCorpus):
    """Grey images of the Long Range Arena (Linsley et al. 2018; Tay et al. 2021), row by row.

    Args:
        root: the folder of one size, such as `pathfinder32`.
        difficulty: length of the paths that only distract; those of `hard` are the longest.
        side: number of rows and of columns of an image.
        split_seed: seed of the split: 80 % for training, 10 % for validation, 10 % for testing.
    """

    vocab_size = 256
    num_outputs = 2
    how_to_get = (
        "unpack lra_release.gz of github.com/google-research/long-range-arena, and give the folder "
        "of one size: data.root=lra_release/pathfinder32"
    )

    def __init__(
        self,
        root: str | Path,
        *,
        difficulty: Literal["easy", "intermediate", "hard"],
        side: int,
        split_seed: int,
    ) -> None:
        check_choice("difficulty", difficulty, _FOLDERS)
        self.folder = Path(root).expanduser() / _FOLDERS[difficulty]
        self.side, self.split_seed, self.grid = side, split_seed, (side, side)

    def split(self, name: SplitName, length: int) -> Examples[tuple[Path, int]]:
        """Return the images of a split; raise `ParameterError` if `length` is too short."""
        self.check_holds_image(length)
        order = np.random.default_rng(self.split_seed).permutation(len(self._labelled))
        start, stop = (round(share * len(order)) for share in _SPLITS[name])
        return Examples([self._labelled[i] for i in order[start:stop]], self._example)

    @cached_property
    def _labelled(self) -> list[tuple[Path, int]]:
        """The images and their labels, without the empty files that the release has."""
        items = []
        for file in sorted(self.existing(self.folder / "metadata").glob("*.npy")):
            for line in file.read_text(encoding="ascii", errors="replace").splitlines():
                words = line.split()
                if len(words) <= _LABEL_COLUMN or words[_LABEL_COLUMN] not in ("0", "1"):
                    raise UserError(f"{file}: not a table of labels; {self.how_to_get}")
                path = self.existing(self.folder / words[0] / words[1])
                if path.stat().st_size:
                    items.append((path, int(words[_LABEL_COLUMN])))
        return items

    def _example(self, item: tuple[Path, int]) -> Example:
        path, label = item
        try:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("L"), np.int64)
        except (OSError, UnidentifiedImageError):
            raise UserError(f"{path}: not an image; {self.how_to_get}") from None
        if pixels.shape != self.grid:
            expected = f"expected {pixels.shape[0]}, as {path.name} has"
            raise ParameterError("side", self.side, expected)
        return Example((pixels.ravel(),), label)
