"""The measure `style` of `evaluate`: continuations against the pieces of their prompts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.progress import MofNCompleteColumn

from musicgen.cli.measures.references import (
    Manifest,
    Pair,
    References,
    open_references,
    pair_files,
    read_manifest,
)
from musicgen.console import log, progress_bar, warn
from musicgen.errors import UserError, parameter_of
from musicgen.metrics import PROFILES, Summary
from musicgen.metrics.style import (
    mean_similarity,
    role_similarities,
    style_profiles,
    why_undefined,
)
from musicgen.metrics.style_anchors import StyleLabel, anchor_similarities, style_labels
from musicgen.midi import Score
from musicgen.report.tables import write_csv
from musicgen.text import pluralize
from musicgen.validation import check_choice, check_int

Row = dict[str, Any]
NUM_CHUNKS = 4  # as published
CHUNKS = tuple(f"{k} of {NUM_CHUNKS}" for k in range(1, NUM_CHUNKS + 1))


@dataclass(frozen=True)
class Comparison:
    """Continuations that are compared with references, each pooled if there are several."""

    name: str
    reference: str
    continuations: Sequence[Score]
    references: Sequence[Score]


def style(cfg: DictConfig, out: Path) -> list[Row]:
    """Compute the style similarity of continuations to the pieces of their prompts.

    As published (Liutkus et al. 2021, appendix C.2), the continuation without its prompt is
    compared with the whole piece from which the prompt was taken; also in four chunks of equal
    length. Anchors say what real music reaches, see `musicgen.metrics.style_anchors`.
    Writes `style_pieces.csv`: each similarity by piece, profile, chunk and role, and the pieces
    left out, with reasons.
    """
    check_choice("style.pool", cfg.style.pool, (None, "prompt", "style"))
    check_int("style.anchor_pieces", cfg.style.anchor_pieces, minimum=0)
    folder = Path(cfg.generated).expanduser() if cfg.generated else None
    manifest = Manifest() if folder is None else read_manifest(folder)
    references = open_references(cfg, manifest)
    with parameter_of("style"):
        labels = style_labels(references.sources, str(cfg.style.pattern))
    rows: list[Row] = []
    parts: dict[str, Score] = {}
    if folder is not None:
        pairs, skipped = pair_files(folder, manifest, references)
        details: list[Row] = []
        with progress_bar(MofNCompleteColumn()) as progress:
            comparisons = pool(pairs, cfg.style.pool, labels)
            for comparison in progress.track(comparisons, description="style"):
                details += piece_rows(comparison)
        left_out = [{"piece": file, "reason": reason} for file, reason in skipped.items()]
        write_csv(details + left_out, out / "style_pieces.csv")
        rows = summary_rows(details, cfg.seed)
        log_reasons(details)
        for pair in pairs:
            parts.setdefault(pair.name, pair.own_continuation())
    names = sorted(parts or references.sources)
    if len(names) > cfg.style.anchor_pieces:
        step = len(names) / max(1, cfg.style.anchor_pieces)
        names = [names[int(i * step)] for i in range(cfg.style.anchor_pieces)]
    return rows + anchor_rows(names, parts, labels, references, cfg.seed)


def pool(pairs: list[Pair], by: str | None, labels: dict[str, StyleLabel]) -> list[Comparison]:
    """Return each pair alone, or the pairs of a prompt or a style as one comparison."""
    if by is None:
        return [Comparison(p.file, p.name, [p.continuation], [p.reference]) for p in pairs]
    groups: defaultdict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.name if by == "prompt" else labels[pair.name].style].append(pair)
    if "" in groups:
        raise UserError(
            f"style.pool=style: {groups[''][0].name} has no style in its name; give style.pattern"
        )
    comparisons = []
    for name, group in groups.items():
        originals = {pair.name: pair.reference for pair in group}
        continuations = [pair.continuation for pair in group]
        files = pluralize(len(group), "pieces")
        comparisons.append(Comparison(files, name, continuations, list(originals.values())))
    return comparisons


def piece_rows(comparison: Comparison) -> Iterator[Row]:
    """Yield the similarities of a comparison by profile, chunk and role."""
    names = {"piece": comparison.name, "reference": comparison.reference}
    for profile in PROFILES:
        target = style_profiles(comparison.references, profile)
        chunks = [(0, 1), *((k, NUM_CHUNKS) for k in range(NUM_CHUNKS))]
        for label, chunk in zip(("all", *CHUNKS), chunks, strict=True):
            found = style_profiles(comparison.continuations, profile, chunk)
            row = {**names, "profile": profile, "chunk": label}
            yield {
                **row,
                "role": "all",
                "similarity": mean_similarity(found, target),
                "reason": why_undefined(found, target),
            }
            for role, similarity in role_similarities(found, target).items():
                yield {**row, "role": role, "similarity": similarity, "reason": ""}


def summary_rows(details: list[Row], seed: int) -> list[Row]:
    """Return a row for each profile, and for its chunks and roles."""
    columns: defaultdict[str, list[float]] = defaultdict(list)
    for row in details:
        if row["chunk"] == "all" or row["role"] == "all":
            columns[_measure(row)].append(row["similarity"])
    return [
        {"measure": name, **asdict(Summary.of(values, seed=seed))}
        for name, values in columns.items()
    ]


def _measure(row: Row) -> str:
    parts = [row["profile"]]
    if row["chunk"] != "all":
        parts.append(f"part {row['chunk']}")
    if row["role"] != "all":
        parts.append(row["role"])
    return ", ".join(parts)


def log_reasons(details: list[Row]) -> None:
    """Say why values of whole continuations are n/a."""
    reasons = Counter(
        (row["profile"], row["reason"])
        for row in details
        if row["reason"] and row["chunk"] == "all"
    )
    for (profile, reason), count in reasons.items():
        log(f"n/a: {profile} of {pluralize(count, 'pieces')}: {reason}")


def anchor_rows(
    names: list[str],
    parts: dict[str, Score],
    labels: dict[str, StyleLabel],
    references: References,
    seed: int,
) -> list[Row]:
    """Return a row for each profile and anchor; without parts, those of the second halves."""

    def read(name: str) -> Score | None:
        try:
            return references.read(name)
        except UserError as error:
            warn(f"left out: {error}")
            return None

    def part(name: str) -> Score | None:
        if name in parts or (score := read(name)) is None:
            return parts.get(name)
        bars = score.bar_starts()
        return score.clip(int(bars[len(bars) // 2]), score.end + 1)

    with progress_bar(MofNCompleteColumn()) as progress:
        tracked = progress.track(names, description="anchors")
        queries = ((name, found) for name in tracked if (found := part(name)) is not None)
        similarities = anchor_similarities(queries, labels, read, PROFILES, seed=seed)
    return [
        {"measure": f"{profile}, anchor: {anchor}", **asdict(Summary.of(values, seed=seed))}
        for profile, anchors in similarities.items()
        for anchor, values in anchors.items()
        if not np.isnan(values).all()
    ]


def style_tables(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the rows of `style` as tables for the terminal, by title."""
    by_measure = {row["measure"]: row for row in rows}
    means = {name: row["mean"] for name, row in by_measure.items()}
    others = [name.partition(", ")[2] for name in means if ", " in name]
    labels = dict.fromkeys(others)  # of parts, roles and anchors, in this order of appearance

    def table(prefix: str, chosen: Sequence[str]) -> list[Row]:
        return [
            {"measure": profile}
            | ({"mean": means[profile]} if profile in means else {})
            | {
                label.removeprefix(prefix): means.get(f"{profile}, {label}", np.nan)
                for label in chosen
            }
            for profile in PROFILES
            if any(not np.isnan(means.get(f"{profile}, {label}", np.nan)) for label in chosen)
        ]

    anchors = [name for name in labels if name.startswith("anchor: ")]
    parts = [name for name in labels if name.startswith("part ")]
    roles = [name for name in labels if name not in (*anchors, *parts)]
    tables = {
        "style": [by_measure[profile] for profile in PROFILES if profile in by_measure],
        "beside what real music reaches": table("anchor: ", anchors),
        "by part of the continuation": table("part ", parts),
        "by role": table("", roles) if len(roles) > 1 else [],
    }
    return {title: table for title, table in tables.items() if table}
