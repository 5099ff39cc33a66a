"""Four-part writing: continuations and harmonisations beside the originals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from musicgen.console import warn_of_first
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.references import NUM_SKIPPED_SHOWN, open_pairs
from musicgen.metrics.part_writing import part_writing as voice_measures
from musicgen.metrics.summary import Summary, mean_of_valid
from musicgen.midi import FERMATA, Marker, Score
from musicgen.report.tables import TableRow, write_csv


def part_writing(inputs: Inputs, out: Path) -> list[TableRow]:
    """Key, ranges, crossings, parallels, chords and phrase ends of pieces in four voices.

    Pieces that were written from their beginning, such as harmonisations, have their phrase ends
    at the fermatas of the original, if it has some. Writes `part_writing_pieces.csv`.
    """
    references, pairs, _ = open_pairs(inputs, inputs.generated, "part_writing")
    generated: list[TableRow] = []
    originals: dict[str, dict[str, float]] = {}  # each counts once, not once a sample
    left_out = []
    for pair in pairs:
        from_beginning = pair.prompt_beats == 0
        original = references.sources[pair.name]() if from_beginning else Score()
        scores = pair.own_continuation(), pair.continuation
        try:
            own, found = (voice_measures(with_fermatas(score, original)) for score in scores)
        except UserError as error:
            left_out.append(f"left out: {pair.file}: {error}")
            continue
        originals[pair.name] = own
        generated.append({"piece": pair.file, "reference": pair.name, **found})
    warn_of_first(left_out, NUM_SKIPPED_SHOWN)
    if not generated:
        raise UserError("metrics=part_writing needs pieces in four voices, four tracks each")
    write_csv(generated, out / "part_writing_pieces.csv")
    rows = []
    for name in next(iter(originals.values())):
        new = Summary.of((row[name] for row in generated), seed=inputs.seed)
        old = mean_of_valid(np.array([found[name] for found in originals.values()]))
        row = {"measure": name, "n": new.n, "generated": new.mean, "low": new.low}
        rows.append(row | {"high": new.high, "originals": old})
    return rows


def with_fermatas(score: Score, original: Score) -> Score:
    """Return a piece with the fermatas of another one as its only markers."""
    scale = score.ticks_per_beat / original.ticks_per_beat
    ticks = [marker.tick for marker in original.markers if marker.text == FERMATA]
    return replace(score, markers=[Marker(round(tick * scale), FERMATA) for tick in ticks])
