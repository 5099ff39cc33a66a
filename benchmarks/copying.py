"""Does `evaluate.py RUN` say that a model copies if it does, and of no other?

    python -m benchmarks.copying

The model that copies has learned random melodies by heart, which `train.py` was given in one key:
what it goes on with can only be known. The others come with the package. Finished parts are kept
below outputs/copying.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.measure import arguments, write_results
from musicgen.cli.plan import SHIPPED
from musicgen.evaluation.verdict import HELD_OUT, KNOWN, RECITED
from musicgen.files import read_csv
from musicgen.midi import Score, Track, notes_from, write
from musicgen.report.tables import Row
from musicgen.text import markdown

TAUGHT = (
    *("data=midi_folder", "tokenizer.max_transposition=0", "loader.length=256"),
    *("loader.val_fraction=.25", "loader.test_fraction=.25", "trainer.max_steps=400"),
    *("model.dim=64", "model.num_layers=2", "model.num_heads=2", "model.ff_dim=128"),
)
NUM_MELODIES, NUM_NOTES = 16, 80
OUT = Path("outputs/copying")


def verdict(model: str) -> Row:
    """Evaluate a model; return what is said of its copying."""
    out = OUT / model.replace("/", "_")
    if not (out / "evaluation.csv").is_file():
        subprocess.run([sys.executable, "evaluate.py", model, f"out={out}"], check=True)
    page = (out / "index.html").read_text()
    answer = re.search(r"<dt>Does it copy\?</dt><dd><strong>([^:<]*)", page)
    assert answer
    rows = {(row["measure"], row["beside"]): row for row in read_csv(out / "evaluation.csv")}
    known, recited = rows[KNOWN, HELD_OUT], rows[RECITED, HELD_OUT]
    return {
        "verdict": answer[1],
        "longest known passage": notes(known, ""),
        "of held-out pieces": notes(known, "beside_"),
        "of its own piece, after training pieces": notes(recited, ""),
        "after held-out pieces": notes(recited, "beside_"),
    }


def notes(row: dict[str, str], prefix: str) -> str:
    mean, low, high = (float(row[f"{prefix}{name}"]) for name in ("mean", "low", "high"))
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def melody(seed: int) -> Score:
    """Return quarter notes of C major, drawn at random."""
    pitches = np.random.default_rng(seed).choice([60, 62, 64, 65, 67, 69, 71, 72], NUM_NOTES)
    notes = [(480 * i, 480, int(pitch), 64) for i, pitch in enumerate(pitches)]
    return Score(480, [Track(notes=notes_from(notes))])


def main() -> None:
    args = arguments(__doc__)
    run, midi = OUT / "by_heart", OUT / "melodies"
    if not (run / "checkpoints/last.ckpt").is_file():
        for seed in range(NUM_MELODIES):
            write(melody(seed), midi / f"{seed}.mid")
        settings = (*TAUGHT, f"data.root={midi}", f"hydra.run.dir={run}")
        subprocess.run([sys.executable, "train.py", *settings], check=True)
    found = {"melodies by heart": verdict(f"{run}/checkpoints/last.ckpt")}
    found |= {name: verdict(name) for name in SHIPPED.values()}
    rows = [{"model": name, **row} for name, row in found.items()]
    write_results(__file__, {"rows": rows}, args)
    print(markdown(rows))


if __name__ == "__main__":
    main()
