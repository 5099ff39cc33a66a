"""Composed corpora on disk: MIDI files in a folder, and a manifest of the complete corpus."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from musicgen.composer.groove.families import FAMILIES
from musicgen.composer.groove.song import compose_groove
from musicgen.composer.pop.song import compose_pop
from musicgen.console import progress_bar
from musicgen.errors import UserError
from musicgen.files import write_bytes
from musicgen.midi import Score, write
from musicgen.validation import check_choice, check_int

MANIFEST = "composed.json"
STYLES_PER_FAMILY = 3
VERSION = 1
"""Increase it when the music of a seed changes: corpora of older versions are rewritten."""


def compose_corpus(
    root: Path, *, kind: Literal["pop", "groove"], num_pieces: int, seed: int
) -> list[Path]:
    """Write a corpus below `root` unless it exists; the same seed gives the same bytes.

    Pop pieces are `pop_0007.mid`; grooves are `FAMILY/STYLE_SONG.mid`, such as
    `funk/funk-02_1.mid`. The families vary fastest, then styles, then songs, so that a larger
    corpus contains every smaller one. A corpus of other settings in the folder is replaced; other
    files are kept.

    Args:
        root: the folder, created if missing.
        num_pieces: >= 1.
        seed: >= 0.

    Returns:
        The files in order of composition.

    Raises:
        UserError: an invalid parameter, or a folder that cannot be created.
    """
    check_choice("kind", kind, ("pop", "groove"))
    check_int("num_pieces", num_pieces)
    check_int("seed", seed, 0)
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
    # Without a manifest an incomplete corpus is not mistaken for a complete one.
    manifest.unlink(missing_ok=True)
    stale = set(before.get("files", ())) - set(plan)
    for path in root.rglob("*.mid"):
        if path.relative_to(root).as_posix() in stale:
            path.unlink()
    with progress_bar() as progress:
        for name, compose in progress.track(plan.items(), description=f"Composing {kind}"):
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
        turn, number = divmod(index, len(families))
        song, style = divmod(turn, STYLES_PER_FAMILY)
        family = families[number]
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
