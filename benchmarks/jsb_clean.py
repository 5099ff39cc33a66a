"""Leave out of the JSB chorales' held-out pieces those whose melody is a training piece's.

    python -m benchmarks.jsb_clean Jsb16thSeparated.json clean.json

A soprano is known if `SAME` or more of its runs of eight melodic intervals are in that of one
training piece, in any key. The new file is read as the old one:
`evaluate.py checkpoint=RUN split=test data.root=clean.json metric.position_loss.max_factor=4`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys

import numpy as np

from benchmarks.chorale_split import SAME, likeness, runs
from benchmarks.measure import write_results
from musicgen.files import write_text
from musicgen.tokenization.chorale.frames import score_of_frames

Runs = list[set[bytes]]


def main(source: str, target: str) -> None:
    with (lzma.open if source.endswith(".xz") else open)(source) as file:
        splits = json.load(file)
    known = [soprano(piece) for piece in splits["train"]]
    rows = []
    for split in sorted(splits.keys() - {"train"}):
        pieces = splits[split]
        splits[split] = [piece for piece in pieces if not is_known(soprano(piece), known)]
        rows.append({"split": split, "pieces": len(pieces), "kept": len(splits[split])})
    write_text(target, json.dumps(splits))
    content = {"command": "python -m benchmarks.jsb_clean FILE clean.json", "rows": rows}
    write_results(__file__, content, argparse.Namespace(device="cpu"))


def soprano(frames: list[list[int]]) -> Runs:
    return runs(score_of_frames(np.array(frames)))[:1]


def is_known(melody: Runs, others: list[Runs]) -> bool:
    return any(likeness(melody, other) >= SAME for other in others)


if __name__ == "__main__":
    main(*sys.argv[1:])
