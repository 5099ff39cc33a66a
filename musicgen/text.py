"""Formatting of texts for messages and tables."""

from collections.abc import Mapping, Sequence


def pluralize(count: int, nouns: str) -> str:
    """Return a count with its noun, such as `1 piece` or `1,234 notes of drums`.

    Args:
        nouns: the plural, which other words may follow.
    """
    noun, space, rest = nouns.partition(" ")
    return f"{count:,} {noun.removesuffix('s') if count == 1 else noun}{space}{rest}"


def rate(count: int, seconds: float) -> str:
    """Return the speed of work, such as `1,234 a second`, or `5.5 s each` if it is slower."""
    if not count or count >= seconds:
        per_second = count / seconds
        return f"{per_second:,.{1 if per_second < 100 else 0}f} a second"
    return f"{seconds / count:,.1f} s each"


def printable(text: str) -> str:
    """Replace control characters, such as escape sequences in file names, by `?`."""
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else "?" for c in text)


def shortened(text: str) -> str:
    """Return the first 80 letters of a text: tracks may have names of many thousand letters."""
    return text if len(text) <= 80 else f"{text[:79]}…"


def csv_cell(value: object) -> object:
    """Return a value for a CSV file that spreadsheets do not take for a formula.

    Text that begins like a formula gets an apostrophe in front.
    """
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula else value


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows with the same columns as a Markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
