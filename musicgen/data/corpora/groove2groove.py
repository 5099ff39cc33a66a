"""The Groove2Groove MIDI dataset: accompaniments to generated chord charts in many styles.

Cífka et al. 2020, "Groove2Groove: One-shot music style transfer with supervision from synthetic
data"; prepared as for Liutkus et al. 2021 (appendix, "Training data").
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from musicgen.console import log
from musicgen.data.corpora.base import Corpus, Piece
from musicgen.errors import UserError
from musicgen.midi import Score, Track, find_music, read, sort_notes
from musicgen.validation import check_choice, check_int, check_seed

SOURCE = "https://zenodo.org/record/3958000"
PROGRAMS = {"Bass": 33, "Drums": None, "Guitar": 27, "Piano": 0, "Strings": 48}
"""The tracks of every accompaniment, with the General MIDI program for a missing one."""

_NAME = re.compile(r"(?P<song>[^.]+)\.(?P<family>.+)_(?P<substyle>[ab])\.midi?", re.IGNORECASE)


class Groove2GrooveMIDI(Corpus):
    """The files `midi/train/fixed/SONG.STYLE_{a|b}.mid`, prepared as for Liutkus et al. 2021.

    All songs of a family of styles (`STYLE`) are in the same split. A family has two songs of each
    substyle, a and b. Substyles without exactly two songs are left out. Of a substyle of validation
    and test families, only the first song is used. The splits have 5,522, 50 and 50 files.

    Args:
        root: the folder that contains `midi`.
        val_families, test_families: numbers of families for validation and test.
        split_seed: seed of the split; 0 gives the paper's families.
        skip_bars: bars of count-in to leave out.
        tracks: `all` five tracks; or `trio`: Bass, Drums, and one of the other tracks that has
            notes, renamed to Accompaniment. It is chosen by the name of the file and `split_seed`.
            The paper chooses it anew in each epoch.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        val_families: int,
        test_families: int,
        split_seed: int,
        skip_bars: int,
        tracks: Literal["all", "trio"],
    ) -> None:
        super().__init__(root)
        check_choice("tracks", tracks, ("all", "trio"))
        check_int("val_families", val_families, 0)
        check_int("test_families", test_families, 0)
        check_int("skip_bars", skip_bars, 0)
        check_seed("split_seed", split_seed)
        self.split_seed = split_seed
        self.held_out = {"val": val_families, "test": test_families}
        self.skip_bars, self.tracks = skip_bars, tracks

    def pieces(self) -> list[Piece]:
        folder = self.root / "midi/train/fixed"
        if not folder.is_dir():
            files = "midi/train/fixed/SONG.STYLE_a.mid of the Groove2Groove MIDI dataset"
            cure = f"unpack {SOURCE} here (CC BY-NC 4.0: not for commercial use)"
            raise self.missing(files, cure)
        substyles: dict[tuple[str, str], list[Path]] = defaultdict(list)
        for path in find_music(folder):
            if (match := _NAME.fullmatch(path.name)) is None:
                expected = "expected a name such as maj001.ROCK_a.mid; move the file away"
                raise UserError(f"{path}: {expected}")
            substyles[match["family"], match["substyle"]].append(path)
        families = {family for family, _ in substyles}
        split_of = split_families(families, self.held_out, self.split_seed)
        odd = ["_".join(substyle) for substyle, songs in substyles.items() if len(songs) != 2]
        if odd:
            log(f"left out {len(odd)} substyles without exactly two songs: {', '.join(odd)}")
        return [
            Piece(path.relative_to(self.root / "midi").as_posix(), path, family, split_of[family])
            for (family, _), songs in substyles.items()
            if len(songs) == 2
            for path in (songs if split_of[family] == "train" else songs[:1])
        ]

    def read(self, path: Path) -> Score:
        """Return an accompaniment with the tracks Bass, Drums, Guitar, Piano, Strings, or a trio.

        Tracks with the same name are merged, and missing tracks are added without notes. The bars
        of the count-in are removed with all notes that begin in them.

        Raises:
            UserError: the file cannot be read, or has no bar after the count-in.
        """
        score = read(path)
        bars = score.bar_starts()
        if len(bars) <= self.skip_bars:
            raise UserError(f"{path}: {len(bars)} bars, all of them count-in; get a complete copy")
        tracks = {
            name: Track(name, program or 0, is_drum=program is None)
            for name, program in PROGRAMS.items()
        }
        for track in score.tracks:
            track.name = track.name.strip().removeprefix("BB ")  # Band-in-a-Box
            if same := tracks.get(track.name):
                track.notes = sort_notes(np.concatenate([same.notes, track.notes]))
            tracks[track.name] = track
        score.tracks = list(tracks.values())
        if self.tracks == "trio":
            score.tracks = draw_trio(score.tracks, f"{path.name} {self.split_seed}")
        return score.clip(int(bars[self.skip_bars]), score.end + 1)

    def reader_id(self) -> str:
        trio = f" trio={self.split_seed}" if self.tracks == "trio" else ""
        return f"groove2groove skip_bars={self.skip_bars}{trio}"


def draw_trio(tracks: list[Track], key: str) -> list[Track]:
    """Return Bass, Drums, and one of the other tracks, chosen by a hash, as Accompaniment.

    A track without notes is chosen only if no other track has notes.

    Args:
        key: text to hash.
    """
    rhythm = [track for track in tracks if track.name in ("Bass", "Drums")]
    others = [track for track in tracks if track.name not in ("Bass", "Drums")]
    others = [track for track in others if len(track.notes)] or others
    digest = hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=8).digest()
    chosen = others[int.from_bytes(digest) % len(others)]
    return [*rhythm, replace(chosen, name="Accompaniment")]


def split_families(families: Iterable[str], held_out: dict[str, int], seed: int) -> dict[str, str]:
    """Return the split of each family, chosen at random: first test, then validation.

    As in the paper's preparation, there are two permutations by numpy's legacy generator.

    Args:
        held_out: numbers of `val` and `test` families.

    Raises:
        UserError: no family remains for training.
    """
    remaining = sorted(families)
    if len(remaining) <= sum(held_out.values()):
        raise UserError(
            f"val_families={held_out['val']}, test_families={held_out['test']}: expected fewer, "
            f"as there are {len(remaining)} families of styles"
        )
    generator = np.random.RandomState(seed)
    split_of: dict[str, str] = {}
    for split in "test", "val":
        remaining = [remaining[i] for i in generator.permutation(len(remaining))]
        split_of |= dict.fromkeys(remaining[: held_out[split]], split)
        remaining = remaining[held_out[split] :]
    return split_of | dict.fromkeys(remaining, "train")
