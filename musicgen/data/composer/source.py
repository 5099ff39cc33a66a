"""The default corpus: composed on the spot, the same for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from musicgen.data.composer.corpus import compose_corpus
from musicgen.data.datamodule import MusicData
from musicgen.data.prepare import Piece
from musicgen.errors import UserError
from musicgen.midi import Score, read
from musicgen.values import whole

# What each tokenizer is for.
_KINDS: dict[str, Literal["pop", "groove"]] = {"remi": "pop", "groove2groove": "groove"}


class Composer(MusicData):
    """Pieces by the project's own composer; grooves are split by family of styles.

    Args:
        root: folder for the MIDI files.
        kind: pop (piano) or groove (multi-track); None takes what the tokenizer is for.
        num_pieces: size of the corpus.
        corpus_seed: of the composer.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        kind: Literal["pop", "groove"] | None = None,
        num_pieces: int = 240,
        corpus_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kind = kind or _KINDS[self.tokenizer.name]
        if self.kind not in _KINDS.values():
            raise UserError(f"data.kind={kind}: give pop, groove, or null for the tokenizer's own")
        whole("data.num_pieces", num_pieces, at_least=3)  # one for each split
        whole("data.corpus_seed", corpus_seed, at_least=0)
        self.root = Path(root) / f"{self.kind}-{num_pieces}-seed{corpus_seed}"
        self.num_pieces, self.corpus_seed = num_pieces, corpus_seed

    @staticmethod
    def read(path: Path) -> Score:
        return read(path)

    def pieces(self) -> list[Piece]:
        files = compose_corpus(
            self.root, kind=self.kind, num_pieces=self.num_pieces, seed=self.corpus_seed
        )
        pieces = []
        for path in files:
            name = path.relative_to(self.root).as_posix()
            # Grooves lie in a folder for each family; a pop piece is a group of its own.
            pieces.append(Piece(name, path, name.split("/")[0]))
        return pieces
