"""Whether a corpus is the one that was prepared, without listing it.

Looked at are the times of its folders, which show files that were added, removed or renamed, and
the sizes and times of its files: of at most 10,000 folders and 1,000 pieces, evenly spaced. What is
changed in place in a larger corpus is therefore seen by `musicgen-prepare` only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from musicgen.data.corpora.base import Piece, evenly_spaced
from musicgen.data.preparation.encoding import file_signature

MAX_FOLDERS, MAX_PIECES = 10_000, 1_000
# Times of files are rounded, on some file systems to two seconds.
_CLOCK_NS = 2_000_000_000

State = dict[str, dict[str, Any]]


def look(root: Path | None, pieces: Sequence[Piece], listed_ns: int) -> State | None:
    """Return the state of a corpus; None if it may have changed since it was listed.

    Args:
        root: its folder.
        listed_ns: when its pieces began to be listed, in nanoseconds of `time.time_ns`.
    """
    found = {folder.absolute() for folder in {piece.path.parent for piece in pieces}}
    if root is not None:
        found.update(Path(folder) for folder, _, _ in os.walk(root.absolute()))
    folders = {str(folder): _time(folder) for folder in evenly_spaced(sorted(found), MAX_FOLDERS)}
    if max(folders.values(), default=0) > listed_ns - _CLOCK_NS:
        return None
    paths = [piece.path.absolute() for piece in evenly_spaced(pieces, MAX_PIECES)]
    return {"folders": folders, "files": {str(path): file_signature(path) for path in paths}}


def is_unchanged(state: State) -> bool:
    """Return whether the folders and files are as `look` found them."""
    return all(_time(Path(folder)) == time for folder, time in state["folders"].items()) and all(
        file_signature(Path(path)) == signature for path, signature in state["files"].items()
    )


def _time(folder: Path) -> int:
    """Return when a folder's entries last changed; 0 if it is missing."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0
