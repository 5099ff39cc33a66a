"""The measures `descriptors` and `part_writing` of continuations and their originals."""

from pathlib import Path

import numpy as np

from musicgen.console import track, warn_of_first
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.references import (
    NUM_SKIPPED_SHOWN,
    Pair,
    default_measure,
    open_pairs,
    read_manifest,
    read_pieces,
)
from musicgen.metrics.descriptors import (
    grooving_similarity,
    muspy_descriptors,
    pitch_class_entropy,
)
from musicgen.metrics.part_writing import part_writing as four_voices
from musicgen.metrics.repeated_bars import bar_notes, bar_similarities, repeated_bar_share
from musicgen.metrics.set_comparison import Described, compare_sets
from musicgen.metrics.structureness import structureness
from musicgen.midi import Score
from musicgen.midi.key import in_key_share
from musicgen.report.tables import TableRow, write_csv
from musicgen.tokenization.base import Tokenizer


def descriptors(inputs: Inputs, out: Path) -> list[TableRow]:
    """Return a comparison of continuations with the originals by descriptors (`compare_sets`).

    The music that follows the prompt is described (see `describe`), as long in the original as in
    the continuation. If no file has an original with its name, the two sets are compared with whole
    pieces. If there are no originals at all, the rows are the descriptors of each whole piece.

    The descriptors of each continuation are written to `descriptors_pieces.csv`.
    """
    if default_measure(inputs) == "descriptors":
        generated = Path(str(inputs.generated)).expanduser()
        tokenizer = read_manifest(generated).tokenizer
        pairs = _whole_pieces(generated, tokenizer)
        if not inputs.references:
            return [
                {"piece": pair.file, "original": pair.name, "descriptor": name, "value": value}
                for pair in track(pairs, "generated")
                for name, value in describe(pair.continuation, pair).items()
            ]
        originals = _whole_pieces(Path(str(inputs.references)).expanduser(), tokenizer)
    else:
        _, pairs = open_pairs(inputs, inputs.generated, "descriptors")
        originals = list({pair.name: pair for pair in pairs}.values())  # one pair per original
    described = [_described(pair, pair.continuation) for pair in track(pairs, "generated")]
    described_originals = [
        _described(pair, pair.original_continuation()) for pair in track(originals, "originals")
    ]
    details = [
        {"piece": pair.file, "reference": pair.name, **each.values}
        for pair, each in zip(pairs, described, strict=True)
    ]
    write_csv(details, out / "descriptors_pieces.csv")
    return compare_sets(described, described_originals, seed=inputs.seed)


def _whole_pieces(folder: Path, tokenizer: Tokenizer | None) -> list[Pair]:
    """Return the pieces of a folder as pairs with themselves, without a prompt."""
    pieces = read_pieces(folder, tokenizer)
    return [
        Pair(file, piece.original, piece.continuation, piece.continuation, 0)
        for file, piece in pieces.items()
    ]


def _described(pair: Pair, score: Score) -> Described:
    """Return the descriptors and the style of the continuation of a pair, or of the original's."""
    return Described.of(pair.name, score, describe(score, pair))


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
        for kind, measures in (("generated", generated), ("originals", originals)):
            names = {"pieces": kind, "piece": pair.file, "original": pair.name}
            rows += [{**names, "measure": name, "value": value} for name, value in measures.items()]
    warn_of_first(left_out, NUM_SKIPPED_SHOWN)
    if not rows:
        raise UserError("metrics=part_writing needs pieces in four voices, each in its own track")
    return rows


def describe(score: Score, pair: Pair) -> dict[str, float]:
    """Return descriptors of a continuation, by name.

    - The metrics of muspy.
    - Those of MusDr: grooving similarity, entropy of the pitch classes in windows of 1 and 4 bars,
      and structureness.
    - The number of notes per bar, the share of notes in the key of the prompt, and the share of
      repeated bars. Bars of the prompt can be repeated, but are not counted.

    Args:
        score: the continuation of the pair, or the original's.
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
        "repeated_bars": repeated_bar_share(bar_similarities(events[:, :3]), first),
    }
