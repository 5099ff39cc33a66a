"""What became of every piece: a CSV with a line for each, and a summary to read."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from musicgen.data.encoding import Record
from musicgen.data.splits import SPLITS
from musicgen.tokenization.base import Vocabulary

TABLE, SUMMARY = "report.csv", "summary.txt"
_BLOCKS = "▁▂▃▄▅▆▇█"
_NUM_BINS = 16
_NUM_REASONS = 12


def write_table(
    folder: Path, records: Sequence[Record], splits: Sequence[str], originals: Sequence[str]
) -> None:
    """`report.csv`: a line for each piece.

    Args:
        splits: of the pieces; empty where one was skipped.
        originals: the piece that has the same music; empty where there is none.
    """
    # A file name need not be valid UTF-8, and is written as the bytes it has on disk.
    with (folder / TABLE).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        columns = ["tokens", "bars", "tokens_per_bar", "notes_read", "notes_kept"]
        writer.writerow(["piece", "kept", "split", *columns, "duplicate_of", "notes"])
        for record, split, original in zip(records, splits, originals, strict=True):
            per_bar = round(record.num_tokens / record.num_bars, 1) if record.num_bars else 0
            writer.writerow(
                [
                    record.name,
                    not record.skipped,
                    split,
                    record.num_tokens,
                    record.num_bars,
                    per_bar,
                    record.notes_read,
                    record.notes_kept,
                    original,
                    record.skipped or record.encoding.summary(),
                ]
            )


def summarise(
    records: Sequence[Record],
    splits: Sequence[str],
    originals: Sequence[str],
    counts: NDArray[np.int64],
    vocabulary: Vocabulary,
) -> str:
    """A few lines on the whole corpus; arguments as for `write_table`.

    Args:
        counts: how often each token occurs. [V]
    """
    kept = [record for record in records if not record.skipped]
    tokens = [record.num_tokens for record in kept]
    bars = sum(record.num_bars for record in kept)
    per_bar = median(record.num_tokens / max(1, record.num_bars) for record in kept)
    shares = ", ".join(f"{splits.count(split)} {split}" for split in SPLITS)
    lines = [
        f"{len(kept)} pieces ({shares}), {sum(tokens):,} tokens in {bars:,} bars",
        f"a piece: {median(tokens):,.0f} tokens (median), {min(tokens):,} to {max(tokens):,}; "
        f"a bar: {per_bar:.0f}",
        f"lengths: {_histogram(tokens)}",
        _coverage(counts, vocabulary),
        _notes(kept),
    ]
    lines += _listed("rules", Counter(rule for record in kept for rule in _ruled(record)))
    lines += _duplicates(records, splits, originals)
    skipped = Counter(_kind(record) for record in records if record.skipped)
    lines += _listed(f"left out: {skipped.total()} of {len(records)} pieces", skipped)
    return "\n".join(lines)


def _histogram(values: Sequence[int]) -> str:
    """How many values lie in each of 16 equal steps up to the 99th percentile, and above."""
    top = max(1.0, float(np.percentile(values, 99)))
    counts, _ = np.histogram(np.minimum(values, top), _NUM_BINS, (0, top))
    levels = np.ceil(counts / counts.max() * len(_BLOCKS)).astype(int)
    bars = "".join(_BLOCKS[level - 1] if level else " " for level in levels.tolist())
    return f"0 |{bars}| {top:,.0f} tokens and more"


def _coverage(counts: NDArray[np.int64], vocabulary: Vocabulary) -> str:
    ids = np.flatnonzero(counts[: vocabulary.pad_id] == 0).tolist()
    unused = [vocabulary.token(i) for i in ids]
    line = f"vocabulary: {vocabulary.pad_id - len(unused)} of {vocabulary.pad_id} tokens occur"
    return line + (f"; never {_few(unused)}" if unused else "")


def _notes(kept: Sequence[Record]) -> str:
    read = sum(record.notes_read for record in kept)
    total = sum(record.notes_kept for record in kept)
    parts = [f"{read:,} read, {total:,} kept"]
    for verb in ("dropped", "clipped"):
        counts: Counter[str] = Counter()
        for record in kept:
            counts.update(getattr(record, verb))
        parts += [f"{count:,} {reason} {verb}" for reason, count in counts.most_common()]
    return "notes: " + ", ".join(parts)


def _ruled(record: Record) -> set[str]:
    return {_without_numbers(rule) for rule in record.rules}


def _without_numbers(text: str) -> str:
    """`3 tempi of 0 bpm` and `5 tempi of 0 bpm` are one thing; metres are kept apart."""
    return re.sub(r"^\d+ |(?<= byte )\d+|(?<=ends )\d+", "… ", text).replace("…  ", "… ")


def _kind(record: Record) -> str:
    reason = _without_numbers(record.skipped.replace(record.name, "…"))
    return re.sub(r"\(.*?\)", "(…)", reason)


def _duplicates(
    records: Sequence[Record], splits: Sequence[str], originals: Sequence[str]
) -> list[str]:
    where = {record.name: split for record, split in zip(records, splits, strict=True)}
    repeats = [
        (record.name, original)
        for record, original in zip(records, originals, strict=True)
        if original
    ]
    if not repeats:
        return ["duplicates: none"]
    line = f"duplicates: {len(repeats)} pieces are the music of {len({o for _, o in repeats})}"
    lines = [f"{line} others, and share their split: {_few([f'{a} = {b}' for a, b in repeats])}"]
    torn = [name for name, original in repeats if where[name] != where[original]]
    if torn:
        lines.append(
            f"beware: {len(torn)} of them are in another split, which the corpus itself gives: "
            f"{_few(torn)}"
        )
    return lines


def _listed(title: str, counts: Counter[str]) -> list[str]:
    if not counts:
        return []
    lines = [f"{title}:"]
    lines += [f"  {count} × {reason}" for reason, count in counts.most_common(_NUM_REASONS)]
    if len(counts) > _NUM_REASONS:
        lines.append(f"  and {len(counts) - _NUM_REASONS} other kinds; see {TABLE}")
    return lines


def _few(names: Sequence[str], count: int = 5) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


def count_tokens(arrays: Iterable[NDArray[np.uint16]], vocabulary: Vocabulary) -> NDArray[np.int64]:
    """How often each token occurs. [V]."""
    counts = np.zeros(len(vocabulary), np.int64)
    for array in arrays:
        counts += np.bincount(array, minlength=len(vocabulary))
    return counts
