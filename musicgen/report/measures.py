"""Measures beside what they are to be compared with: a figure alone says little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from musicgen.report.markup import format_value, text

MARK = 1.2  # width in per cent of the scale


class Anchor(NamedTuple):
    """What a known kind of music scores, such as `another song of the style`."""

    words: str
    value: float


@dataclass(frozen=True)
class Measure:
    """One figure about a piece."""

    name: str  # what it measures, in a musician's words
    value: float | None  # None or NaN if it is undefined for the piece
    anchors: Sequence[Anchor] = ()  # in any order; those without a value are left out
    high: float = 1.0  # end of the scale from 0, which anchors and value may extend
    ends: tuple[str, str] = ("", "")  # what 0 and `high` mean
    detail: str = ""  # a line below, such as what the value was found at

    @property
    def known(self) -> bool:
        return self.value is not None and math.isfinite(self.value)


def verdict(measure: Measure) -> str:
    """Say where the value lies among its anchors; empty without value or anchors."""
    anchors = _sorted(measure)
    value = measure.value
    if value is None or not measure.known or not anchors:
        return ""
    if value <= anchors[0].value:
        return f"{'below' if value < anchors[0].value else 'like'} {anchors[0].words}"
    if value >= anchors[-1].value:
        return f"{'above' if value > anchors[-1].value else 'like'} {anchors[-1].words}"
    above = next(i for i, anchor in enumerate(anchors) if anchor.value > value)
    low, high = anchors[above - 1 : above + 1]
    if value - low.value > high.value - value:
        low, high = high, low
    return f"nearer to {low.words} than to {high.words}"


def measure_list(measures: Sequence[Measure]) -> str:
    """Return the measures as HTML: name, value and verdict, a scale, and its anchors."""
    if not measures:
        return ""
    rows = "\n".join(_measure(measure) for measure in measures)
    return f'<dl class="measures">\n{rows}\n</dl>'


def _measure(measure: Measure) -> str:
    name = f"<dt>{text(measure.name)}</dt>"
    if not measure.known:
        return f"<div>{name}<dd>n/a</dd></div>"
    words = verdict(measure)
    value = f"<strong>{format_figure(measure.value)}</strong>{f': {text(words)}' if words else ''}"
    low, high = (
        [Anchor(words, end)] if words else []
        for words, end in zip(measure.ends, (0.0, measure.high), strict=True)
    )
    anchors = " · ".join(
        f"{text(anchor.words)} {format_figure(anchor.value)}"
        for anchor in [*low, *_sorted(measure), *high]
    )
    # The text says it all: the scale is a picture of it.
    return (
        f"<div>{name}<dd>{value}{_scale(measure)}"
        + (f"<small>{anchors}</small>" if anchors else "")
        + (f"<small>{text(measure.detail)}</small>" if measure.detail else "")
        + "</dd></div>"
    )


def _scale(measure: Measure) -> str:
    assert measure.value is not None
    points = [anchor.value for anchor in _sorted(measure)]
    low = min(0.0, measure.value, *points)
    high = max(measure.high, measure.value, *points)

    def bar(kind: str, value: float) -> str:
        left = (100 - MARK) * (value - low) / ((high - low) or 1)
        return f'<rect class="{kind}" x="{left:.1f}" width="{MARK}" height="12"/>'

    marks = "".join([*(bar("anchor", point) for point in points), bar("value", measure.value)])
    return (
        '<svg class="scale" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="line" y="5" width="100" height="2"/>{marks}</svg>'
    )


def _sorted(measure: Measure) -> list[Anchor]:
    known = (anchor for anchor in measure.anchors if math.isfinite(anchor.value))
    return sorted(known, key=lambda anchor: anchor.value)


def format_figure(value: float | None) -> str:
    """Format counts in full, other numbers to two significant digits."""
    rounded = value if value is None or isinstance(value, int) else float(f"{value:.2g}")
    return format_value(rounded)
