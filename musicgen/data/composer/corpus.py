"""Composed corpora on disk: MIDI files below a folder, and a manifest that says they are whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from rich.progress import track

from musicgen.data.composer.families import FAMILIES
from musicgen.data.composer.groove import compose_groove
from musicgen.data.composer.pop import compose_pop
from musicgen.data.home import console
from musicgen.errors import UserError
from musicgen.files import write_bytes
from musicgen.midi import Score, write

MANIFEST = "composed.json"
STYLES_PER_FAMILY = 3
VERSION = 1
"""Raise it whenever the same seed gives other music: corpora of an older version are rewritten."""

_PROGRESS_FROM = 100  # pieces: fewer are done in a moment


def compose_corpus(
    root: Path, *, kind: Literal["pop", "groove"], num_pieces: int, seed: int
) -> list[Path]:
    """Write a corpus below `root`, unless it is there already; the same seed gives the same bytes.

    Pop pieces are `pop_0007.mid`; grooves are `FAMILY/STYLE_SONG.mid`, such as
    `funk/funk-02_1.mid`, in turns through all families, then their styles, then further songs: so
    a larger corpus contains the smaller one. A corpus of other settings in the same folder is
    replaced; files that are not the composer's are left alone.

    Args:
        root: the folder, created where missing.
        kind: what to compose.
        num_pieces: at least 1.
        seed: not negative.

    Returns:
        The files in order of composition.

    Raises:
        UserError: an unknown kind, no pieces, a negative seed, or a folder that cannot be made.
    """
    if kind not in ("pop", "groove"):
        raise UserError(f"no composed corpus of kind {kind!r}; take pop or groove")
    if num_pieces < 1:
        raise UserError(f"num_pieces={num_pieces}: a corpus needs at least one piece")
    if seed < 0:
        raise UserError(f"seed={seed}: take a seed of 0 or more")
    root = Path(root)
    plan = dict(_pop_plan(seed, num_pieces) if kind == "pop" else _groove_plan(seed, num_pieces))
    paths = [root / name for name in plan]
    settings = {"kind": kind, "num_pieces": num_pieces, "seed": seed, "version": VERSION}
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{root}: cannot be made ({error.strerror}); give a folder") from None
    manifest = root / MANIFEST
    before = _read_manifest(manifest)
    if before.get("settings") == settings and all(path.is_file() for path in paths):
        return paths
    # Without its manifest a half-written corpus is not mistaken for a whole one.
    manifest.unlink(missing_ok=True)
    stale = set(before.get("files", ())) - set(plan)
    for path in root.rglob("*.mid"):
        if path.relative_to(root).as_posix() in stale:
            path.unlink()
    for name, compose in track(
        plan.items(),
        f"Composing {kind}",
        console=console,
        transient=True,
        disable=num_pieces < _PROGRESS_FROM or not console.is_terminal,
    ):
        write(compose(), root / name)
    content = {"settings": settings, "files": list(plan)}
    write_bytes(manifest, (json.dumps(content, indent=1) + "\n").encode())
    return paths


def _pop_plan(seed: int, num_pieces: int) -> Iterator[tuple[str, Callable[[], Score]]]:
    for index in range(num_pieces):
        yield f"pop_{index:04d}.mid", partial(compose_pop, seed, index)


def _groove_plan(seed: int, num_pieces: int) -> Iterator[tuple[str, Callable[[], Score]]]:
    families = list(FAMILIES)
    for index in range(num_pieces):
        turn, place = divmod(index, len(families))
        song, style = divmod(turn, STYLES_PER_FAMILY)
        family = families[place]
        yield (
            f"{family}/{family}-{style:02d}_{song}.mid",
            partial(compose_groove, seed, family, style, song),
        )


def _read_manifest(path: Path) -> dict:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
