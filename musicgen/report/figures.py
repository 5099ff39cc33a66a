"""Figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from musicgen.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(figure: Figure, path: str | Path, *, dpi: int) -> None:
    """Write a figure atomically; the file's suffix chooses the format (.png, .svg, .pdf).

    It is made without pyplot, which would keep it in memory.
    """
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=dpi)
