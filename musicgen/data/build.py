"""A cache from the encoded pieces of a corpus: splits, duplicates, reports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from musicgen.data.cache import INDEX
from musicgen.data.duplicates import find_duplicates
from musicgen.data.encoding import Encoded
from musicgen.data.report import SUMMARY, count_tokens, summarise, write_table
from musicgen.data.shelf import Shelf, write_shelf
from musicgen.data.splits import Piece, split_groups
from musicgen.errors import UserError
from musicgen.tokenization.base import Tokenizer


def build_cache(
    folder: Path,
    pieces: Sequence[Piece],
    found: Sequence[tuple[Shelf, int]],
    tokenizer: Tokenizer,
    fractions: tuple[float, float],
) -> None:
    """Fill a folder with a cache: the same bytes for the same pieces, wherever they were found.

    Args:
        pieces: the corpus.
        found: where each piece lies encoded.

    Raises:
        UserError: none of them was kept.
    """
    records = [shelf.records[place] for shelf, place in found]
    kept = [i for i, record in enumerate(records) if not record.skipped]
    if not kept:
        first = f"{pieces[0].path}: {records[0].skipped}" if records else "there is none"
        raise UserError(f"none of {len(pieces)} pieces can be used; the first: {first}")

    def encoded() -> Iterator[Encoded]:
        return (shelf[place] for shelf, place in found)

    write_shelf(folder, records, encoded())
    originals = _originals(pieces, kept, np.stack([piece.sketch for piece in encoded()]))
    grouped = [replace(pieces[i], group=pieces[originals.get(i, i)].group) for i in kept]
    kept_splits = split_groups(grouped, fractions)
    index = {
        "names": [records[i].name for i in kept],
        "splits": kept_splits,
        "bar_lengths": [records[i].bar_length for i in kept],
        "num_tokens": [records[i].num_tokens for i in kept],
        "num_bars": [records[i].num_bars for i in kept],
    }
    (folder / INDEX).write_text(json.dumps(index))

    splits, same = [""] * len(records), [""] * len(records)
    for i, split in zip(kept, kept_splits, strict=True):
        splits[i] = split
    for i, original in originals.items():
        same[i] = records[original].name
    write_table(folder, records, splits, same)
    counts = count_tokens((piece.tokens for piece in encoded()), tokenizer.vocabulary)
    summary = summarise(records, splits, same, counts, tokenizer.vocabulary)
    (folder / SUMMARY).write_text(summary + "\n", encoding="utf-8", errors="surrogateescape")


def _originals(
    pieces: Sequence[Piece], kept: Sequence[int], sketches: np.ndarray
) -> dict[int, int]:
    """For each kept piece whose music another has too: the first of those by name."""
    by_name = sorted(kept, key=lambda i: pieces[i].name)
    first = [by_name[i] for i in find_duplicates(sketches[by_name])]
    return {i: original for i, original in zip(by_name, first, strict=True) if i != original}
