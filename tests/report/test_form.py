"""The form of a piece: its matrix against the similarities, its returns by hand."""

import re

import numpy as np
import pytest

from musicgen.composer import compose_pop
from musicgen.metrics.bars import bar_notes, bar_similarities
from musicgen.midi import Score, Track, notes_from
from musicgen.report.form import LEVELS, SIDE, form_figure

BAR = 1920


def piece(letters: str, **track) -> Score:
    """Bars of one chord: those of one letter are equal, a space is an empty bar."""
    rows = [
        (BAR * bar, 480, ord(letter) + tone, 64)
        for bar, letter in enumerate(letters)
        for tone in (0, 3)
        if letter != " "
    ]
    return Score(tracks=[Track(notes=notes_from(rows), **track)])


def caption(score: Score, prompt_bars: int = 0) -> str:
    (said,) = re.findall(r"<figcaption>(.*?) <small>", form_figure(score, prompt_bars * BAR))
    return said


@pytest.mark.parametrize(
    ("letters", "prompt_bars", "said"),
    [
        ("0@P`1ABCDE@P`", 0, "Bars 11–13 as bars 2–4."),
        ("0@P`1ABCDE@P`", 5, "Bars 11–13 as bars 2–4."),
        ("0@P`1ABCDE@P`", 12, "Bar 13 as bar 4."),
        ("0@P`1", 0, "No bar is like one four or more bars before."),
        ("0@P`0@P`0@P`", 0, "Bars 5–12 as bars 1–4."),  # a pattern that repeats
        ("0@P`1@P`", 0, "Bars 6–8 as bars 2–4."),
        ("0@P`1AR@P0@", 4, "Bars 8–9 as bars 2–3; bars 10–11 as bars 1–2."),
        ("0@0@P", 2, "No bar of the continuation is like one four or more bars before."),
        ("00000", 0, "Bar 5 as bar 1."),
        ("0@P`p0A@BPC`DpE0F@", 0, "Bar 6 as bar 1; bar 8 as bar 2; …; and more."),
    ],
)
def test_returns_in_words(letters, prompt_bars, said):
    begin, _, end = said.partition("…")
    found = caption(piece(letters), prompt_bars)
    assert (found.startswith(begin) and found.endswith(end)) if end else found == said


def test_the_matrix_shows_the_similarities():
    score = compose_pop(0, 8)
    figure = form_figure(score, 4 * BAR)
    expected = bar_similarities(bar_notes(score)[:, :3], len(score.bar_starts()))
    shown = np.zeros_like(expected)
    for name, least in LEVELS.items():
        (path,) = re.findall(rf'<path class="{name}" d="(.*?)"/>', figure)
        for x, y, length in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            shown[int(y), int(x) : int(x) + int(length)] = least
    edges = [0, *LEVELS.values()]
    for row, column in np.ndindex(expected.shape):
        value = expected[row, column]
        least = max((edge for edge in edges if value >= edge), default=0)
        assert shown[row, column] == (least if row != column else 0)
    at = 4 * SIDE / len(expected)
    assert f'<path class="boundary" d="M{at:.1f} 0V{SIDE}M0 {at:.1f}H{SIDE}"/>' in figure
    assert '<path class="boundary" d=""/>' in form_figure(score, 0)


@pytest.mark.parametrize("count", [3, 23, 32, 256])
def test_bars_have_few_numbers(count):
    numbers = [int(n) for n in re.findall(r">(\d+)</text>", form_figure(piece("0@" * count), 0))]
    across, down = numbers[::2], numbers[1::2]
    assert across == down
    assert across[0] == 1
    assert 3 <= len(across) <= 6
    assert len(set(np.diff(across))) == 1


@pytest.mark.parametrize(
    "score", [Score(), piece("0@P`ABC", is_drum=True), piece("0@0@"), piece("0" * 513)]
)
def test_music_without_a_visible_form(score):
    assert form_figure(score, 0) == ""
