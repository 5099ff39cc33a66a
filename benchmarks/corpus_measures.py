"""Measure the composed corpora by what listeners notice, beside POP909 if its folder is given.

python -m benchmarks.corpus_measures [--root=data/POP909] [--pieces=40]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import measure
from musicgen.composer import FAMILIES, compose_groove, compose_pop
from musicgen.data.corpora import POP909
from musicgen.errors import UserError
from musicgen.evaluation.descriptors import chord_changes
from musicgen.metrics.descriptors import grooving_similarity, pitch_class_entropy
from musicgen.metrics.key import find_key, in_key_share
from musicgen.metrics.listening import listening_measures
from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score, pitched_notes
from musicgen.text import markdown


def measures(score: Score) -> dict[str, float]:
    return {
        "in_key_share": in_key_share(score, find_key(pitched_notes(score))),
        "pitch_class_entropy_1": pitch_class_entropy(score, 1),
        "grooving_similarity": grooving_similarity(score),
        **listening_measures(score, chord_changes(score)),
    }


def songs(root: Path, count: int) -> Iterator[Score]:
    """Read evenly spaced songs of POP909 in duple metre."""
    corpus = POP909(root, download=False, exclude=None)
    pieces = corpus.pieces()
    for index in np.linspace(0, len(pieces) - 1, count).astype(int).tolist():
        try:
            yield corpus.read(pieces[index].path)
        except UserError as error:
            print(error)


def main() -> None:
    args = measure.arguments(__doc__, root="", pieces=40)
    families = list(FAMILIES)
    corpora: dict[str, Iterator[Score]] = {
        "composed pop": (compose_pop(0, i) for i in range(args.pieces)),
        "composed grooves": (
            compose_groove(0, families[i % len(families)], i // len(families), 0)
            for i in range(args.pieces)
        ),
    }
    if args.root:
        corpora["POP909"] = songs(Path(args.root), args.pieces)
    found = {name: [measures(score) for score in scores] for name, scores in corpora.items()}
    table = []
    for name in found["composed pop"][0]:
        line = {"mean over pieces (standard deviation)": f"`{name}`"}
        for corpus, rows in found.items():
            values = np.array([row[name] for row in rows])
            line[corpus] = f"{mean_of_valid(values):.3g} ({np.nanstd(values):.2g})"
        table.append(line)
    print(markdown(table))


if __name__ == "__main__":
    main()
