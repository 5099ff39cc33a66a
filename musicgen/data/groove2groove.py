"""The Groove2Groove MIDI dataset: accompaniments in styles, of chord charts made by a model.

Cífka et al. 2020, "Groove2Groove: One-shot music style transfer with supervision from synthetic
data"; prepared as for Liutkus et al. 2021 (appendix, "Training data").
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from musicgen.data.datamodule import MusicData
from musicgen.data.download import Archive, obtain
from musicgen.data.home import say
from musicgen.data.prepare import SPLITS, Piece
from musicgen.errors import UserError
from musicgen.midi import Score, Track, find_midi, read, sort_notes
from musicgen.tokenization.instruments import DEFAULT_TRACKS, instruments_of

ARCHIVE = Archive(
    "groove2groove-data-v1.0.0.tar.gz",
    "https://zenodo.org/record/3958000/files/groove2groove-data-v1.0.0.tar.gz?download=1",
    "CC BY-NC 4.0: not for commercial use",
    236_114_569,
    {"sha256": "b4ef60b8d0cf5c510868c1b10d560432a5412f809d47f51a092582158cb41c09"},
)
PREFIX = "BB "  # of track names: Band-in-a-Box
_NAME = re.compile(r"(?P<song>[^.]+)\.(?P<family>.+)_(?P<substyle>[ab])\.midi?", re.IGNORECASE)


class Groove2GrooveMIDI(MusicData):
    """The files `midi/{train,val,test}/fixed/SONG.STYLE_{a|b}.mid`.

    Args:
        root: the dataset's folder, which holds `midi`.
        download: fetch the archive (236 MB) to beside `root`, and unpack it there.
        split_by: `families` takes the training folder alone, as the SPE paper, and keeps families
            of styles (`STYLE`, of whose substyles a and b there are two songs each) in one split:
            5,522, 50 and 50 files. Substyles with another number of songs than two are left out,
            and of a held-out family's substyles the first song is taken. `folders` takes the
            dataset's own folders, whose styles differ, too.
        val_families, test_families: how many are held out. The paper's are drawn with the seed 0.
        split_seed: draws them.
        skip_bars: bars of count-in, which are left out.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        download: bool = False,
        split_by: Literal["families", "folders"] = "families",
        val_families: int = 25,
        test_families: int = 25,
        split_seed: int = 0,
        skip_bars: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.root, self.download = Path(root).expanduser(), download
        if split_by not in ("families", "folders"):
            raise UserError(f"data.split_by={split_by}: give families or folders")
        if min(val_families, test_families, split_seed, skip_bars) < 0:
            raise UserError(
                f"data.val_families={val_families}, data.test_families={test_families}, "
                f"data.split_seed={split_seed}, data.skip_bars={skip_bars}: none may be below 0"
            )
        self.split_by, self.split_seed = split_by, split_seed
        self.held_out = {"val": val_families, "test": test_families}
        self.skip_bars = skip_bars

    @property
    def read(self) -> Callable[[Path], Score]:  # type: ignore[override]
        return partial(read_song, skip_bars=self.skip_bars)

    def pieces(self) -> list[Piece]:
        if self.download:
            obtain(ARCHIVE, self.root, only="*/midi/*/fixed/*")
        folders = {split: self.root / "midi" / split / "fixed" for split in SPLITS}
        wanted = SPLITS if self.split_by == "folders" else ("train",)
        for split in wanted:
            if not folders[split].is_dir():
                raise UserError(
                    f"{self.root}: expected the Groove2Groove MIDI dataset (midi/{split}/fixed/"
                    "SONG.STYLE_a.mid) here; get it by data.download=true (CC BY-NC 4.0, 236 MB), "
                    "or unpack https://zenodo.org/record/3958000 and give its folder as data.root="
                )
        if self.split_by == "families":
            return self._by_family(find_midi(folders["train"]))
        return [self._piece(path, split) for split in SPLITS for path in find_midi(folders[split])]

    def _piece(self, path: Path, split: str) -> Piece:
        return Piece(path.relative_to(self.root / "midi").as_posix(), path, _style(path)[0], split)

    def _by_family(self, paths: list[Path]) -> list[Piece]:
        substyles: dict[tuple[str, str], list[Path]] = defaultdict(list)
        for path in paths:
            substyles[_style(path)].append(path)
        split_of = split_families(
            {family for family, _ in substyles}, self.held_out, self.split_seed
        )
        odd = ["_".join(substyle) for substyle, songs in substyles.items() if len(songs) != 2]
        if odd:
            say(f"{len(odd)} substyles have not two songs, and are left out: {', '.join(odd)}")
        pieces = []
        for (family, _), songs in substyles.items():
            if len(songs) == 2:
                split = split_of[family]
                kept = songs if split == "train" else songs[:1]
                pieces += [self._piece(path, split) for path in kept]
        return pieces


def split_families(families: Iterable[str], held_out: dict[str, int], seed: int) -> dict[str, str]:
    """The split of each family: test drawn first, then validation from what is left.

    The draws are those of the paper's preparation: two permutations by numpy's old generator.

    Raises:
        UserError: nothing is left for training.
    """
    left = sorted(families)
    if len(left) <= sum(held_out.values()):
        raise UserError(
            f"{len(left)} families of styles, and data.val_families={held_out['val']}, "
            f"data.test_families={held_out['test']} are to be held out; give fewer"
        )
    generator = np.random.RandomState(seed)
    split_of: dict[str, str] = {}
    for split in "test", "val":
        left = [left[i] for i in generator.permutation(len(left))]
        split_of |= dict.fromkeys(left[: held_out[split]], split)
        left = left[held_out[split] :]
    return split_of | dict.fromkeys(left, "train")


def read_song(path: str | Path, *, skip_bars: int = 2) -> Score:
    """One accompaniment, as the tracks Bass, Drums, Guitar, Piano and Strings.

    Tracks of one name become one, missing ones are there without notes; the first bars, the
    count-in, are left out with every note that begins in them.

    Raises:
        UserError: the file cannot be read, or ends with the count-in.
    """
    score = read(path)
    bars = score.bar_starts()
    if len(bars) <= skip_bars:
        raise UserError(f"{path}: {len(bars)} bars, all of them count-in; get a whole copy")
    tracks = {
        own.name: Track(own.name, own.program, own.is_drum)
        for own in instruments_of(DEFAULT_TRACKS)
    }
    for track in score.tracks:
        track.name = track.name.strip().removeprefix(PREFIX)
        same = tracks.get(track.name)
        if same is not None:
            track.notes = sort_notes(np.concatenate([same.notes, track.notes]))
        tracks[track.name] = track
    score.tracks = list(tracks.values())
    return score.clip(int(bars[skip_bars]), score.end + 1)


def _style(path: Path) -> tuple[str, str]:
    """Family and substyle in a file's name.

    Raises:
        UserError: it has another form.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise UserError(f"{path}: expected a name such as maj001.ROCK_a.mid; move the file away")
    return match["family"], match["substyle"]
