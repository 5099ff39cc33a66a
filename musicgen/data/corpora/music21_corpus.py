"""The printed scores that the package music21 contains, by composer."""

import re
from importlib.metadata import distribution
from pathlib import Path

from musicgen.data.corpora.base import Corpus, Piece
from musicgen.midi import Score, read
from musicgen.midi.printed_scores import SCORE_SUFFIXES
from musicgen.validation import check_choice

_SUFFIXES = SCORE_SUFFIXES.keys() - {".abc"}  # of which many are whole collections
_WORK = re.compile(rb"^!!!OPR:\s*(.*?)\s*$", re.MULTILINE)


class Music21Corpus(Corpus):
    """The scores of a composer, see `read_score`.

    Movements of a work stay in one split, if their files name it.

    Args:
        composer: a folder of music21's corpus, such as palestrina.
    """

    in_package = True

    def __init__(self, composer: str) -> None:
        super().__init__(find_corpus() / str(composer))
        self.composer = composer

    def pieces(self) -> list[Piece]:
        corpus = self.root.parent
        paths = sorted(path for path in corpus.rglob("*") if path.suffix in _SUFFIXES)
        composers = sorted({path.relative_to(corpus).parts[0] for path in paths})
        check_choice("composer", self.composer, composers)
        return [
            Piece(name := path.relative_to(self.root).as_posix(), path, _work(path) or name)
            for path in paths
            if path.is_relative_to(self.root)
        ]

    def read(self, path: Path) -> Score:
        return read(path)


def find_corpus() -> Path:
    """Return the folder of music21's corpus, without importing the package, which takes seconds."""
    return Path(str(distribution("music21").locate_file("music21/corpus")))


def _work(path: Path) -> str:
    """Return the work to which a **kern file says that it belongs."""
    match = _WORK.search(path.read_bytes()) if path.suffix == ".krn" else None
    return match[1].decode("latin-1") if match else ""
