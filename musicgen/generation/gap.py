"""What is written anew in a whole piece: some bars, some parts, or some parts in some bars."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from musicgen.errors import ParameterError

_BARS = re.compile(r"(?:(?:(.*)\s)?(?:bars?\s+)?(\d+)\s*-\s*(\d+)|(?:(.*)\s)?bar\s+(\d+)|(\d+))")


class Gap(NamedTuple):
    """What is written anew.

    Attributes:
        parts: names of parts, or of tracks; empty: all parts but those that are kept.
        bars: the first one, from 0, and the one after the last; None: to the end.
    """

    parts: tuple[str, ...] = ()
    bars: tuple[int, int | None] = (0, None)


def parse_gap(text: Any) -> Gap:
    """Return the gap of a text such as `violin 5-8`, `oboe, horn 2 9-12`, `5-8`, `bar 5` or `bass`.

    A list is the same as a text with commas.

    A number alone is a bar; a number after a name belongs to the name: `violin 1`.

    Raises:
        ParameterError: it is no such text.
    """
    is_list = isinstance(text, Sequence) and not isinstance(text, str)
    *parts, last = (
        str(item).strip() for item in (text if is_list else str(text).split(",")) or [""]
    )
    if any(map(_BARS.fullmatch, parts)):
        raise ParameterError(
            "fill", text, "expected bars once, at the end; fill others in the result"
        )
    match = _BARS.fullmatch(last)
    gap = Gap((*parts, last))
    if match is not None:
        name = re.sub(r"\s*\bbars?$", "", match[1] or match[4] or "").strip()
        first = int(match[2] or match[5] or match[6])
        bars = first - 1, int(match[3] or first)
        gap = Gap((*parts, *([name] if name or parts else [])), bars)
        if not 0 <= bars[0] < bars[1]:
            raise ParameterError("fill", text, "expected bars from 1, such as 9-12")
    if not all(gap.parts):
        expected = "expected parts, bars or both, such as violin 5-8, 5-8 or bass"
        raise ParameterError("fill", text, expected)
    return gap
