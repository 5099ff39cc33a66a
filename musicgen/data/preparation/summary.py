"""Reports on a prepared corpus: a CSV row per piece, and a summary to read."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from musicgen.data.corpora.base import SPLITS
from musicgen.data.preparation.encoding import PieceRecord
from musicgen.text import csv_cell, pluralize
from musicgen.tokenization.base import EncodingSummary

TABLE, SUMMARY = "report.csv", "summary.txt"
_NUM_REASONS = 12


def write_table(
    folder: Path, records: Sequence[PieceRecord], splits: Sequence[str], originals: Sequence[str]
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
    records: Sequence[PieceRecord],
    splits: Sequence[str],
    originals: Sequence[str],
) -> str:
    """Summarise the corpus in a few lines; see `write_table` for the arguments."""
    kept = [record for record in records if not record.skipped]
    tokens = [record.num_tokens for record in kept]
    bars = sum(record.num_bars for record in kept)
    per_bar = median(record.num_tokens / max(1, record.num_bars) for record in kept)
    shares = ", ".join(f"{splits.count(split)} {split}" for split in SPLITS)
    lines = [
        f"{pluralize(len(kept), 'pieces')} ({shares}), {pluralize(sum(tokens), 'tokens')} in "
        f"{pluralize(bars, 'bars')}",
        f"a piece: {median(tokens):,.0f} tokens (median), {min(tokens):,} to {max(tokens):,}; "
        f"a bar: {per_bar:.0f}",
        _notes([record.encoding for record in kept]),
    ]
    # Without numbers and names, the same rules and reasons are counted together.
    rules = [re.sub(r"^\d+ ", "… ", rule) for record in kept for rule in record.encoding.rules]
    lines += _ranking("rules", Counter(rules))
    lines += _duplicates(records, splits, originals)
    skipped = Counter(
        re.sub(r"\d+([.,]\d+)*", "…", record.skipped.replace(record.name, "…"))
        for record in records
        if record.skipped
    )
    lines += _ranking(f"left out: {skipped.total()} of {len(records)} pieces", skipped)
    return "\n".join(lines)


def _notes(encodings: Sequence[EncodingSummary]) -> str:
    total = EncodingSummary(
        sum(encoding.notes_read for encoding in encodings),
        sum(encoding.notes_kept for encoding in encodings),
        dict(sum((Counter(e.dropped) for e in encodings), Counter()).most_common()),
        dict(sum((Counter(e.clipped) for e in encodings), Counter()).most_common()),
    )
    if total.notes_kept == total.notes_read:
        return total.describe()
    return f"{total.notes_kept:,} of {total.notes_read:,} notes kept: {total.describe()}"


def _duplicates(
    records: Sequence[PieceRecord], splits: Sequence[str], originals: Sequence[str]
) -> list[str]:
    names = [record.name for record in records]
    split_of = dict(zip(names, splits, strict=True))
    duplicates = [(name, other) for name, other in zip(names, originals, strict=True) if other]
    if not duplicates:
        return ["duplicates: none"]
    pairs = _few([f"{name} = {original}" for name, original in duplicates])
    lines = [f"duplicates: {len(duplicates)}, in the splits of their originals: {pairs}"]
    leaked = [name for name, original in duplicates if split_of[name] != split_of[original]]
    if leaked:
        lines.append(
            f"warning: {len(leaked)} of them are in another split, which the corpus itself gives: "
            f"{_few(leaked)}"
        )
    return lines


def _ranking(title: str, counts: Counter[str]) -> list[str]:
    if not counts:
        return []
    ranked = counts.most_common(_NUM_REASONS)
    lines = [f"{title}:", *(f"  {count} × {reason}" for reason, count in ranked)]
    if len(counts) > _NUM_REASONS:
        lines.append(f"  and {len(counts) - _NUM_REASONS} other kinds; see {TABLE}")
    return lines


def _few(names: Sequence[str], count: int = 5) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
