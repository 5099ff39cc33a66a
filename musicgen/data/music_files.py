"""Music files as token sequences in memory, for a training loop of your own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from musicgen.midi import read
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.recognition import with_chords
from musicgen.tokenization.vocabulary import IntArray
from musicgen.validation import check_int


class MusicFiles(Dataset):
    """The bar-aligned windows of music files, one after another, without augmentation.

    An item is the ids of a window, int64, at most [`length` + 1]: all but the last are inputs, all
    but the first are targets. Each window begins at the last bar that the one before has reached;
    of a bar with more tokens, the rest is left out.
    Files are encoded when the dataset is made, and stay in memory. `MusicDataModule` has more: a
    cache on disk, splits without copies of pieces, random crops and transpositions.

    Args:
        files: MIDI files and scores.
        length: L, tokens of input in a window.

    Raises:
        UserError: a file cannot be read.
    """

    def __init__(self, files: Iterable[str | Path], tokenizer: Tokenizer, length: int) -> None:
        check_int("length", length)
        self._windows: list[IntArray] = []
        for file in files:
            score = tokenizer.normalise_rhythm(read(file))
            if tokenizer.chords:
                score = with_chords(score, "auto")
            tokens = tokenizer.encode(score)
            starts = tokenizer.crops.starts(tokens, bar_length=tokenizer.bar_length(score))
            bar, end = 0, 0
            while end < len(tokens):
                window = tokenizer.crops.crop(tokens, starts[bar:], length + 1)
                self._windows.append(window)
                end = int(starts[bar, 0]) + len(window)
                last_reached = int(starts[:, 0].searchsorted(end, side="right")) - 1
                bar = max(bar + 1, last_reached)
                if bar == len(starts):
                    break

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, item: int) -> Tensor:
        return torch.from_numpy(self._windows[item].copy())
