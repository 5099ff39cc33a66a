"""Descriptors of continuations and of their originals, and their writing in four voices."""

from pathlib import Path

import numpy as np

from musicgen.console import track, warn_of_first
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.references import (
    NUM_SKIPPED_SHOWN,
    Pair,
    open_pairs,
    read_manifest,
    read_pieces,
    usual_measure,
)
from musicgen.metrics.bars import bar_notes, bar_similarities, bars_recalled
from musicgen.metrics.descriptors import (
    grooving_similarity,
    in_key_share,
    muspy_descriptors,
    pitch_class_entropy,
)
from musicgen.metrics.part_writing import part_writing as four_voices
from musicgen.metrics.scape import structureness
from musicgen.metrics.sets import Described, compare_sets
from musicgen.midi import Score
from musicgen.report.tables import TableRow, write_csv


def descriptors(inputs: Inputs, out: Path) -> list[TableRow]:
    """Describe continuations and the music that follows their prompts in the originals.

    Both are equally long, without the prompt; see `describe`. If no file has an original of its
    name, two sets of music are compared, all of it without prompts. Rows are those of
    `compare_sets`; the descriptors of each continuation are in `descriptors_pieces.csv`.
    """
    if usual_measure(inputs) == "descriptors":
        folders = [Path(str(x)).expanduser() for x in (inputs.generated, inputs.references)]
        tokenizer = read_manifest(folders[0]).tokenizer
        pairs, others = (
            [
                Pair(file, own, x, x, 0)
                for file, (own, *_, x) in read_pieces(each, tokenizer).items()
            ]
            for each in folders
        )
    else:
        _, pairs = open_pairs(inputs, inputs.generated, "descriptors")
        others = list({pair.name: pair for pair in pairs}.values())  # not once a sample
    added = [(pair.continuation, pair) for pair in track(pairs, "new")]
    own = [(pair.own_continuation(), pair) for pair in track(others, "originals")]
    new, old = (
        [Described.of(pair.name, score, describe(score, pair)) for score, pair in each]
        for each in (added, own)
    )
    details = [
        {"piece": pair.file, "reference": pair.name, **each.values}
        for pair, each in zip(pairs, new, strict=True)
    ]
    write_csv(details, out / "descriptors_pieces.csv")
    return compare_sets(new, old, seed=inputs.seed)


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
            names = {"pieces": kind, "piece": pair.file, "original": pair.name}
            rows += [{**names, "measure": name, "value": x} for name, x in measures.items()]
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
