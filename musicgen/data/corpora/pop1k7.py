"""Pop1K7: piano covers of pop songs, transcribed, with estimated beats, tempi and chords.

Hsiao et al. 2021, "Compound Word Transformer: Learning to compose full-song music over dynamic
directed hypergraphs".
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from musicgen.data.corpora.base import Corpus, Piece, missing_corpus
from musicgen.midi import Score, find_music, read
from musicgen.tokenization.chords.symbols import chord_index

SOURCE = "Pop1K7.zip of https://zenodo.org/records/13167761"
FOLDER = "midi_analyzed"


class Pop1K7(Corpus):
    """The songs of Pop1K7; each is its own group.

    Args:
        root: a folder that contains `midi_analyzed`, at any depth.
        exclude: names of files to leave out, or a file with one name per line.
    """

    def __init__(self, root: str | Path, *, exclude: str | Sequence[str] | None) -> None:
        super().__init__(root, exclude=exclude)

    def pieces(self) -> list[Piece]:
        folder = self.root
        if folder.name != FOLDER:
            folder = next(self.root.rglob(FOLDER), self.root / FOLDER)
        if not folder.is_dir():
            expected = f"the folder {FOLDER} of Pop1K7"
            raise missing_corpus(self.root, expected, f"unpack {SOURCE} here")
        names = {path.relative_to(folder).as_posix(): path for path in find_music(folder)}
        return self.without_excluded([Piece(name, path, name) for name, path in names.items()])

    def read(self, path: Path) -> Score:
        """Return a song, from the bar in which its first note begins.

        Ticks follow the tracked beats, with four beats in a bar from tick 0 on. Time signatures are
        removed: most files have a second one, which begins one to three beats off these bars. Notes
        keep their small deviations from the grid, except that notes up to half a sixteenth before
        the first bar are moved to its beginning. Only markers of chords, such as `A_M7_A`, remain.
        """
        score = read(path)
        onsets = [track.notes["onset"].min() for track in score.tracks if len(track.notes)]
        if not onsets:
            return score
        bar, half_sixteenth = 4 * score.ticks_per_beat, score.ticks_per_beat // 4 // 2
        start = int(min(onsets) + half_sixteenth) // bar * bar
        for track in score.tracks:
            np.maximum(track.notes["onset"], start, out=track.notes["onset"])
        chords = [marker for marker in score.markers if chord_index(marker.text) is not None]
        return replace(score, markers=chords, time_signatures=[]).clip(start, score.end + 1)

    def reader_id(self) -> str:
        return f"{super().reader_id()} without time signatures"
