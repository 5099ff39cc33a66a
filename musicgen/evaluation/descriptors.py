"""Descriptors: continuations beside the originals' own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from musicgen.console import track
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.references import Pair, References, open_pairs
from musicgen.metrics.bars import (
    Events,
    bar_notes,
    join_bars,
    similarities_by_lag,
    similarity_error,
)
from musicgen.metrics.descriptors import descriptors as score_descriptors
from musicgen.metrics.descriptors import distribution_distance
from musicgen.metrics.key import in_key_share
from musicgen.metrics.listening import (
    ChordChange,
    ChordStep,
    chord_steps,
    known_step_share,
    listening_measures,
)
from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score
from musicgen.report.tables import TableRow, write_csv
from musicgen.tokenization.chords.recognition import with_chords
from musicgen.tokenization.chords.symbols import INTERVALS, NO_CHORD, QUALITIES, chord_index

NUM_CHORD_PIECES = 100
"""Originals whose chord changes count as known."""


def descriptors(inputs: Inputs, out: Path) -> list[TableRow]:
    """Descriptors of continuations and of the music that follows their prompts.

    Both are equally long, without the prompt; see `describe`. `similarity_error` is Museformer's
    SE, of all continuations. Writes `descriptors_pieces.csv`, and the similarities by lag that SE
    compares as `descriptors_bars.csv`.
    """
    references, pairs, _ = open_pairs(inputs, inputs.generated, "descriptors")
    chords = known_chords(references, pairs)
    originals: dict[str, dict[str, float]] = {}  # each counts once, not once a sample
    details = []
    new_bars: list[tuple[Events, int]] = []
    old_bars: list[tuple[Events, int]] = []
    for pair in track(pairs, "descriptors"):
        found = describe(pair.continuation, pair, chords)
        details.append({"piece": pair.file, "reference": pair.name, **found})
        new_bars.append(bars_with_prompt(pair, pair.continuation))
        if pair.name not in originals:
            own = pair.own_continuation()
            old_bars.append(bars_with_prompt(pair, own))
            originals[pair.name] = describe(own, pair, chords)
    write_csv(details, out / "descriptors_pieces.csv")
    rows = []
    for name in next(iter(originals.values())):
        new = np.array([row[name] for row in details])
        old = np.array([row[name] for row in originals.values()])
        overlap, divergence = distribution_distance(new, old)
        rows.append(
            {
                "descriptor": name,
                "n": int((~np.isnan(new)).sum()),
                "generated": mean_of_valid(new),
                "originals": mean_of_valid(old),
                "overlap": overlap,
                "KL": divergence,
            }
        )
    new, old = similarities_by_lag(new_bars), similarities_by_lag(old_bars)
    by_lag = zip(new.tolist(), old.tolist(), strict=True)
    lines = [
        {"lag in bars": lag, "generated": a, "originals": b}
        for lag, (a, b) in enumerate(by_lag, start=1)
    ]
    write_csv(lines, out / "descriptors_bars.csv")
    error = {"n": len(pairs), "generated": similarity_error(new, old)}
    return [*rows, {"descriptor": "similarity_error", **error}]


def bars_with_prompt(pair: Pair, score: Score) -> tuple[Events, int]:
    """Return the bars of a prompt and the music behind it, and the number of the prompt's."""
    prompt, num_bars = pair.prompt()
    return join_bars(bar_notes(prompt), num_bars, bar_notes(score)), num_bars


def describe(
    score: Score, pair: Pair, chords: Mapping[str, frozenset[ChordStep]]
) -> dict[str, float]:
    """Return the descriptors of the continuation of a pair, or of the original's own.

    They are those of `musicgen.metrics.descriptors` and `musicgen.metrics.listening`, and
    `in_key_share`, the share of the notes in the prompt's key, and `known_chord_changes`, the share
    of the chord changes that the prompt or another piece of `chords` has, in any key. Bars may
    return to those of the prompt.
    """
    prompt, prompt_bars = pair.prompt()
    known = frozenset(chord_steps(chord_changes(prompt))).union(
        *(steps for name, steps in chords.items() if name != pair.name)
    )
    found = chord_changes(score)
    return {
        **score_descriptors(score),
        "in_key_share": in_key_share(score, pair.key()),
        "known_chord_changes": known_step_share(found, known),
        **listening_measures(score, found, prompt, prompt_bars),
    }


def known_chords(references: References, pairs: Iterable[Pair]) -> dict[str, frozenset[ChordStep]]:
    """Return the chord changes of the first originals by name, those of the pairs before others."""
    names = dict.fromkeys([*(pair.name for pair in pairs), *references.sources])
    found = {}
    for name in list(names)[:NUM_CHORD_PIECES]:
        try:
            found[name] = frozenset(chord_steps(chord_changes(references.read(name))))
        except UserError:  # pairing reports what it needs
            continue
    return found


def chord_changes(score: Score) -> list[ChordChange]:
    """Return the changes of chord by the markers of a score; recognised if it has none."""
    changes: list[ChordChange] = []
    for tick, text in with_chords(score, "auto").markers:
        index = chord_index(text)
        if index is None:
            continue
        if index == NO_CHORD:
            tones = frozenset[int]()
        else:
            root, quality = divmod(index, len(QUALITIES))
            tones = frozenset((root + step) % 12 for step in INTERVALS[QUALITIES[quality]])
        if not changes or changes[-1].tones != tones:
            changes.append(ChordChange(tick, tones))
    return changes
