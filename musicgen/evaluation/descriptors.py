"""Comparisons of continuations with their originals, and `descriptors` and `part_writing`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from musicgen.console import track, warn_of_first
from musicgen.errors import UserError
from musicgen.evaluation.references import (
    NUM_SKIPPED_SHOWN,
    Manifest,
    Pair,
    default_measure,
    open_pairs,
    read_manifest,
    read_pieces,
)
from musicgen.evaluation.runs import Inputs
from musicgen.evaluation.verdict import (
    NOTES_IN_KEY,
    NOTES_PER_BAR,
    ORIGINALS,
    PARALLELS,
    REPEATED_BARS,
    SHORT_STRUCTURE,
    UNRELATED_PIECES,
    Comparisons,
)
from musicgen.generation.continuation import Continuation
from musicgen.metrics.descriptors import (
    Sample,
    compare_sets,
    grooving_similarity,
    muspy_descriptors,
    pitch_class_entropy,
)
from musicgen.metrics.melody import melody_measures
from musicgen.metrics.part_writing import part_writing as four_voices
from musicgen.metrics.repeated_bars import (
    bar_notes,
    bar_similarities,
    repeated_bar_share,
    structureness,
)
from musicgen.metrics.style import (
    PROFILES,
    SIMILARITIES,
    UNRELATED,
    anchor_similarities,
    style_labels,
    style_profiles,
    style_similarity,
)
from musicgen.midi import Score, pitched_notes
from musicgen.midi.key import find_key, in_key_share
from musicgen.report.tables import TableRow, write_csv

COMPARED = {
    "in_key_share": NOTES_IN_KEY,
    "notes_per_bar": NOTES_PER_BAR,
    "repeated_bars": REPEATED_BARS,
    "structureness_short": SHORT_STRUCTURE,
    "structureness_mid": "structureness, mid segments",
    "structureness_long": "structureness, long segments",
    "repeated_notes": "repeated notes",
    "bars_without_lead": "bars without the leading part",
    "out_of_range": "out of range",
    "crossed": "crossed",
    "parallel_fifths": PARALLELS[0],
    "parallel_octaves": PARALLELS[1],
    "melody_fit": "melody fit",
}
"""The measures of `compare_continuations`, by the keys of `describe` and of four-part writing."""


def descriptors(inputs: Inputs, out: Path) -> list[TableRow]:
    """Return a comparison of continuations with the originals by descriptors (`compare_sets`).

    The music that follows the prompt is described (see `describe`), as long in the original as in
    the continuation. If no file has an original with its name, the two sets are compared with whole
    pieces. If there are no originals at all, the rows are the descriptors of each whole piece.

    The descriptors of each continuation are written to `descriptors_pieces.csv`.
    """
    if default_measure(inputs) == "descriptors":
        manifest = read_manifest(str(inputs.generated))
        pairs = _whole_pieces(manifest)
        if not inputs.references:
            return [
                {"piece": pair.file, "original": pair.name, "descriptor": name, "value": value}
                for pair in track(pairs, "generated")
                for name, value in describe(pair.continuation, pair).items()
            ]
        references = read_manifest(str(inputs.references))
        originals = _whole_pieces(references._replace(tokenizer=manifest.tokenizer))
    else:
        _, pairs = open_pairs(inputs, inputs.generated, "descriptors")
        originals = list({pair.name: pair for pair in pairs}.values())  # one pair per original
    described = [_sample(pair, pair.continuation) for pair in track(pairs, "generated")]
    described_originals = [
        _sample(pair, pair.original_continuation()) for pair in track(originals, "originals")
    ]
    details = [
        {"piece": pair.file, "reference": name, **values}
        for pair, (name, values, _) in zip(pairs, described, strict=True)
    ]
    write_csv(details, out / "descriptors_pieces.csv")
    return compare_sets(described, described_originals, seed=inputs.seed)


def _whole_pieces(manifest: Manifest) -> list[Pair]:
    """Return the pieces of a folder as pairs with themselves, without a prompt."""
    return [
        Pair(file, original, continuation, continuation, 0)
        for file, (original, _, _, continuation) in read_pieces(manifest).items()
    ]


def _sample(pair: Pair, score: Score) -> Sample:
    """Return the descriptors and the style of the continuation of a pair, or of the original's."""
    profiles = [style_profiles(score, profile) for profile in PROFILES]
    return pair.name, describe(score, pair), profiles


def part_writing(inputs: Inputs, out: Path) -> list[TableRow]:
    """Return measures of four-part writing for continuations and their originals.

    The originals are as long as the continuations. Parallels are counted per 100 beats; other
    values are shares (see `musicgen.metrics.part_writing`).
    """
    _, pairs = open_pairs(inputs, inputs.generated, "part_writing")
    rows: list[TableRow] = []
    left_out = []
    for pair in pairs:
        try:
            originals = four_voices(pair.original_continuation())
            generated = four_voices(pair.continuation)
        except UserError as error:
            left_out.append(f"left out: {pair.file}: {error}")
            continue
        rows += measure_rows(pair, generated, originals)
    warn_of_first(left_out, NUM_SKIPPED_SHOWN)
    if not rows:
        raise UserError("metrics=part_writing needs pieces in four voices, each in its own track")
    return rows


def measure_rows(
    pair: Pair, generated: Mapping[str, float], originals: Mapping[str, float]
) -> list[TableRow]:
    """Return the rows of a continuation and of its original, from their measures by name."""
    return [
        {"pieces": kind, "piece": pair.file, "original": pair.name, "measure": name, "value": value}
        for kind, measures in (("generated", generated), ("originals", originals))
        for name, value in measures.items()
    ]


def describe(score: Score, pair: Pair) -> dict[str, float]:
    """Return descriptors of a continuation, by name.

    - The metrics of muspy.
    - Those of MusDr: grooving similarity, entropy of the pitch classes in windows of 1 and 4 bars,
      and structureness.
    - The number of notes per bar, the share of notes in the key of the prompt (without a prompt,
      of the whole original), and the share of repeated bars. Bars of the prompt can be repeated,
      but are not counted.

    Args:
        score: the continuation of the pair, or the original's.
    """
    prompt = pair.reference.clip(0, pair.prompt_end)
    first = int((pair.reference.bar_starts() < pair.prompt_end).sum())
    key = find_key(pitched_notes(prompt if prompt.num_notes else pair.reference))
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
        "in_key_share": in_key_share(score, key),
        "repeated_bars": repeated_bar_share(bar_similarities(events[:, :3]), first),
    }


def compare_continuations(continuations: Sequence[Continuation]) -> Comparisons:
    """Return comparisons of continuations with the originals, by descriptors and style.

    Descriptors are compared with the music that follows the prompt in the original. The style is
    compared with the whole original; its baseline is the similarity of unrelated pieces.
    """
    pairs = []
    for continuation in continuations:
        prompt, music = continuation.prompt, continuation.new_on_grid
        pairs.append(Pair(prompt.name, prompt.name, music, prompt.piece, prompt.end.tick))
    parts = {pair.name: pair.original_continuation() for pair in pairs}
    generated = {pair.name: _describe_with_parts(pair.continuation, pair) for pair in pairs}
    originals = {pair.name: _describe_with_parts(parts[pair.name], pair) for pair in pairs}
    comparisons = {}
    for key, measure in COMPARED.items():
        values, baseline = (
            {piece: each.get(key, np.nan) for piece, each in described.items()}
            for described in (generated, originals)
        )
        comparisons[measure, ORIGINALS] = values, baseline
    pieces = {pair.name: pair.reference for pair in pairs}
    anchors = anchor_similarities(parts.items(), style_labels(pieces), pieces.__getitem__)
    for profile, by_anchor in anchors.items():
        values = {
            pair.name: style_similarity(pair.continuation, pair.reference, profile)
            for pair in pairs
        }
        unrelated = dict(zip(pieces, by_anchor[UNRELATED], strict=True))
        comparisons[SIMILARITIES[profile], UNRELATED_PIECES] = values, unrelated
    return comparisons


def _describe_with_parts(score: Score, pair: Pair) -> dict[str, float]:
    """Return what `describe` returns, and measures of the leading part and of four voices."""
    values = describe(score, pair) | melody_measures(score, pair.reference)
    if not any(track.is_drum for track in score.tracks):
        with suppress(UserError):  # it is not in four voices
            values |= four_voices(score)
    return values
