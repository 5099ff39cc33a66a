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

from musicgen.counts import counted
from musicgen.data.encoding import Record
from musicgen.data.splits import SPLITS
from musicgen.tokenization.base import EncodingReport, Vocabulary

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
        f"{counted(len(kept), 'pieces')} ({shares}), {counted(sum(tokens), 'tokens')} in "
        f"{counted(bars, 'bars')}",
        f"a piece: {median(tokens):,.0f} tokens (median), {min(tokens):,} to {max(tokens):,}; "
        f"a bar: {per_bar:.0f}",
        f"lengths: {_histogram(tokens)}",
        _coverage(counts, vocabulary),
        _notes(kept),
    ]
    lines += _listed("rules", Counter(_rule(rule) for record in kept for rule in record.rules))
    lines += _duplicates(records, splits, originals)
    skipped = Counter(_reason(record) for record in records if record.skipped)
    lines += _listed(f"left out: {skipped.total()} of {len(records)} pieces", skipped)
    return "\n".join(lines)


def _histogram(values: Sequence[int]) -> str:
    """How many values lie in each of 16 equal steps; the longest 1% in the last, with a word."""
    low, top = min(values), int(np.percentile(values, 99, method="higher"))
    counts, _ = np.histogram(np.minimum(values, top), _NUM_BINS, (low, top))
    levels = np.ceil(counts / counts.max() * len(_BLOCKS)).astype(int)
    bars = "".join(_BLOCKS[level - 1] if level else " " for level in levels.tolist())
    longer = "" if top == max(values) else ", and what is longer"
    return f"{low:,} |{bars}| {top:,} tokens{longer}"


def _coverage(counts: NDArray[np.int64], vocabulary: Vocabulary) -> str:
    ids = np.flatnonzero(counts[: vocabulary.pad_id] == 0).tolist()
    unused = [vocabulary.token(i) for i in ids]
    line = f"vocabulary: {vocabulary.pad_id - len(unused)} of {vocabulary.pad_id} tokens occur"
    return line + (f"; never {_few(unused)}" if unused else "")


def _notes(kept: Sequence[Record]) -> str:
    whole = EncodingReport()
    dropped: Counter[str] = Counter()
    clipped: Counter[str] = Counter()
    for record in kept:
        whole.notes_read += record.notes_read
        whole.notes_kept += record.notes_kept
        dropped.update(record.dropped)
        clipped.update(record.clipped)
    whole.dropped, whole.clipped = dict(dropped.most_common()), dict(clipped.most_common())
    if whole.notes_kept == whole.notes_read:
        return whole.summary()
    return f"{whole.notes_kept:,} of {whole.notes_read:,} notes kept: {whole.summary()}"


def _rule(text: str) -> str:
    """What `2 notes without an end closed` and `5 notes …` have in common."""
    return re.sub(r"^\d+ ", "… ", text)


def _reason(record: Record) -> str:
    return re.sub(r"\d+([.,]\d+)*", "…", record.skipped.replace(record.name, "…"))


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
    pairs = _few([f"{name} = {original}" for name, original in repeats])
    lines = [f"duplicates: {len(repeats)}, in the split of what they repeat: {pairs}"]
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
