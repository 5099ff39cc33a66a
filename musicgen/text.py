"""Text of messages."""

from collections.abc import Mapping, Sequence


def pluralize(count: int, nouns: str) -> str:
    """Format a count of `nouns`, which begin with a plural: `1 piece`, `1,234 notes of drums`."""
    noun, space, rest = nouns.partition(" ")
    return f"{count:,} {noun.removesuffix('s') if count == 1 else noun}{space}{rest}"


def printable(text: str) -> str:
    """Replace what terminals would obey, such as escape sequences in file names, by `?`."""
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else "?" for c in text)


def shortened(text: str) -> str:
    """Return the first 80 letters of a text; files may have names of many thousand."""
    return text if len(text) <= 80 else f"{text[:79]}…"


def csv_cell(value: object) -> object:
    """Return a value for a CSV file that spreadsheets do not run as a formula.

    Text that begins like a formula, as names of files may, gets an apostrophe in front.
    """
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula else value


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows with the same columns as a table of Markdown."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
