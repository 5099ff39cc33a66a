"""A dataset of music files as token sequences in memory, for your own training loop."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from musicgen.errors import UserError
from musicgen.midi import read
from musicgen.midi.score import IntArray
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chord_recognition import with_chords
from musicgen.validation import check_int


class MusicFiles(Dataset):
    """A dataset of the bar-aligned windows of music files, in order and without augmentation.

    An item is the ids of a window, [≤ length + 1], int64. All but the last are inputs, and all but
    the first are targets. A window begins at the last bar that the previous window reaches. If a
    bar has more tokens than a window, the rest of the bar is left out.

    Files are encoded immediately and stay in memory. `MusicDataModule` has more features: a cache
    on disk, splits that keep duplicates together, random crops and transpositions.

    Args:
        files: MIDI files and printed scores.
        tokenizer: encodes them.
        length: L, number of input tokens in a window.

    Raises:
        UserError: a file cannot be read, or has no note that the vocabulary can represent.
    """

    def __init__(self, files: Iterable[str | Path], tokenizer: Tokenizer, length: int) -> None:
        check_int("length", length)
        self._windows: list[IntArray] = []
        for file in files:
            score = tokenizer.normalise_rhythm(read(file))
            if tokenizer.chords:
                score = with_chords(score, "auto")
            tokens = tokenizer.encode(score)
            if not tokenizer.num_notes(tokens):
                raise UserError(f"{file}: no note that the vocabulary can represent; leave it out")
            bar_length = tokenizer.bar_length(score)
            starts = tokenizer.crops.starts(tokens, bar_length=bar_length)
            bar = 0
            while bar < len(starts):
                window = tokenizer.crops.crop(tokens, starts[bar:], length + 1)
                self._windows.append(window)
                if window[-1] == tokenizer.vocabulary.id("EOS"):
                    break
                # The last bar that the window reaches may be cut.
                bar += max(1, len(tokenizer.crops.starts(window, bar_length=bar_length)) - 1)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, item: int) -> Tensor:
        return torch.from_numpy(self._windows[item].copy())
