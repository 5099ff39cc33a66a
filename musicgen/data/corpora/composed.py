"""The default corpus, which is composed on first use."""

import shlex
from pathlib import Path
from typing import get_args

from musicgen.composer.corpus import Kind, compose_corpus, may_compose_in
from musicgen.data.corpora.base import Piece
from musicgen.data.corpora.midi_folder import MidiFolder
from musicgen.errors import ParameterError, UserError
from musicgen.validation import check_choice, check_int


class ComposedCorpus(MidiFolder):
    """Pieces by the composer of this package. The same seed gives the same music.

    Grooves of one family of styles, and songs of one band, are in the same split.

    Args:
        root: folder of composed corpora, each in a subfolder. It must have no other files, as a
            user who puts files there probably wants to train on them.
        kind: `pop` (piano), `songs` (voice and piano), `groove`, or `bands` (invented styles).
        num_pieces: number of pieces.
        corpus_seed: seed of the composer.
        drummers: folder of the Groove MIDI Dataset, to whose drums every second one of the bands
            plays, or which play alone; None: all drums are composed.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        kind: Kind,
        num_pieces: int,
        corpus_seed: int,
        drummers: str | Path | None = None,
    ) -> None:
        check_choice("kind", kind, get_args(Kind))
        check_int("num_pieces", num_pieces, minimum=3, maximum=10**6)  # one for each split
        if drummers is not None and kind != "bands":
            raise ParameterError("drummers", str(drummers), "expected null, or kind=bands")
        name = f"{kind}-{num_pieces}-seed{corpus_seed}"
        if drummers is not None:
            name += "-drummers"
        super().__init__(Path(root) / name, group=None, exclude=None)
        self.kind, self.num_pieces, self.corpus_seed = kind, num_pieces, corpus_seed
        self.drummers = None if drummers is None else Path(drummers)

    def pieces(self) -> list[Piece]:
        """Return the pieces; compose them first if necessary.

        Raises:
            UserError: `root` has other files, and nothing is written; or the folder of drummers
                is not that of the dataset.
        """
        parent = self.root.parent
        for entry in sorted(parent.glob("[!.]*")):
            if not (entry.is_dir() and may_compose_in(entry)):
                raise UserError(
                    f"{parent}: no corpus is composed here, as the folder has other files "
                    f"({entry.name}); to train on them: "
                    f"data=midi_folder {shlex.quote(f'data.root={parent}')}"
                )
        paths = compose_corpus(
            self.root,
            kind=self.kind,
            num_pieces=self.num_pieces,
            seed=self.corpus_seed,
            drummers=self.drummers,
        )
        names = [path.relative_to(self.root).as_posix() for path in paths]
        # The group is the folder of a family or band; other pieces have no folder.
        return [
            Piece(name, path, name.split("/")[0]) for name, path in zip(names, paths, strict=True)
        ]
