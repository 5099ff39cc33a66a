"""Style: continuations against the pieces of their prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from musicgen.console import track, warn
from musicgen.data.corpora.base import evenly_spaced
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.references import Pair, References, open_pairs
from musicgen.metrics.style import (
    PROFILES,
    mean_similarity,
    role_similarities,
    style_profiles,
)
from musicgen.metrics.style_anchors import StyleLabel, anchor_similarities, style_labels
from musicgen.metrics.summary import Summary
from musicgen.midi import Score
from musicgen.report.tables import TableRow, write_csv
from musicgen.validation import check_int

NUM_PARTS = 4  # as published
PARTS = tuple(f"{k} of {NUM_PARTS}" for k in range(1, NUM_PARTS + 1))
WHOLE = {"part": "all", "role": "all", "anchor": None}


def style(inputs: Inputs, out: Path, *, pattern: str, anchor_pieces: int) -> list[TableRow]:
    """Style similarity of continuations to the pieces of their prompts.

    As published (Liutkus et al. 2021, appendix C.2), the continuation without its prompt is
    compared with the whole piece from which the prompt was taken; also in four parts of equal
    length. Anchors say what real music reaches, see `musicgen.metrics.style_anchors`. Writes
    `style_pieces.csv`: each similarity by piece, profile, part and role, and the pieces left out,
    with reasons.

    Args:
        pattern: of the names of styles, see `style_labels`.
        anchor_pieces: originals that the anchors are measured with; 0: no anchors.
    """
    check_int("anchor_pieces", anchor_pieces, minimum=0)
    references, pairs, skipped = open_pairs(inputs, inputs.generated, "style")
    labels = style_labels(references.sources, pattern)
    details: list[TableRow] = []
    for pair in track(pairs, "style"):
        details += piece_rows(pair)
    left_out = [{"piece": file, "reason": reason} for file, reason in skipped.items()]
    write_csv(details + left_out, out / "style_pieces.csv")
    first = {pair.name: pair for pair in reversed(pairs)}
    queries = [
        (name, first[name].own_continuation())
        for name in evenly_spaced(sorted(first), anchor_pieces)
    ]
    anchors = anchor_rows(queries, labels, references, inputs.seed)
    return summary_rows(details, inputs.seed) + anchors


def piece_rows(pair: Pair) -> Iterator[TableRow]:
    """Yield the similarities of a continuation to its reference by profile, part and role."""
    names = {"piece": pair.file, "reference": pair.name}
    for profile in PROFILES:
        target = style_profiles(pair.reference, profile)
        chunks = [(0, 1), *((k, NUM_PARTS) for k in range(NUM_PARTS))]
        for label, chunk in zip(("all", *PARTS), chunks, strict=True):
            found = style_profiles(pair.continuation, profile, chunk)
            row = {**names, "profile": profile, "part": label}
            similarities = {"all": mean_similarity(found, target)}
            similarities |= role_similarities(found, target)
            for role, similarity in similarities.items():
                yield {**row, "role": role, "similarity": similarity}


def summary_rows(details: list[TableRow], seed: int) -> list[TableRow]:
    """Return a row for each profile, and for its parts and roles."""
    values: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in details:
        if row["part"] == "all" or row["role"] == "all":
            values[row["profile"], row["part"], row["role"]].append(row["similarity"])
    return [
        {"profile": profile, "part": part, "role": role, "anchor": None}
        | asdict(Summary.of(found, seed=seed))
        for (profile, part, role), found in values.items()
    ]


def anchor_rows(
    queries: Sequence[tuple[str, Score]],
    labels: dict[str, StyleLabel],
    references: References,
    seed: int,
) -> list[TableRow]:
    """Return a row for each profile and anchor, of the continuations of pieces by name."""

    def read(name: str) -> Score | None:
        try:
            return references.read(name)
        except UserError as error:
            warn(f"left out: {error}")
            return None

    similarities = anchor_similarities(track(queries, "anchors"), labels, read, seed=seed)
    return [
        {"profile": profile, **WHOLE, "anchor": anchor, **asdict(Summary.of(values, seed=seed))}
        for profile, anchors in similarities.items()
        for anchor, values in anchors.items()
        if not np.isnan(values).all()
    ]
