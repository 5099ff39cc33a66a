"""Descriptions of generated pieces: rows of the manifest, and measures of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from musicgen.evaluation.originality import KnownPassage
from musicgen.generation.continuation import Continuation
from musicgen.metrics.style import Profile, Profiles, mean_similarity, style_profiles
from musicgen.metrics.style_anchors import anchor_similarities, style_labels
from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score
from musicgen.report import Anchor, Measure

STYLE_NAMES = {  # of the columns of a piece's row, in a musician's words
    "style, onset_duration": "rhythm like the original's",
    "style, time_pitch": "melody and harmony like the original's",
    "style, onset_velocity": "accents like the original's",
    "style, onset_drum": "drumming like the original's",
}
ANCHOR_NAMES = {
    "chance": "an unrelated piece",
    "same style": "another piece of the style",
}
KNOWN, SOURCE = "longest known passage (notes)", "known from"


def describe(
    continuation: Continuation, written: Score, reference: Mapping[Profile, Profiles]
) -> dict[str, Any]:
    """Return a piece's row in the manifest and the report.

    The style similarities are those of evaluate.py, without profiles of which the reference has
    nothing.

    Args:
        reference: the style profiles of the prompt's whole piece.
    """
    prompt, new = continuation.prompt, continuation.new_score
    last_onset = max((int(t.notes["onset"].max(initial=0)) for t in written.tracks), default=0)
    row: dict[str, Any] = {
        "prompt": prompt.name,
        "sample": continuation.sample,
        "tokens": len(continuation.tokens),
        "new tokens": continuation.num_new_tokens,
        "new notes": new.num_notes,
        "bars": int(np.searchsorted(written.bar_starts(), last_onset, side="right")),
    }
    if prompt.end_time:
        row["notes shown to the model"] = (
            f"{prompt.summary.notes_kept:,} of {prompt.summary.notes_read:,}"
        )
    if prompt.score.num_notes:
        for profile, target in reference.items():
            if any(histogram.any() for histogram in target.values()):
                similarity = mean_similarity(style_profiles(new, profile), target)
                row[f"style, {profile}"] = None if np.isnan(similarity) else similarity
    return row


def style_measures(row: dict[str, Any], anchors: dict[str, list[Anchor]]) -> list[Measure]:
    """Return the measures of a piece's style from its row, with the anchors by column."""
    ends = "nothing in common", "the same"
    return [
        Measure(name, row[key], anchors.get(key, ()), ends=ends)
        for key, name in STYLE_NAMES.items()
        if key in row
    ]


def style_anchors(continuations: list[Continuation]) -> dict[str, dict[str, list[Anchor]]]:
    """Return what real music scores, by prompt and by column of its row.

    The music after a prompt, as long as its continuation, is compared with its own piece, and with
    other prompts' pieces; see `musicgen.metrics.style_anchors`.
    """
    prompted = {c.prompt.name: c for c in reversed(continuations) if c.prompt.end_tick}
    parts = {
        name: c.prompt.piece.clip(c.prompt.end_tick, c.prompt.end_tick + c.new_score.end)
        for name, c in prompted.items()
    }
    found = anchor_similarities(
        parts.items(), style_labels(parts), lambda name: prompted[name].prompt.piece
    )
    anchors: dict[str, dict[str, list[Anchor]]] = {name: {} for name in parts}
    for profile, values in found.items():
        for number, name in enumerate(parts):
            anchors[name][f"style, {profile}"] = [
                Anchor(words, mean_of_valid(np.array(values[anchor])))
                for anchor, words in ANCHOR_NAMES.items()
            ] + [Anchor("the original's own continuation", values["same song"][number])]
    return anchors


def known_measure(found: KnownPassage, scale: Sequence[int]) -> Measure:
    """Return the measure of a piece's longest known passage, beside those of held-out pieces."""
    name = "longest passage known from the training music, in notes"
    anchors = []
    if scale:
        anchors = [
            Anchor("the average of unheard pieces", float(np.mean(scale))),
            Anchor(f"the longest of {len(scale)} unheard pieces", max(scale)),
        ]
    detail = f"as in: {found.source()}" if found.passage else ""
    return Measure(name, found.num_notes, anchors, high=0, detail=detail)
