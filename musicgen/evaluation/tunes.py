"""The measures `melody` and `cadences`: the leading part, the ends of pieces and of phrases."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from musicgen.evaluation.descriptors import measure_rows
from musicgen.evaluation.references import Pair, open_pairs
from musicgen.evaluation.runs import Inputs
from musicgen.metrics.cadences import (
    PERIODS,
    answer_share,
    ending_measures,
    half_cadence_share,
    phrase_start,
)
from musicgen.metrics.melody import leading_part, melody_measures
from musicgen.metrics.repeated_bars import bar_notes
from musicgen.midi import Score, Track, pitched_notes
from musicgen.midi.key import Key, final_key
from musicgen.report.tables import TableRow


def melody(inputs: Inputs, out: Path) -> list[TableRow]:
    """Return measures of the leading part of continuations and of their originals.

    The originals are as long as the continuations; see `musicgen.metrics.melody`.
    """
    _, pairs = open_pairs(inputs, inputs.generated, "melody")
    rows: list[TableRow] = []
    for pair in pairs:
        sides = (pair.continuation, pair.original_continuation())
        rows += measure_rows(pair, *(melody_measures(each, pair.reference) for each in sides))
    return rows


def cadences(inputs: Inputs, out: Path) -> list[TableRow]:
    """Return measures of the ends of continuations and of their originals, and of their phrases.

    The ends of the originals are those of the whole pieces, in their last key; continuations end in
    the key of their prompt. Phrases of the originals are counted in the bars that are continued;
    see `musicgen.metrics.cadences`.
    """
    _, pairs = open_pairs(inputs, inputs.generated, "cadences")
    return [row for pair in pairs for row in measure_rows(pair, *cadences_of_pair(pair))]


def cadences_of_pair(pair: Pair) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the measures of a continuation's ends and phrases, and those of its original's."""
    piece = pair.reference
    shown = piece.clip(0, pair.prompt_end)
    key = final_key(shown if len(pitched_notes(shown)) else piece)
    ends = (
        ending_measures(pair.continuation, key, piece),
        ending_measures(piece, final_key(piece)),
    )
    parts = (pair.continuation, pair.original_continuation())
    found = [end | _phrases(pair, each, shown, key) for end, each in zip(ends, parts, strict=True)]
    return found[0], found[1]


def _phrases(pair: Pair, score: Score, shown: Score, key: Key | None) -> dict[str, float]:
    """Return the shares of half cadences and answers in the bars that follow the prompt.

    Args:
        shown: the prompt, which is in this key.
    """
    piece = pair.reference
    # Bars are counted from the beginning of the piece's phrases.
    pickup = phrase_start(piece)
    first = int((piece.bar_starts() < pair.prompt_end).sum()) - pickup
    lead = leading_part(score, piece)
    events = []
    for music, begin in ((shown, -pickup), (score, first)):
        part = replace(music, tracks=[Track(notes=leading_part(music, piece))])
        events.append(bar_notes(part) + np.array([begin, 0, 0, 0]))
    joined, num_bars = np.concatenate(events), first + score.num_bars
    found = {}
    for bars in PERIODS:
        share = np.nan if key is None else half_cadence_share(score, key, lead, bars, first)
        found[f"half_cadences_{bars}"] = share
        found[f"answers_{bars}"] = answer_share(joined, num_bars, bars, first)
    return found
