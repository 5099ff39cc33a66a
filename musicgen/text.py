"""Text of messages."""

from __future__ import annotations


def pluralize(count: int, nouns: str) -> str:
    """Format a count of `nouns`, which begin with a plural: `1 piece`, `1,234 notes of drums`."""
    noun, space, rest = nouns.partition(" ")
    return f"{count:,} {noun.removesuffix('s') if count == 1 else noun}{space}{rest}"
