"""A corpus that combines several corpora."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from musicgen.data.corpora.base import Corpus, Piece, evenly_spaced
from musicgen.errors import parameter_of
from musicgen.midi import Score
from musicgen.validation import check_choice, check_float

_MOST_COPIES = 100


class Songbook(Corpus):
    """A corpus that combines several corpora. Names of pieces begin with the name of their corpus.

    Args:
        root: folder to which the folders of the corpora are relative.
        corpora: the corpora, by name.
        weights: how often the pieces of a corpus occur, by its name: 2 repeats each piece, .5 uses
            every second one; 1 by default.
    """

    def __init__(
        self, root: str | Path, *, corpora: Mapping[str, Corpus], weights: Mapping[str, float]
    ) -> None:
        super().__init__(root)
        self.corpora, self.weights = dict(corpora), dict(weights)
        for name, weight in self.weights.items():
            check_choice(f"weights.{name}", name, self.corpora)
            check_float(f"weights.{name}", weight, maximum=_MOST_COPIES)
        for corpus in self.corpora.values():
            corpus.root = self.root / corpus.root

    def pieces(self) -> list[Piece]:
        pieces = []
        for name, corpus in self.corpora.items():
            with parameter_of(f"corpora.{name}"):
                corpus_pieces = corpus.pieces()
            times, fraction = divmod(self.weights.get(name, 1), 1)
            copies = [corpus_pieces] * int(times)
            copies.append(evenly_spaced(corpus_pieces, round(fraction * len(corpus_pieces))))
            for copy, chosen in enumerate(copies):
                folder = f"{name} {copy + 1}" if copy else name
                for piece in chosen:
                    group = f"{name}/{piece.group}"  # the same in all copies
                    pieces.append(replace(piece, name=f"{folder}/{piece.name}", group=group))
        return pieces

    def read_piece(self, piece: Piece) -> Score:
        folder, _, name = piece.name.partition("/")
        corpus = self.corpora[folder.split()[0]]
        return corpus.read_piece(replace(piece, name=name))

    def reader_id(self) -> str:
        return " ".join(corpus.reader_id() for corpus in self.corpora.values())
