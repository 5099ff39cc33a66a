"""Bach's chorales in four voices, from the package music21, with a fixed split."""

import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path

from musicgen.data.corpora.base import Corpus, Piece
from musicgen.errors import UserError
from musicgen.midi import CHOIR_AAHS, Score, read
from musicgen.tokenization.chorale.frames import NUM_VOICES, VOICES, find_voice


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
        text = (files("musicgen.data.corpora") / "bach_chorales.json").read_text("utf-8")
        return [
            Piece(name := Path(file).stem, self.root / file, name, split)
            for split, names in json.loads(text).items()
            for file in names.split()
        ]

    def read(self, path: Path) -> Score:
        """Return a chorale with the tracks Soprano, Alto, Tenor and Bass."""
        return four_voices(read(path))


def four_voices(score: Score) -> Score:
    """Return a score with the tracks of the four voices only, named Soprano, Alto, Tenor and Bass.

    The first word of a track's name says which voice it is.

    Raises:
        UserError: the score does not have exactly one track of each voice.
    """
    voices = [find_voice((track.name.split() or [""])[0]) for track in score.tracks]
    if sorted(voice for voice in voices if voice is not None) != list(range(NUM_VOICES)):
        raise UserError("expected exactly one soprano, alto, tenor and bass")
    tracks = [score.tracks[voices.index(voice)] for voice in range(NUM_VOICES)]
    named = zip(VOICES, tracks, strict=True)
    return replace(score, tracks=[replace(t, name=name, program=CHOIR_AAHS) for name, t in named])
