"""The report on a prepared corpus: a CSV file with a row for each piece, and a short summary."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from musicgen.data.corpora.base import SPLITS
from musicgen.data.preparation.encoding import PieceRecord
from musicgen.text import csv_cell, pluralize

TABLE = "report.csv"
_NUM_NAMED = 5  # number of pieces, and of unusable files, that the summary names


def write_report(
    folder: Path, records: Iterable[PieceRecord], splits: Sequence[str], originals: Sequence[str]
) -> list[str]:
    """Write `report.csv`, with a row for each piece; return the lines of a summary.

    Args:
        splits: split of each piece; "" for a piece that was left out.
        originals: name of the piece that each piece duplicates; "": none.
    """
    named = set(originals)
    split_of: dict[str, str] = {}  # of the originals
    duplicates: list[tuple[str, str, str]] = []  # name, original and split
    left_out: list[str] = []
    num_pieces = tokens = bars = read = kept = 0
    # File names may be invalid UTF-8, and are written as their bytes on disk.
    with (folder / TABLE).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        columns = ["tokens", "bars", "notes_read", "notes_kept"]
        writer.writerow(["piece", "kept", "split", *columns, "duplicate_of", "notes"])
        for record, split, original in zip(records, splits, originals, strict=True):
            counts = [record.num_tokens, record.num_bars, record.notes_read, record.notes_kept]
            notes = record.skipped or record.report
            row = [record.name, not record.skipped, split, *counts, original, notes]
            writer.writerow(map(csv_cell, row))
            if record.name in named:
                split_of[record.name] = split
            if original:
                duplicates.append((record.name, original, split))
            if record.skipped:
                left_out.append(f"{record.name}: {record.skipped}")
                continue
            num_pieces += 1
            tokens, bars = tokens + record.num_tokens, bars + record.num_bars
            read, kept = read + record.notes_read, kept + record.notes_kept
    shares = ", ".join(f"{splits.count(split)} {split}" for split in SPLITS)
    lines = [
        f"{pluralize(num_pieces, 'pieces')} ({shares}), {pluralize(tokens, 'tokens')} in "
        f"{pluralize(bars, 'bars')}, {kept:,} of {pluralize(read, 'notes')} kept"
    ]
    in_other_split = [
        (name, original, split)
        for name, original, split in duplicates
        if split != split_of[original]
    ]
    where = "in the splits of their originals"
    if in_other_split:
        where = (
            f"{len(in_other_split)} of them in another split than the original (published split)"
        )
    pairs = [f"{name} = {original}" for name, original, _ in in_other_split or duplicates]
    named_pairs = ", ".join(pairs[:_NUM_NAMED])
    more = f" and {len(pairs) - _NUM_NAMED} more" if len(pairs) > _NUM_NAMED else ""
    found = f"{len(duplicates)}, {where}: {named_pairs}{more}" if pairs else "none"
    lines.append(f"duplicates: {found}")
    if left_out:
        lines.append(f"left out: {len(left_out)} of {len(splits)} pieces")
        lines += [f"  {reason}" for reason in left_out[:_NUM_NAMED]]
        if len(left_out) > _NUM_NAMED:
            lines.append(f"  and {len(left_out) - _NUM_NAMED} more")
    return lines
