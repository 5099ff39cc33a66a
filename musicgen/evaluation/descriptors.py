"""Descriptors of continuations and of their originals, and their writing in four voices."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from musicgen.console import track, warn_of_first
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.references import NUM_SKIPPED_SHOWN, Pair, open_pairs
from musicgen.metrics.bars import bar_notes, bar_similarities, bars_recalled
from musicgen.metrics.descriptors import (
    distribution_distance,
    grooving_similarity,
    muspy_descriptors,
    pitch_class_entropy,
)
from musicgen.metrics.key import in_key_share
from musicgen.metrics.part_writing import part_writing as four_voices
from musicgen.metrics.scape import structureness
from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score
from musicgen.report.tables import TableRow, write_csv


def descriptors(inputs: Inputs, out: Path) -> list[TableRow]:
    """Describe continuations and the music that follows their prompts in the originals.

    Both are equally long, without the prompt; see `describe`. A row has the means of a descriptor,
    with overlap and KL of the distances within the generated set and to the originals. Those of
    each continuation are written to `descriptors_pieces.csv`.
    """
    _, pairs = open_pairs(inputs, inputs.generated, "descriptors")
    originals: dict[str, dict[str, float]] = {}  # each counts once, not once a sample
    details = []
    for pair in track(pairs, "descriptors"):
        names = {"piece": pair.file, "reference": pair.name}
        details.append(names | describe(pair.continuation, pair))
        if pair.name not in originals:
            originals[pair.name] = describe(pair.own_continuation(), pair)
    write_csv(details, out / "descriptors_pieces.csv")
    rows = []
    for name in next(iter(originals.values())):
        new = np.array([row[name] for row in details])
        old = np.array([row[name] for row in originals.values()])
        means = {"generated": mean_of_valid(new), "originals": mean_of_valid(old)}
        overlap, divergence = distribution_distance(new, old)
        count = int((~np.isnan(new)).sum())
        rows.append({"descriptor": name, "n": count, **means, "overlap": overlap, "KL": divergence})
    return rows


def part_writing(inputs: Inputs, out: Path) -> list[TableRow]:
    """Measure the writing of pieces in four voices, and of as much music of their originals.

    See `musicgen.metrics.part_writing`. Parallels are counted per 100 beats; all others are shares.
    """
    _, pairs = open_pairs(inputs, inputs.generated, "part_writing")
    rows: list[TableRow] = []
    left_out = []
    for pair in pairs:
        try:
            own, new = map(four_voices, (pair.own_continuation(), pair.continuation))
        except UserError as error:
            left_out.append(f"left out: {pair.file}: {error}")
            continue
        for kind, measures in (("generated", new), ("originals", own)):
            rows += [
                {"pieces": kind, "measure": name, "piece": pair.file, "value": value}
                for name, value in measures.items()
            ]
    warn_of_first(left_out, NUM_SKIPPED_SHOWN)
    if not rows:
        raise UserError("metrics=part_writing needs pieces in four voices, four tracks each")
    return rows


def describe(score: Score, pair: Pair) -> dict[str, float]:
    """Describe the continuation of a pair, or the original's own.

    The descriptors are muspy's; MusDr's grooving similarity, entropies of the pitch classes in
    windows of 1 and 4 bars, and structureness; the shares of the notes in the prompt's key, and of
    the bars that return. Bars may return to those of the prompt.
    """
    prompt, first = pair.prompt()
    num_bars = len(score.bar_starts())
    new = bar_notes(score)
    new[:, 0] += first
    events = np.concatenate([bar_notes(prompt), new])
    structure = structureness(events, first + num_bars)
    return {
        **muspy_descriptors(score),
        "grooving_similarity": grooving_similarity(score),
        "pitch_class_entropy_1": pitch_class_entropy(score, 1),
        "pitch_class_entropy_4": pitch_class_entropy(score, 4),
        **{f"structureness_{name}": value for name, value in structure.items()},
        "notes_per_bar": score.num_notes / num_bars,
        "in_key_share": in_key_share(score, pair.key()),
        "bars_recalled": bars_recalled(bar_similarities(events[:, :3]), first),
    }
