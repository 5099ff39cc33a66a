"""Pop1K7: piano covers of pop songs, transcribed, with beats, tempi and chords found by machine.

Hsiao et al. 2021, "Compound Word Transformer: Learning to compose full-song music over dynamic
directed hypergraphs".
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from musicgen.data.datamodule import MusicData
from musicgen.data.prepare import Piece
from musicgen.errors import UserError
from musicgen.midi import Score, find_midi, read
from musicgen.tokenization.chords import chord_index

SOURCE = "Pop1K7.zip of https://zenodo.org/records/13167761"

FOLDER = "midi_analyzed"
BAR_BEATS = 4
POSITIONS_PER_BEAT = 4


class Pop1K7(MusicData):
    """The songs of Pop1K7, each a group of its own.

    Args:
        root: the folder that holds `midi_analyzed`, at any depth.
    """

    def __init__(self, root: str | Path, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = Path(root).expanduser()

    @staticmethod
    def read(path: Path) -> Score:
        return read_song(path)

    def pieces(self) -> list[Piece]:
        at_it = self.root.name == FOLDER
        folder = self.root if at_it else next(self.root.rglob(FOLDER), self.root / FOLDER)
        if not folder.is_dir():
            raise UserError(
                f"{self.root}: expected the folder {FOLDER} of Pop1K7 here ({FOLDER}/…/….mid); "
                f"unpack {SOURCE} here, or give its folder as data.root="
            )
        paths = find_midi(folder)
        names = [path.relative_to(folder).as_posix() for path in paths]
        return [Piece(name, path, name) for name, path in zip(names, paths, strict=True)]


def read_song(path: str | Path) -> Score:
    """One song, from the bar in which its first note sounds.

    Its ticks follow the tracked beats, 4 to a bar; notes keep their small deviations from the grid,
    so that one may come half a sixteenth ahead of the first bar, and is moved to its beginning.
    The chord in force there is carried to it. Of the markers only chords, such as `A_M7_A`, stay
    (not `global_bpm_120`).

    Raises:
        UserError: the file cannot be read.
    """
    score = read(path)
    onsets = [track.notes["onset"].min() for track in score.tracks if len(track.notes)]
    if not onsets:
        return score
    half_position = score.ticks_per_beat // POSITIONS_PER_BEAT // 2
    bar = BAR_BEATS * score.ticks_per_beat
    start = int(min(onsets) + half_position) // bar * bar
    for track in score.tracks:
        np.maximum(track.notes["onset"], start, out=track.notes["onset"])
    chords = [marker for marker in score.markers if chord_index(marker.text) is not None]
    return replace(score, markers=chords).clip(start, score.end + 1)
