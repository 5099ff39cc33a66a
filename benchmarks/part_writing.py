"""Bach's own part writing: the measures of `metrics=part_writing` on the chorales of music21.

    python -m benchmarks.part_writing

Phrase ends are the printed fermatas, and without them the chords that are held.
Means over pieces with 95% intervals.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from musicgen.data.corpora import SPLITS, BachChorales
from musicgen.files import write_text
from musicgen.metrics.part_writing import part_writing
from musicgen.metrics.summary import Summary

OUT = Path(__file__).parent / "results/part_writing.json"


def main() -> None:
    corpus = BachChorales()
    rows = []
    for split in SPLITS:
        scores = [corpus.read_piece(piece) for piece in corpus.pieces() if piece.split == split]
        printed = [part_writing(score) for score in scores]
        held = [part_writing(replace(score, markers=[])) for score in scores]
        for name in printed[0]:
            for ends, found in (("fermatas", printed), ("held chords", held)):
                if ends == "fermatas" or "ends" in name:
                    summary = asdict(Summary.of(piece[name] for piece in found))
                    figures = {key: round(value, 4) for key, value in summary.items()}
                    rows.append({"split": split, "measure": name, "ends": ends, **figures})
    lines = ",\n  ".join(map(json.dumps, rows))
    command = "python -m benchmarks.part_writing"
    write_text(OUT, f'{{"command": "{command}",\n "rows": [\n  {lines}]}}\n')


if __name__ == "__main__":
    main()
