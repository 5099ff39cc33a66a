"""Four-part writing: continuations and harmonisations, and their originals."""

from __future__ import annotations

from pathlib import Path

from musicgen.console import warn_of_first
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.references import NUM_SKIPPED_SHOWN, open_pairs
from musicgen.metrics import part_writing as metric
from musicgen.report.tables import TableRow


def part_writing(inputs: Inputs, out: Path) -> list[TableRow]:
    """Measure the writing of pieces in four voices, and of as much music of their originals.

    See `musicgen.metrics.part_writing`. Parallels are counted per 100 beats; all others are shares.
    """
    _, pairs = open_pairs(inputs, inputs.generated, "part_writing")
    rows: list[TableRow] = []
    left_out = []
    for pair in pairs:
        try:
            own, new = map(metric.part_writing, (pair.own_continuation(), pair.continuation))
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
