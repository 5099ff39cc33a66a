"""Chorales by J. S. Bach in four voices: those of the package music21, and the JSB chorales."""

import json
import lzma
from dataclasses import replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np

from musicgen.data.corpora.base import SPLIT_NAMES, Corpus, Piece
from musicgen.errors import UserError
from musicgen.midi import CHOIR_AAHS, Score, read
from musicgen.midi.key import tonic_of
from musicgen.midi.score import IntArray
from musicgen.tokenization.voices import (
    NUM_VOICES,
    SILENCE,
    VOICES,
    find_voice,
    score_of_frames,
)

FILE = "Jsb16thSeparated.json"
_FOURTH = 5  # semitones
SOURCE = f"{FILE} of https://github.com/czhuang/JSB-Chorales-dataset"


class BachChorales(Corpus):
    """The 407 chorales with one soprano, alto, tenor and bass, without instruments.

    Chorales that share a melody, a bass or another voice, in any key, are in the same split. It is
    `train` if a training piece of the JSB chorales is among them.
    """

    in_package = True

    def __init__(self) -> None:
        # The package is located without importing it, which takes seconds.
        try:
            package = distribution("music21")
        except PackageNotFoundError:
            cure = "run: pip install -e '.[chorales]'"
            raise UserError(f"the chorales are files of the package music21; {cure}") from None
        super().__init__(str(package.locate_file("music21/corpus/bach")))

    def pieces(self) -> list[Piece]:
        # `benchmarks/chorale_split.py` wrote the names of the files of each split.
        text = Path(__file__).with_name("bach_chorales.json").read_text("utf-8")
        return [
            Piece(name := Path(file).stem, self.root / file, name, split)
            for split, names in json.loads(text).items()
            for file in names.split()
        ]

    def read(self, path: Path) -> Score:
        """Return a chorale with the tracks Soprano, Alto, Tenor and Bass, in its key."""
        return without_dorian_signature(four_voices(read(path)))


def four_voices(score: Score) -> Score:
    """Return a score with the tracks of the four voices only, named Soprano, Alto, Tenor and Bass.

    The first word of a track's name says which voice it is.

    Raises:
        UserError: the score does not have exactly one track of each voice.
    """
    voices = [find_voice((track.name.split() or [""])[0]) for track in score.tracks]
    if sorted(voice for voice in voices if voice is not None) != list(range(NUM_VOICES)):
        raise UserError("expected exactly one soprano, alto, tenor and bass")
    tracks = [
        replace(score.tracks[voices.index(voice)], name=name, program=CHOIR_AAHS)
        for voice, name in enumerate(VOICES)
    ]
    return replace(score, tracks=tracks)


def without_dorian_signature(score: Score) -> Score:
    """Return a chorale with the flat that old signatures of minor keys lack.

    Those of 34 of the 407 chorales do: they say D minor, and the bass ends on G.
    """
    signatures, bass = score.key_signatures, score.tracks[-1].notes["pitch"]
    keys = [
        key._replace(fifths=key.fifths - 1)
        if key.minor and (bass[-1] - tonic_of(key.fifths, minor=True)) % 12 == _FOURTH
        else key
        for key in signatures
    ]
    return replace(score, key_signatures=keys)


class JSBChorales(Corpus):
    """382 chorales in one JSON file, with the published split.

    The split is by Boulanger-Lewandowski et al. 2012 ("Modeling temporal dependencies in
    high-dimensional sequences"), the separated voices are by Huang et al. 2017 ("Counterpoint by
    convolution").

    The file maps each split to a list of pieces. A piece is a list of frames `[S, A, T, B]`, one
    per sixteenth, with MIDI pitches, or -1 for silence. A split may be absent.

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
        raise self.missing(FILE, f"download {SOURCE} and put it here")

    @cached_property
    def _chorales(self) -> dict[str, list[IntArray]]:
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


def _frames(piece: object) -> IntArray:
    """Return a piece as an array of pitches and `SILENCE`: [num_frames, 4].

    Raises:
        ValueError: it is not a list of such frames.
    """
    frames = np.array(piece)  # raises ValueError if frames differ in length
    valid = frames.ndim == 2 and frames.shape[1] == NUM_VOICES and frames.dtype.kind == "i"
    if not valid or frames.min() < SILENCE or frames.max() > 127:
        raise ValueError(f"not a piece: {str(piece)[:40]}")
    return frames
