"""Style: continuations against the pieces of their prompts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from musicgen.console import track, warn
from musicgen.data.corpora.base import evenly_spaced
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.references import Pair, open_pairs
from musicgen.metrics.style import PROFILES, mean_similarity, role_similarities, style_profiles
from musicgen.metrics.style_anchors import anchor_similarities, style_labels
from musicgen.midi import Score
from musicgen.report.tables import TableRow
from musicgen.validation import check_int

NUM_PARTS = 4  # as published
WHOLE = "all"
PARTS = tuple(f"{k} of {NUM_PARTS}" for k in range(1, NUM_PARTS + 1))


def style(inputs: Inputs, out: Path, *, anchor_pieces: int) -> list[TableRow]:
    """Measure the style similarity of continuations to the pieces of their prompts.

    As published (Liutkus et al. 2021, appendix C.2), the continuation without its prompt is
    compared with the whole piece from which the prompt was taken; also in four parts of equal
    length, and role by role. Anchors say what real music reaches, see
    `musicgen.metrics.style_anchors`.

    Args:
        anchor_pieces: originals that the anchors are measured with; 0: no anchors.
    """
    check_int("anchor_pieces", anchor_pieces, minimum=0)
    references, pairs, _ = open_pairs(inputs, inputs.generated, "style")
    rows = [row for pair in track(pairs, "style") for row in piece_rows(pair)]
    first = {pair.name: pair for pair in reversed(pairs)}
    names = evenly_spaced(sorted(first), anchor_pieces)

    def original(name: str) -> Score | None:
        try:
            return references.read(name)
        except UserError as error:
            warn(f"left out: {error}")
            return None

    own = [(name, first[name].own_continuation()) for name in names]
    labels = style_labels(references.sources)
    anchors = anchor_similarities(track(own, "anchors"), labels, original, seed=inputs.seed)
    for profile, by_anchor in anchors.items():
        for anchor, values in by_anchor.items():
            rows += [
                {"piece": name, "profile": profile, "part": anchor, "value": value}
                for name, value in zip(names, values, strict=True)
            ]
    defined = {(x["profile"], x["part"]) for x in rows if not np.isnan(x["value"])}
    return [row for row in rows if (row["profile"], row["part"]) in defined]


def piece_rows(pair: Pair) -> Iterator[TableRow]:
    """Yield the similarities of a continuation to its reference: whole, by part and by role."""
    chunks = [(0, 1), *((k, NUM_PARTS) for k in range(NUM_PARTS))]
    for profile in PROFILES:
        target = style_profiles(pair.reference, profile)
        found = [style_profiles(pair.continuation, profile, chunk) for chunk in chunks]
        values = [mean_similarity(each, target) for each in found]
        similarities = dict(zip((WHOLE, *PARTS), values, strict=True))
        for part, value in {**similarities, **role_similarities(found[0], target)}.items():
            yield {"piece": pair.file, "profile": profile, "part": part, "value": value}
