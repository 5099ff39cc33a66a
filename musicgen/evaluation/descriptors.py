"""Descriptors and part writing of continuations, compared with their originals."""

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
    in_key_share,
    muspy_descriptors,
    pitch_class_entropy,
)
from musicgen.metrics.part_writing import part_writing as four_voices
from musicgen.metrics.repeated_bars import bar_notes, bar_similarities, repeated_bar_share
from musicgen.metrics.sets import Described, compare_sets
from musicgen.metrics.structureness import structureness
from musicgen.midi import Score
from musicgen.report.tables import TableRow, write_csv
from musicgen.tokenization.base import Tokenizer


def descriptors(inputs: Inputs, out: Path) -> list[TableRow]:
    """Describe continuations, and the music that follows their prompts in the originals.

    Both are equally long, without the prompt; see `describe`. If no file has an original of its
    name, two sets of music are compared, each piece as a whole. Rows are those of `compare_sets`;
    the descriptors of each continuation are in `descriptors_pieces.csv`. Of a folder without
    originals, the whole pieces are described, and the rows are the values of each.
    """
    if (folder := _folder_alone(inputs)) is not None:
        return _folder_descriptors(folder)
    if default_measure(inputs) == "descriptors":
        generated = Path(str(inputs.generated)).expanduser()
        tokenizer = read_manifest(generated).tokenizer
        pairs = _whole_pieces(generated, tokenizer)
        originals = _whole_pieces(Path(str(inputs.references)).expanduser(), tokenizer)
    else:
        _, pairs = open_pairs(inputs, inputs.generated, "descriptors")
        originals = list({pair.name: pair for pair in pairs}.values())  # once, not once per sample
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


def _folder_alone(inputs: Inputs) -> Path | None:
    """Return the folder of generated files if nothing says where their originals are."""
    if not inputs.generated or inputs.references:
        return None
    folder = Path(inputs.generated).expanduser()
    return None if read_manifest(folder).references else folder


def _folder_descriptors(folder: Path) -> list[TableRow]:
    """Return the descriptors of each piece of a folder."""
    pairs = _whole_pieces(folder, read_manifest(folder).tokenizer)
    return [
        {"piece": pair.file, "original": pair.name, "descriptor": name, "value": value}
        for pair in track(pairs, "generated")
        for name, value in describe(pair.continuation, pair).items()
    ]


def _whole_pieces(folder: Path, tokenizer: Tokenizer | None) -> list[Pair]:
    """Return the pieces of a folder as pairs with themselves, without a prompt."""
    pieces = read_pieces(folder, tokenizer)
    return [
        Pair(file, piece.original, piece.continuation, piece.continuation, 0)
        for file, piece in pieces.items()
    ]


def _described(pair: Pair, score: Score) -> Described:
    return Described.of(pair.name, score, describe(score, pair))


def part_writing(inputs: Inputs, out: Path) -> list[TableRow]:
    """Measure the part writing of pieces in four voices, and of as much music of their originals.

    See `musicgen.metrics.part_writing`. Parallels are counted per 100 beats; other values are
    shares.
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
            rows += [{**names, "measure": name, "value": x} for name, x in measures.items()]
    warn_of_first(left_out, NUM_SKIPPED_SHOWN)
    if not rows:
        raise UserError("metrics=part_writing needs pieces in four voices, each in its own track")
    return rows


def describe(score: Score, pair: Pair) -> dict[str, float]:
    """Return descriptors of the continuation of a pair, or of the original's own.

    They are muspy's; MusDr's grooving similarity, entropies of the pitch classes in windows of 1
    and 4 bars, and structureness; the notes per bar, the share of the notes in the prompt's key,
    and the share of repeated bars. Bars of the prompt can be repeated, but are not counted.
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
