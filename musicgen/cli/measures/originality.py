"""The measure `originality` of `evaluate`: what continuations share with the training set."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.progress import MofNCompleteColumn

from musicgen import load
from musicgen.cli.datasets import open_training_data
from musicgen.cli.known_music import KnownMusic, KnownPassage
from musicgen.cli.measures.references import read_continuation, read_manifest, source_checkpoint
from musicgen.console import log, progress_bar, warn
from musicgen.errors import UserError
from musicgen.metrics import Summary
from musicgen.midi import Score, find_midi, read
from musicgen.report.tables import write_csv

Row = dict[str, Any]


def originality(cfg: DictConfig, out: Path) -> list[Row]:
    """Find the longest passage that each continuation shares with the training set, in any key.

    Prompts do not count. Held-out pieces, cut to the median size of the continuations, are the
    scale; see `musicgen.metrics.originality`. Writes `originality_pieces.csv`.
    """
    if not cfg.generated:
        raise UserError("metrics=originality needs generated=, a folder of MIDI files")
    folder = Path(cfg.generated).expanduser()
    manifest = read_manifest(folder)
    model = load(source_checkpoint(cfg, manifest))
    known = KnownMusic(open_training_data(model, cfg.data.root), cfg.max_pieces)
    found: dict[str, KnownPassage] = {}
    details: list[Row] = []
    with progress_bar(MofNCompleteColumn()) as progress:
        for path in progress.track(find_midi(folder), description="originality"):
            file = path.relative_to(folder).as_posix()
            end = manifest.pieces.get(file, {}).get("prompt end", 0)
            try:
                score = read(path)
            except UserError as error:
                warn(f"left out: {error}")
                continue
            found[file] = known.find(read_continuation(score, end, model.tokenizer))
            details.append(_row("generated", file, found[file], _bar(score, end, found[file])))
    if not found:
        raise UserError(f"generated={folder}: no file can be read")
    _, held_out, size = known.beside_held_out(found)
    details += [_row("held-out", name, passage) for name, passage in held_out.items()]
    write_csv(details, out / "originality_pieces.csv")
    file, longest = max(found.items(), key=lambda item: item[1].num_notes)
    log(f"longest: {longest.num_notes} notes of {file}, as in: {longest.source()}")
    sets = {"generated": found, f"held-out, {size:,} notes": held_out}
    return [
        {"pieces": name, **_summary([p.num_notes for p in passages.values()], cfg.seed)}
        for name, passages in sets.items()
        if passages
    ]


def _summary(lengths: list[int], seed: int) -> Row:
    summary = asdict(Summary.of(lengths, seed=seed))
    del summary["skipped"]  # there are none
    return {**summary, "max": max(lengths)}


def _bar(score: Score, prompt_end: int, found: KnownPassage) -> int | None:
    """Return the bar of a file, from 1, in which the passage begins."""
    if found.passage is None:
        return None
    tick = prompt_end + found.ticks(score.ticks_per_beat)[0]
    return int(np.searchsorted(score.bar_starts(), tick, side="right"))


def _row(kind: str, name: str, found: KnownPassage, bar: int | None = None) -> Row:
    row: Row = {"pieces": kind, "piece": name, "notes": found.num_own, "known": found.num_notes}
    if (passage := found.passage) is None:
        return row
    return row | {
        "beats": passage.beats,
        "bar": bar,
        "source": passage.source,
        "source_bar": found.source_bar,
        "transposition": passage.transposition,
        "num_sources": passage.num_sources,
    }
