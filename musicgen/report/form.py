"""The form of a piece: which bars are alike, as a matrix and in words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.bars import ALIKE, MIN_LAG, Return, bar_notes, bar_similarities, find_returns
from musicgen.midi import Score
from musicgen.report.markup import text
from musicgen.text import pluralize

MAX_BARS = 512  # cells of half a pixel
SIDE, MARGIN = 240, 24  # px: of the matrix, and of the bar numbers left of it and below it
MAX_NUMBERS, MAX_RETURNS = 6, 5
KEY = "Bar by bar; coloured where at least 80% of the notes are the same."
LEVELS = {"some": 0.3, "many": 0.55, "alike": ALIKE}
"""The least Dice coefficient of the cells of a CSS class."""


def form_figure(score: Score, prompt_end: int) -> str:
    """Return the self-similarity matrix of the bars as SVG, with the returns below; HTML.

    Nothing for music without pitched notes, and for so few or many bars that there is none to see.
    """
    starts = score.bar_starts()
    notes = bar_notes(score)[:, :3]
    if not len(notes) or not MIN_LAG < len(starts) <= MAX_BARS:
        return ""
    similarities = bar_similarities(notes, len(starts))
    prompt_bars = int((starts < prompt_end).sum())
    returns = describe_returns(similarities, prompt_bars)
    return (
        f'<figure class="form">{_matrix(similarities, prompt_bars)}'
        f"<figcaption>{text(returns)} <small>{KEY}</small></figcaption></figure>"
    )


def describe_returns(similarities: NDArray[np.float64], prompt_bars: int) -> str:
    """Say which bars of the continuation return, such as `Bars 21–24 as bars 5–8`."""
    returns = find_returns(similarities, prompt_bars, MAX_RETURNS + 1)
    if not returns:
        where = "of the continuation " if prompt_bars else ""
        return f"No bar {where}is like one four or more bars before."
    named = "; ".join(map(_words, sorted(returns[:MAX_RETURNS])))
    more = "; and more" if len(returns) > MAX_RETURNS else ""
    return f"{named[0].upper()}{named[1:]}{more}."


def _words(found: Return) -> str:
    first, source, length = found
    # A pattern that repeats several times is named once.
    return f"{_bars(first, length)} as {_bars(source, min(length, first - source))}"


def _bars(first: int, count: int) -> str:
    return f"bar {first + 1}" if count == 1 else f"bars {first + 1}–{first + count}"


def _matrix(similarities: NDArray[np.float64], prompt_bars: int) -> str:
    count = len(similarities)
    cell = SIDE / count
    levels = np.digitize(np.nan_to_num(similarities), list(LEVELS.values()))
    np.fill_diagonal(levels, 0)
    paths = "".join(
        f'<path class="{name}" d="{_runs(levels == level)}"/>'
        for level, name in enumerate(LEVELS, start=1)
    )
    every = 1
    while count > MAX_NUMBERS * every:
        every *= 2
    numbers = ""
    for bar in range(0, count, every):
        at = (bar + 0.5) * cell
        numbers += f'<text x="-5" y="{at:.1f}">{bar + 1}</text>'
        numbers += f'<text class="below" x="{at:.1f}" y="{SIDE + 11}">{bar + 1}</text>'
    end = f"{prompt_bars * cell:.1f}"
    boundary = f"M{end} 0V{SIDE}M0 {end}H{SIDE}" if 0 < prompt_bars < count else ""
    return (
        f'<svg viewBox="{-MARGIN} -6 {MARGIN + SIDE + 6} {SIDE + MARGIN}" role="img" '
        f'aria-label="Similarity of {pluralize(count, "bars")}">{numbers}'
        f'<rect width="{SIDE}" height="{SIDE}"/><path class="diagonal" d="M0 0L{SIDE} {SIDE}"/>'
        f'<g class="cells" transform="scale({cell:.5g}) translate(0 .5)">{paths}</g>'
        f'<path class="boundary" d="{boundary}"/></svg>'
    )


def _runs(cells: NDArray[np.bool_]) -> str:
    """Return the path of horizontal lines through the cells."""
    edges = np.diff(np.pad(cells.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    rows, starts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    runs = zip(starts.tolist(), rows.tolist(), (ends - starts).tolist(), strict=True)
    return "".join(f"M{x} {y}h{length}" for x, y, length in runs)
