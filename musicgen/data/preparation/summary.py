"""Reports on a prepared corpus: a CSV row per piece, and a summary to read."""

from __future__ import annotations

import csv
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from musicgen.data.corpora.base import SPLITS
from musicgen.data.preparation.encoding import PieceRecord
from musicgen.text import csv_cell, pluralize
from musicgen.tokenization.base import EncodingSummary

TABLE, SUMMARY = "report.csv", "summary.txt"
_NUM_REASONS = 12


def write_table(
    folder: Path, records: Iterable[PieceRecord], splits: Sequence[str], originals: Sequence[str]
) -> None:
    """Write `report.csv`, with a row per piece.

    Args:
        splits: empty for a skipped piece.
        originals: name of the piece that each one duplicates; empty for none.
    """
    # File names need not be valid UTF-8, and are written as their bytes on disk.
    with (folder / TABLE).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        columns = ["tokens", "bars", "tokens_per_bar", "notes_read", "notes_kept"]
        writer.writerow(["piece", "kept", "split", *columns, "duplicate_of", "notes"])
        for record, split, original in zip(records, splits, originals, strict=True):
            encoding, tokens, bars = record.encoding, record.num_tokens, record.num_bars
            per_bar = round(tokens / bars, 1) if bars else 0
            counts = [tokens, bars, per_bar, encoding.notes_read, encoding.notes_kept]
            notes = record.skipped or encoding.describe()
            row = [record.name, not record.skipped, split, *counts, original, notes]
            writer.writerow(map(csv_cell, row))


def summarise(
    records: Iterable[PieceRecord], splits: Sequence[str], originals: Sequence[str]
) -> str:
    """Summarise the corpus in a few lines; arguments as for `write_table`."""
    tokens, per_bar, bars = array("q"), array("d"), 0
    total = EncodingSummary()
    dropped: Counter[str] = Counter()
    clipped: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    duplicates, named = [], set(originals)
    split_of = {}  # of the originals
    for record, split, original in zip(records, splits, originals, strict=True):
        if original:
            duplicates.append((record.name, original, split))
        if record.name in named:
            split_of[record.name] = split
        if record.skipped:
            # Without numbers and names, the same rules and reasons are counted together.
            reason = record.skipped.replace(record.name, "…")
            skipped[re.sub(r"\d+([.,]\d+)*", "…", reason)] += 1
            continue
        tokens.append(record.num_tokens)
        per_bar.append(record.num_tokens / max(1, record.num_bars))
        bars += record.num_bars
        total.notes_read += record.encoding.notes_read
        total.notes_kept += record.encoding.notes_kept
        dropped.update(record.encoding.dropped)
        clipped.update(record.encoding.clipped)
        rules.update(re.sub(r"^\d+ ", "… ", rule) for rule in record.encoding.rules)
    total.dropped, total.clipped = dict(dropped.most_common()), dict(clipped.most_common())
    notes = total.describe()
    if total.notes_kept != total.notes_read:
        notes = f"{total.notes_kept:,} of {total.notes_read:,} notes kept: {notes}"
    shares = ", ".join(f"{splits.count(split)} {split}" for split in SPLITS)
    lines = [
        f"{pluralize(len(tokens), 'pieces')} ({shares}), {pluralize(sum(tokens), 'tokens')} in "
        f"{pluralize(bars, 'bars')}",
        f"a piece: {median(tokens):,.0f} tokens (median), {min(tokens):,} to {max(tokens):,}; "
        f"a bar: {median(per_bar):.0f}",
        notes,
    ]
    lines += _ranking("rules", rules)
    lines.append(_duplicates(duplicates, split_of))
    lines += _ranking(f"left out: {skipped.total()} of {len(splits)} pieces", skipped)
    return "\n".join(lines)


def _duplicates(duplicates: Sequence[tuple[str, str, str]], split_of: Mapping[str, str]) -> str:
    """Describe the duplicates: each one's name, original and split."""
    if not duplicates:
        return "duplicates: none"
    apart = [(name, other) for name, other, split in duplicates if split != split_of[other]]
    where = "in the splits of their originals"
    if apart:
        where = f"{len(apart)} of them in another split than the original, as the corpus has it"
    pairs = [f"{name} = {other}" for name, other in apart or (row[:2] for row in duplicates)]
    return f"duplicates: {len(duplicates)}, {where}: {name_few(pairs)}"


def _ranking(title: str, counts: Counter[str]) -> list[str]:
    if not counts:
        return []
    ranked = counts.most_common(_NUM_REASONS)
    lines = [f"{title}:", *(f"  {count} × {reason}" for reason, count in ranked)]
    if len(counts) > _NUM_REASONS:
        lines.append(f"  and {len(counts) - _NUM_REASONS} other kinds; see {TABLE}")
    return lines


def name_few(names: Sequence[str], count: int = 5) -> str:
    """Join the first names, and say how many more there are."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
