"""A look at a corpus before training: leaks, empty files, onsets without a grid, metres, tempi."""

from __future__ import annotations

import csv
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from musicgen.console import log, track
from musicgen.data.corpora import Corpus, Piece
from musicgen.data.preparation import EncodedCorpus
from musicgen.data.preparation.shared import (
    Hashes,
    LineHashes,
    Shared,
    find_shared,
    line_hashes,
    top_line,
)
from musicgen.data.preparation.summary import TABLE, name_few
from musicgen.data.preparation.workers import Failure, run_limited
from musicgen.files import write_bytes, write_text
from musicgen.metrics.key import find_key
from musicgen.metrics.metre import NO_GRID, fit_bars, grid_clarity
from musicgen.metrics.originality import GRID, Notes, PassageIndex, passage_notes
from musicgen.midi import NoteArray, Score, Track, pitched_notes
from musicgen.report.html import ReportPiece, render_report
from musicgen.report.payload import Mark
from musicgen.report.tables import write_csv
from musicgen.text import pluralize

Row = dict[str, Any]

FINDINGS = {
    "leak": "for validation or testing that share much with another split",
    "duplicate": "with the same music as another",
    "unusable": "empty or unreadable",
    "metre": "where bars of another length fit better",
    "bar lines": "where bars that begin on another beat fit better",
    "no grid": "whose onsets lie anywhere between the beats",
    "machine": "with every onset on the grid and one velocity a track",
    "tempo": "with a tempo far from those of the others",
}
"""What may be found of a piece, by the name that `audit` gives it."""

_MIN_NOTES = 24  # of which a grid can be seen
_EXAMPLES = 3  # of each finding, on the page


def audit(encoded: EncodedCorpus) -> list[Row]:
    """Return a row for each piece of a corpus, which is prepared first if it is not.

    The columns are `piece`, `split` (empty for an unusable one), `findings` (a list of those of
    `FINDINGS`), `details` (a list of sentences), `shares_with` (the name of another piece, or ""),
    `share` (of the notes or the melody), `notes`, `key`, `bpm` (mean over time), `metre`, `grid`
    (0 to 1: how clearly onsets keep to a division of the beat).
    """
    cache, corpus, limits = encoded.cache, encoded.corpus, encoded.encoder.limits
    pieces = corpus.pieces()
    with (cache.folder / TABLE).open(newline="", encoding="utf-8", errors="surrogateescape") as f:
        table = list(csv.DictReader(f))
    kept = [i for i, prepared in enumerate(table) if prepared["split"]]
    results = run_limited(
        partial(_look, corpus),
        [pieces[i] for i in kept],
        num_workers=encoded.num_workers,
        max_seconds=limits.max_seconds,
        max_gigabytes=limits.max_gigabytes,
    )
    looks = {kept[number]: look for number, look in track(results, "looking", len(kept))}
    rows, hashes = [], LineHashes()
    for i, (piece, prepared) in enumerate(zip(pieces, table, strict=True)):
        row: Row = {"piece": piece.name, "split": prepared["split"], "findings": [], "details": []}
        row |= {"shares_with": prepared["duplicate_of"], "share": None}
        rows.append(row)
        look = looks.get(i, Failure(prepared["notes"], True))
        if isinstance(look, Failure):
            row["split"] = ""
            _add(row, "unusable", look.reason)
            continue
        facts, own = look
        row |= facts
        hashes.append(own)
        if row["shares_with"]:
            _add(row, "duplicate", f"the same music as {row['shares_with']}")
    usable = [row for row in rows if row["split"]]
    _add_leaks(usable, hashes)
    for row in usable:
        _add_own(row)
    _add_tempos(usable)
    return rows


def _look(corpus: Corpus, piece: Piece) -> tuple[Row, Hashes]:
    """Read a piece; return facts about it, and what finds its music in others."""
    score = corpus.read_piece(piece)
    notes = score.notes
    key, minutes = find_key(pitched_notes(score)), score.seconds / 60
    exact = (24 * notes["onset"]) % score.ticks_per_beat == 0
    even = all(len(np.unique(track.notes["velocity"])) < 2 for track in score.tracks)
    bars = fit_bars(score)
    facts = {
        "notes": len(notes),
        "key": key.name if key else "",
        "bpm": round(score.end / score.ticks_per_beat / minutes, 1) if minutes else None,
        "metre": "{}/{}".format(*score.metre_at(0)[1:]),
        "grid": round(grid_clarity(notes["onset"] / score.ticks_per_beat), 3),
        "better metre": bars.metre,
        "shift": bars.shift,
        "machine": len(notes) >= _MIN_NOTES and bool(exact.all()) and even,
    }
    return facts, line_hashes(score)


def _add(row: Row, finding: str, detail: str) -> None:
    row["findings"].append(finding)
    row["details"].append(detail)


def _add_leaks(rows: Sequence[Row], hashes: LineHashes) -> None:
    """Add what each held-out piece shares most with a piece of another split."""
    found = find_shared(hashes, [row["split"] for row in rows])
    for i, each in {pair.piece: pair for pair in sorted(found, key=lambda x: x.share)}.items():
        row, other = rows[i], rows[each.other]
        row["shares_with"], row["share"] = other["piece"], round(each.share, 2)
        _add(row, "leak", f"{_relation(each)} {other['piece']}, a {other['split']} piece")


def _relation(pair: Shared) -> str:
    if pair.part < 2 / 3:
        where = "is inside"
    elif pair.part > 3 / 2:
        where = "contains that of" if pair.kind == "melody" else "contains"
    else:
        where = "is that of" if pair.kind == "melody" else "is the same music as"
    return f"{'its melody' if pair.kind == 'melody' else 'it'} {where}"


def _add_own(row: Row) -> None:
    """Add the findings that concern one piece alone; bars need a grid."""
    metre, shift = row.pop("better metre"), row.pop("shift")
    if row["notes"] >= _MIN_NOTES and row["grid"] < NO_GRID:
        _add(row, "no grid", f"onsets do not keep to the beats ({row['grid']:.2f} of 1)")
    elif metre:
        _add(row, "metre", f"written in {row['metre']}, but {metre} fits better")
    elif shift:
        _add(row, "bar lines", f"bars fit better {pluralize(shift, 'quarter notes')} later")
    if row.pop("machine"):
        _add(row, "machine", "every onset on the grid, one velocity a track")


def _add_tempos(rows: Sequence[Row]) -> None:
    """Add tempi an octave from the median, and beyond three standard deviations (by quartiles)."""
    known = [row for row in rows if row["bpm"]]
    octaves = np.log2([row["bpm"] for row in known])
    low, middle, high = np.quantile(octaves, (0.25, 0.5, 0.75))
    far = abs(octaves - middle) > max(1, 3 * (high - low) / 1.349)
    for row in (row for row, outside in zip(known, far, strict=True) if outside):
        _add(row, "tempo", f"{row['bpm']:g} bpm; the median is {2**middle:.0f}")


def summarise(rows: Sequence[Row]) -> tuple[list[str], str]:
    """Return a line for each finding, and one about keys and tempi."""
    lines = []
    for finding, meaning in FINDINGS.items():
        names = [row["piece"] for row in rows if finding in row["findings"]]
        if names:
            lines.append(f"{pluralize(len(names), 'pieces')} {meaning}: {name_few(names)}")
    keys = Counter(row["key"] for row in rows if row.get("key"))
    common = ", ".join(f"{key} {n / keys.total():.0%}" for key, n in keys.most_common(5))
    low, middle, high = np.quantile([row["bpm"] for row in rows if row.get("bpm")], (0, 0.5, 1))
    about = f"{len(keys)} of 24 keys (estimated): {common}; {low:.0f} to {high:.0f} bpm"
    return lines or ["nothing was found"], f"{about}, median {middle:.0f}"


def write_audit(rows: Sequence[Row], corpus: Corpus, out: Path) -> None:
    """Print a summary; write `audit.csv`, `audit.html` with rolls, and `exclude.txt`."""
    found, about = summarise(rows)
    for line in (*found, about):
        log(line)
    table = [
        row | {"findings": ", ".join(row["findings"]), "details": "; ".join(row["details"])}
        for row in rows
    ]
    write_csv(table, out / "audit.csv")
    names = left_out(rows)
    write_bytes(out / "exclude.txt", b"".join(os.fsencode(name) + b"\n" for name in names))
    page = render_report(
        title="A look at the data",
        pieces=_examples(rows, corpus),
        metadata={"folder": str(corpus.root), "pieces": len(rows)},
        notices=[". ".join(found), about],
    )
    write_text(out / "audit.html", page)
    log(f"{out / 'audit.html'} shows examples, {out / 'audit.csv'} has all pieces")
    if names:
        what = "leaks, duplicates and unusable files"
        count = pluralize(len(names), "pieces")
        setting = shlex.quote(f"data.exclude={out / 'exclude.txt'}")
        log(f"to train without {what}: {setting} ({count})")


def left_out(rows: Sequence[Row]) -> list[str]:
    """Return the pieces that leak or are unusable, and duplicates of others than these."""
    first = {r["piece"] for r in rows if {"leak", "unusable"} & set(r["findings"])}
    return [
        r["piece"]
        for r in rows
        if r["piece"] in first or ("duplicate" in r["findings"] and r["shares_with"] not in first)
    ]


def _examples(rows: Sequence[Row], corpus: Corpus) -> list[ReportPiece]:
    """Return the first pieces of each finding, those that share something one after the other."""
    pieces = {piece.name: piece for piece in corpus.pieces()}
    shown: dict[str, ReportPiece] = {}
    for finding in FINDINGS:
        found = [row for row in rows if finding in row["findings"] and row["split"]]
        for row in found[:_EXAMPLES]:
            name, other = row["piece"], row["shares_with"]
            if name in shown:
                continue
            score = corpus.read_piece(pieces[name])
            if other in pieces and finding in ("leak", "duplicate"):
                source = corpus.read_piece(pieces[other])
                marks = _shared_passage(score, source, other, name)
                shown[name] = _shown(name, score, row["details"], marks[0])
                shown.setdefault(other, _shown(other, source, [f"see {name}"], marks[1]))
            else:
                shown[name] = _shown(name, score, row["details"], [])
    return list(shown.values())


def _shown(name: str, score: Score, details: Sequence[str], marks: Sequence[Mark]) -> ReportPiece:
    return ReportPiece(name, score, 0, None, {}, notices=["; ".join(details)], marks=marks)


def _shared_passage(
    score: Score, source: Score, source_name: str, name: str
) -> tuple[list[Mark], list[Mark]]:
    """Return marks of the longest passage of the melodies that two pieces share."""
    notes = _melody(score)
    found = PassageIndex({source_name: _melody(source)}).longest_passage(notes)
    if found is None:
        return [], []
    length = found.last_onset - found.onset + GRID
    spans = ((score, found.onset, source_name), (source, found.source_onset, name))
    marks = tuple(
        [Mark(start * s.ticks_per_beat // GRID, (start + length) * s.ticks_per_beat // GRID, text)]
        for s, start, text in spans
    )
    return marks[0], marks[1]


def _melody(score: Score) -> Notes:
    line: NoteArray = top_line(pitched_notes(score), 8 * score.ticks_per_beat)
    return passage_notes(Score(score.ticks_per_beat, [Track(notes=line)]))
