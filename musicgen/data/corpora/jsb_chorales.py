"""The JSB chorales: 382 chorales by J. S. Bach in four voices on a grid of sixteenths.

The split is by Boulanger-Lewandowski et al. 2012 ("Modeling temporal dependencies in
high-dimensional sequences"), the separated voices are by Huang et al. 2017 ("Counterpoint by
convolution").
"""

import json
import lzma
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from musicgen.data.corpora.base import SPLIT_NAMES, Corpus, Piece, missing_corpus
from musicgen.errors import UserError
from musicgen.midi import Score
from musicgen.tokenization.chorale.frames import NUM_VOICES, SILENCE, score_of_frames

FILE = "Jsb16thSeparated.json"
SOURCE = f"{FILE} of https://github.com/czhuang/JSB-Chorales-dataset"


class JSBChorales(Corpus):
    """The chorales of one JSON file, with the published split.

    The file maps each split to a list of pieces. A piece is a list of frames `[S, A, T, B]`, one
    for each sixteenth, with MIDI pitches, or -1 for silence. A split may be absent.

    Args:
        root: the file (`.json` or `.json.xz`), or a folder that has it under its published name.
    """

    def pieces(self) -> list[Piece]:
        path = self._find()
        return [
            Piece(name := f"{split}/{number:03}", path, name, split)
            for split, chorales in self._chorales.items()
            for number in range(len(chorales))
        ]

    def read_piece(self, piece: Piece) -> Score:
        """Return the four tracks of a chorale; equal pitches in adjacent frames are one note."""
        split, _, number = piece.name.partition("/")
        return score_of_frames(self._chorales[split][int(number)])

    def missing_split(self, split: str) -> str:
        return (
            f"{self._find()}: has no {split} pieces; get {SOURCE}, which has all three splits, or "
            "use another split"
        )

    def _find(self) -> Path:
        if self.root.is_file():
            return self.root
        for path in (self.root / FILE, self.root / f"{FILE}.xz"):
            if path.is_file():
                return path
        raise missing_corpus(self.root, FILE, f"download {SOURCE} and put it here")

    @cached_property
    def _chorales(self) -> dict[str, list[NDArray[np.int64]]]:
        """The frames of each piece, [num_frames, 4], by split."""
        path = self._find()
        try:
            data = path.read_bytes()
            content = json.loads(lzma.decompress(data) if path.suffix == ".xz" else data)
        except (OSError, ValueError, lzma.LZMAError, RecursionError):
            raise UserError(f"{path}: not JSON, or incomplete; get {SOURCE}") from None
        try:
            splits = {
                SPLIT_NAMES[name]: [_frames(piece) for piece in content[name]]
                for name in content
                if name in SPLIT_NAMES
            }
            if not any(splits.values()):
                raise ValueError("no piece")
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{path}: expected the keys train, valid and test with lists of pieces, each a "
                f"list of frames with {NUM_VOICES} MIDI pitches or {SILENCE}, soprano first "
                f"({error}); get {SOURCE}"
            ) from None
        return splits


def _frames(piece: object) -> NDArray[np.int64]:
    """Return a piece as an array of pitches and `SILENCE`: [num_frames, 4].

    Raises:
        ValueError: it is not a list of such frames.
    """
    frames = np.array(piece)  # raises ValueError if frames differ in length
    valid = frames.ndim == 2 and frames.shape[1] == NUM_VOICES and frames.dtype.kind == "i"
    if not valid or frames.min() < SILENCE or frames.max() > 127:
        raise ValueError(f"not a piece: {str(piece)[:40]}")
    return frames
