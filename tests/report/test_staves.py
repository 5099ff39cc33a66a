"""The staves of a report: packed for its script, or one line that says why there are none."""

import base64
import gzip
import json
import re

import pytest

from musicgen.errors import UserError
from musicgen.midi import Score, Track, notes_from
from musicgen.plugins import scores
from musicgen.plugins.scores.staves import Staves
from musicgen.report import Kept, ReportPiece, render_report
from musicgen.report import staves as report_staves

BAR = 1920
NOTES = [(480 * i, 480, 60 + i % 5, 80) for i in range(16)]


def piece(prompt_end=2 * BAR, kept=None):
    return ReportPiece(
        "tune",
        Score(480, [Track("Flute", 73, notes=notes_from(NOTES))]),
        prompt_end,
        None,
        {},
        kept=kept,
    )


@pytest.fixture
def drawn(monkeypatch):
    """What is asked of the engraver, which draws no music here."""
    asked = []

    def draw(score, is_new, widths):
        asked.append(([each.tolist() for each in is_new], widths))
        return [Staves([f"<svg>{width}</svg>"], {f"E{width}": "M0 0"}) for width in widths]

    monkeypatch.setattr(scores, "check_engraver", lambda: None)
    monkeypatch.setattr(scores, "draw_staves", draw)
    return asked


def page(*pieces):
    return render_report(title="t", pieces=pieces, metadata={}, with_staves=True)


def unpacked(text):
    [packed] = re.findall(r'<script type="text/plain" id="staves">([^<]*)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_pieces_are_engraved_at_two_widths_and_packed(drawn):
    text = page(
        piece(),
        piece(BAR, Kept(Score(480, [Track("Flute", 73, notes=notes_from(NOTES[12:]))]), 3 * BAR)),
    )
    assert drawn == [
        ([[False] * 8 + [True] * 8], [2600, 960]),
        ([[False] * 4 + [True] * 8 + [False] * 4], [2600, 960]),
    ]
    systems = {"wide": ["<svg>2600</svg>"], "narrow": ["<svg>960</svg>"]}
    assert unpacked(text) == {
        "glyphs": {"E2600": "M0 0", "E960": "M0 0"},
        "pieces": {"0": systems, "1": systems},
    }
    assert (
        text.count('<div class="staves" tabindex="0" role="group" aria-label="Staves of tune">')
        == 2
    )
    assert re.findall(r'<p class="summary colours">Prompt <span class="new">(\w+)', text) == [
        "Continuation",
        "Gap",
    ]
    assert text == page(
        piece(),
        piece(BAR, Kept(Score(480, [Track("Flute", 73, notes=notes_from(NOTES[12:]))]), 3 * BAR)),
    )


def test_a_piece_without_a_prompt_has_one_colour(drawn):
    text = page(piece(0))
    assert drawn[0][0] == [[False] * 16]
    assert 'class="summary colours"' not in text
    assert 'class="staves"' in text


def test_a_page_without_verovio_is_as_before_with_one_line(monkeypatch):
    def missing():
        raise UserError("staves need verovio; run: pip install -e '.[scores]'")

    monkeypatch.setattr(scores, "check_engraver", missing)
    line = '<p class="summary">No staves: staves need verovio; run: pip install -e &#x27;.[scores]&#x27;.</p>'
    text = page(piece())
    assert text.count(line) == 1
    plain = render_report(title="t", pieces=[piece()], metadata={})
    assert text.replace(line, "") == plain
    assert 'class="staves"' not in plain
    assert "@page" not in plain


def test_long_and_odd_pieces_say_why_they_have_no_staves(drawn, monkeypatch):
    def fail(*_):
        raise UserError("verovio cannot engrave it: damaged")

    monkeypatch.setattr(report_staves, "MAX_NOTES", 15)
    assert '<p class="summary">No staves: the piece has more than 15 notes.</p>' in page(piece())
    monkeypatch.setattr(report_staves, "MAX_NOTES", 16)
    monkeypatch.setattr(scores, "draw_staves", fail)
    text = page(piece())
    assert '<p class="summary">No staves: verovio cannot engrave it: damaged.</p>' in text
    assert unpacked(text)["pieces"] == {}
