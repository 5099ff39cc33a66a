"""Images as sequences of pixels: CIFAR-10 and Pathfinder."""

import io
import pickle
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from musicgen.errors import ParameterError, UserError
from musicgen.plugins.tasks.datamodule import Example, ExampleCorpus, Examples, SplitName
from musicgen.validation import check_choice, check_int, check_seed

SIDE = 32
_TRAIN_FILES = tuple(f"data_batch_{i}" for i in range(1, 6))
_LUMA = np.array([0.2989, 0.5870, 0.1140])  # of red, green, blue
_ALLOWED = {  # the classes that unpickling the arrays needs
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
_FOLDERS = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}
_LABEL_COLUMN = 3
_SPLITS = {"train": (0, 0.8), "val": (0.8, 0.9), "test": (0.9, 1)}


class CIFAR10(ExampleCorpus):
    """Photographs of ten kinds of things (Krizhevsky 2009), 32 × 32 pixels row by row.

    Args:
        root: the folder `cifar-10-batches-py`.
        colours: grey: a pixel is one of 256 tokens (Tay et al. 2021); rgb: a vector of three
            numbers from −1 to 1 (Alfons 2022).
        num_val: number of training images that are used for validation.
        val_seed: seed of the draw of these images; null: they are the last ones.
    """

    num_outputs = 10
    grid = (SIDE, SIDE)
    how_to_get = (
        "unpack cifar-10-python.tar.gz from www.cs.toronto.edu/~kriz/cifar.html, and give its "
        "folder: data.root=cifar-10-batches-py"
    )

    def __init__(
        self,
        root: str | Path,
        *,
        colours: Literal["grey", "rgb"],
        num_val: int,
        val_seed: int | None,
    ) -> None:
        check_choice("colours", colours, ("grey", "rgb"))
        check_int("num_val", num_val)
        check_seed("val_seed", 0 if val_seed is None else val_seed)
        self.root, self.colours = Path(root).expanduser(), colours
        self.num_val, self.val_seed = num_val, val_seed
        self.vocab_size, self.input_dim = (256, None) if colours == "grey" else (None, 3)

    def split(self, name: SplitName, length: int) -> Examples:
        """Return the images of a split; raise `ParameterError` if `length` is too short."""
        self.check_holds_image(length)
        files = ("test_batch",) if name == "test" else _TRAIN_FILES
        pixels, labels = _read(tuple(self.existing(self.root / file) for file in files))
        items = np.arange(len(labels))
        if name != "test":
            if self.val_seed is not None:
                items = np.random.default_rng(self.val_seed).permutation(items)
            items = items[-self.num_val :] if name == "val" else items[: -self.num_val]

        def example(item: int) -> Example:
            colours = pixels[item].reshape(3, -1).T  # [L, 3]
            if self.colours == "grey":
                return Example((np.rint(colours @ _LUMA).astype(np.int64),), int(labels[item]))
            return Example(((colours / 127.5 - 1).astype(np.float32),), int(labels[item]))

        return Examples(items.tolist(), example)


@cache
def _read(paths: tuple[Path, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return pixels [N, 3072], channel by channel, and labels [N] of files."""
    pixels, labels = [], []
    for path in paths:
        try:
            batch = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
            images, classes = batch[b"data"], np.asarray(batch[b"labels"], np.int64)
            if images.dtype != np.uint8 or images.shape != (len(classes), 3 * SIDE * SIDE):
                raise ValueError
        except Exception:  # damaged pickles raise exceptions of many types
            raise UserError(f"{path}: not a batch of CIFAR-10; {CIFAR10.how_to_get}") from None
        pixels.append(images)
        labels.append(classes)
    return np.concatenate(pixels), np.concatenate(labels)


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that accepts arrays only, and runs no other code."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy._core", "numpy.core")
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is refused")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


class Pathfinder(ExampleCorpus):
    """Grey images of the Long Range Arena (Linsley et al. 2018; Tay et al. 2021), row by row.

    Args:
        root: the folder of one size, such as `pathfinder32`.
        difficulty: length of the distractor paths; `hard` has the longest.
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
        check_int("side", side)
        check_seed("split_seed", split_seed)
        self.folder = Path(root).expanduser() / _FOLDERS[difficulty]
        self.side, self.split_seed, self.grid = side, split_seed, (side, side)

    def split(self, name: SplitName, length: int) -> Examples:
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
