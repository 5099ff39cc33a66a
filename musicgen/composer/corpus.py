"""Composed corpora on disk: MIDI files in a folder, and a manifest once the corpus is complete."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from musicgen.composer.bands import (
    DrumPerformance,
    compose_band,
    compose_with_drummer,
    read_drummers,
)
from musicgen.composer.families import FAMILIES
from musicgen.composer.grooves import compose_groove
from musicgen.composer.songs import compose_pop, compose_song
from musicgen.console import progress_bar
from musicgen.files import write_bytes
from musicgen.midi import Score, write

Kind = Literal["pop", "songs", "groove", "bands"]

MANIFEST = "composed.json"
STYLES_AT_A_TIME, SONGS_PER_STYLE = 3, 5
SONGS_PER_BAND = 3
VERSION = 5
"""Increase it when a seed gives other music. Corpora of older versions are then written again."""


def compose_corpus(
    root: Path, *, kind: Kind, num_pieces: int, seed: int, drummers: Path | None = None
) -> list[Path]:
    """Return the files of a corpus below `root`, in order; compose them unless they exist.

    The same seed gives the same bytes. Pop pieces are `pop_0007.mid` and songs `songs_0007.mid`.

    Grooves are `FAMILY/STYLE_SONG.mid`, such as `funk/funk-02_1.mid`. Consecutive pieces differ in
    the family. After one piece of each family come the next of three styles, then the next of five
    songs, then the next three styles. A larger corpus therefore has more styles, and it contains
    every smaller one.

    Bands are `band-0007/band-0007_1.mid`: three songs of each band, most in invented styles. With
    drummers every second band plays to a real drum performance, as `drummer-0003/…` by the number
    of the performance: three songs to each, then three other ones to each, and so on.

    Args:
        drummers: folder of the Groove MIDI Dataset; None: all drums are composed.

    Raises:
        UserError: the folder of drummers is not that of the dataset.
    """
    performances = None if drummers is None else read_drummers(drummers)
    plan = dict(_plan(kind, seed, num_pieces, performances))
    paths = [root / name for name in plan]
    settings: dict[str, Any] = {
        "kind": kind,
        "num_pieces": num_pieces,
        "seed": seed,
        "version": VERSION,
    }
    if drummers is not None:
        settings["drummers"] = drummers.name
    complete = (json.dumps(settings, indent=1) + "\n").encode()
    manifest = root / MANIFEST
    if all(path.is_file() for path in [manifest, *paths]) and manifest.read_bytes() == complete:
        return paths
    write_bytes(manifest, b"")  # marks an incomplete corpus
    with progress_bar() as progress:
        for name, compose in progress.track(plan.items(), description=f"Composing {kind}"):
            write(compose(), root / name)
    write_bytes(manifest, complete)
    return paths


def may_compose_in(folder: Path) -> bool:
    """Return whether a folder is a composed corpus, or empty except for hidden files."""
    return (folder / MANIFEST).is_file() or not any(folder.glob("[!.]*"))


def _plan(
    kind: Kind, seed: int, num_pieces: int, performances: list[DrumPerformance] | None
) -> Iterator[tuple[str, Callable[[], Score]]]:
    """Yield the file name of each piece, and the function that composes it.

    Args:
        performances: of drums, for every second band; None: none.
    """
    for index in range(num_pieces):
        if kind in ("pop", "songs"):
            compose = compose_pop if kind == "pop" else compose_song
            yield f"{kind}_{index:04d}.mid", partial(compose, seed, index)
        elif kind == "bands":
            band, song = divmod(index, SONGS_PER_BAND)
            if performances and band % 2:
                turn, number = divmod(band // 2, len(performances))
                name, song_of_name = f"drummer-{number:04d}", turn * SONGS_PER_BAND + song
                compose = partial(compose_with_drummer, performances[number], seed, band, song)
            else:
                name, song_of_name = f"band-{band:04d}", song
                compose = partial(compose_band, seed, band, song)
            yield f"{name}/{name}_{song_of_name}.mid", compose
        else:
            turn, number = divmod(index, len(FAMILIES))
            turn, style = divmod(turn, STYLES_AT_A_TIME)
            block, song = divmod(turn, SONGS_PER_STYLE)
            style += STYLES_AT_A_TIME * block
            family = [*FAMILIES][number]
            name = f"{family}/{family}-{style:02d}_{song}.mid"
            yield name, partial(compose_groove, seed, family, style, song)
