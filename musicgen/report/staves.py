"""The staves of a report's pieces, packed for the page."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from musicgen.errors import UserError
from musicgen.plugins import plugin
from musicgen.report.pieces import ReportPiece

WIDTHS = {"wide": 2600, "narrow": 960}
"""Widths of the page, in 72nds of the height of a staff, by the names of staves.js."""

MAX_NOTES = 5000  # of a piece: to engrave more takes seconds


@dataclass(frozen=True)
class Drawing:
    """The staves of pieces.

    Attributes:
        data: for staves.js: `glyphs`, the path of each sign, and of `pieces`, by index, the
            systems by the names of `WIDTHS`; empty: there are no staves.
        missing: why a piece has none, by its index.
        two_coloured: the indices of pieces with a prompt and new notes.
        notice: why there are none at all.
    """

    data: dict[str, Any] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    two_coloured: set[int] = field(default_factory=set)
    notice: str = ""

    def script(self) -> str:
        """Return the HTML of an element with the data, compressed; "" without staves."""
        if not self.data:
            return ""
        packed = gzip.compress(json.dumps(self.data, separators=(",", ":")).encode(), mtime=0)
        text = base64.b64encode(packed).decode()
        return f'<script type="text/plain" id="staves">{text}</script>'


def draw_pieces(pieces: Sequence[ReportPiece]) -> Drawing:
    """Engrave pieces; without verovio, say how to install it."""
    try:
        scores = plugin("scores", "a report with staves")
        scores.check_engraver()
    except UserError as error:
        return Drawing(notice=f"No staves: {error}.")
    drawn = Drawing({"glyphs": {}, "pieces": {}})
    for index, piece in enumerate(pieces):
        is_new = piece.is_new()
        num_new = sum(int(each.sum()) for each in is_new)
        if 0 < num_new < piece.score.num_notes:
            drawn.two_coloured.add(index)
        else:
            is_new = [each & False for each in is_new]
        if piece.score.num_notes > MAX_NOTES:
            drawn.missing[index] = f"No staves: the piece has more than {MAX_NOTES:,} notes."
            continue
        try:
            found = scores.draw_staves(piece.score, is_new, [*WIDTHS.values()])
        except UserError as error:
            drawn.missing[index] = f"No staves: {error}."
            continue
        drawn.data["pieces"][index] = {
            name: each.systems for name, each in zip(WIDTHS, found, strict=True)
        }
        for each in found:
            drawn.data["glyphs"] |= each.glyphs
    return drawn
