"""The default corpus, which is composed on first use; the same seed gives the same music."""

import shlex
from pathlib import Path
from typing import get_args

from musicgen.composer.corpus import Kind, compose_corpus, may_compose_in
from musicgen.data.corpora.base import Piece
from musicgen.data.corpora.midi_folder import MidiFolder
from musicgen.errors import UserError
from musicgen.validation import check_choice, check_int


class ComposedCorpus(MidiFolder):
    """Pieces by the project's own composer; grooves are split by family of styles.

    Args:
        root: folder for composed corpora, each in a folder of its own. It must not hold other
            files, which somebody may have meant to train on.
        kind: pop (piano), songs (voice and piano), groove or, in invented styles, bands.
        corpus_seed: seed of the composer.
    """

    def __init__(self, root: str | Path, *, kind: Kind, num_pieces: int, corpus_seed: int) -> None:
        check_choice("kind", kind, get_args(Kind))
        check_int("num_pieces", num_pieces, minimum=3)  # one for each split
        super().__init__(
            Path(root) / f"{kind}-{num_pieces}-seed{corpus_seed}", group=None, exclude=None
        )
        self.kind, self.num_pieces, self.corpus_seed = kind, num_pieces, corpus_seed

    def pieces(self) -> list[Piece]:
        """List the pieces, composed first if necessary.

        Raises:
            UserError: `root` holds other files; nothing is written.
        """
        parent = self.root.parent
        for entry in sorted(parent.glob("[!.]*")):
            if not (entry.is_dir() and may_compose_in(entry)):
                raise UserError(
                    f"{parent}: holds other files ({entry.name}), so that no corpus is composed "
                    "there; to train on your own files: "
                    f"data=midi_folder {shlex.quote(f'data.root={parent}')}"
                )
        paths = compose_corpus(
            self.root, kind=self.kind, num_pieces=self.num_pieces, seed=self.corpus_seed
        )
        names = [path.relative_to(self.root).as_posix() for path in paths]
        # Grooves lie in one folder per family or band; others are groups of their own.
        return [Piece(n, path, n.split("/")[0]) for n, path in zip(names, paths, strict=True)]
