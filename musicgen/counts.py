"""Numbers of things in words."""

from __future__ import annotations


def counted(count: int, nouns: str) -> str:
    """Such as `1 piece` and `1,234 notes of drums`; `nouns` begins with a plural."""
    noun, space, rest = nouns.partition(" ")
    return f"{count:,} {noun.removesuffix('s') if count == 1 else noun}{space}{rest}"
