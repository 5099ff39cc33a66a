"""Made samples of published data sets, in their files' formats."""

import pickle
from pathlib import Path

import numpy as np
from PIL import Image

REVIEWS = {"pos": "a fine film, ", "neg": "a dull film, "}


def write_imdb(root: Path) -> Path:
    for split in ("train", "test"):
        for label, text in REVIEWS.items():
            folder = root / split / label
            folder.mkdir(parents=True)
            for i in range(4):
                (folder / f"{i}_7.txt").write_text(f"{split} {text * (i + 1)}é")
    return root


def write_aan(root: Path) -> Path:
    root.mkdir()
    for split in ("train", "eval", "test"):
        lines = [f"{i % 2}.0\tP{i}\tQ{i}\tabout {i}\t{'about' * i}" for i in range(6)]
        (root / f"new_aan_pairs.{split}.tsv").write_text("\n".join(lines) + "\n")
    return root


def write_cifar10(root: Path) -> Path:
    root.mkdir()
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        batch = {
            b"data": rng.integers(256, size=(4, 3072), dtype=np.uint8),
            b"labels": [3, 1, 4, 1],
        }
        (root / name).write_bytes(pickle.dumps(batch, protocol=2))
    return root


def write_pathfinder(root: Path, side: int = 32) -> Path:
    folder = root / "curv_contour_length_14"
    (folder / "metadata").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part in ("0", "1"):
        (folder / "imgs" / part).mkdir(parents=True)
        lines = []
        for i in range(10):
            lines.append(f"imgs/{part} sample_{i}.png {i} {i % 2} 1.8 6 2 1 3 0.3 0")
            pixels = rng.integers(256, size=(side, side), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / lines[-1].replace(" ", "/", 1).split()[0])
        (folder / "metadata" / f"{part}.npy").write_text("\n".join(lines) + "\n")
    (folder / "imgs/1/sample_9.png").write_bytes(b"")  # as a few in the release
    return root


def write_wikitext(root: Path) -> Path:
    root.mkdir()
    for name, count in {"train": 12, "valid": 3, "test": 3}.items():
        text = " \n = A title = \n \n" + " the cat saw the <unk> dog . \n" * count
        (root / f"wiki.{name}.tokens").write_text(
            text + (" a new word \n" if name == "test" else "")
        )
    return root


SAMPLES = {
    "text": write_imdb,
    "retrieval": write_aan,
    "image": write_cifar10,
    "pathfinder": write_pathfinder,
    "cifar10_1d": write_cifar10,
    "cifar10_2d": write_cifar10,
    "language_modeling": write_wikitext,
}
