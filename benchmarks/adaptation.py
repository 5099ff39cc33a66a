"""Learning somebody's music from a few pieces: all weights, LoRA, a prefix state, or nothing.

    python -m benchmarks.adaptation --base RUN --root POP909 [--pieces 5,20,100]

Each family of songs is learned on its own, by train.py init=RUN, and measured on songs of the
family that are held out. Families are the songs with the fewest and with the most sevenths among
their chords. The base must not have been trained on these songs. Finished runs are kept, and so are
their figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from musicgen import load
from musicgen.data.corpora import Corpus
from musicgen.evaluation.position_loss import position_losses
from musicgen.files import write_text
from musicgen.generation.model import MusicModel
from musicgen.metrics.summary import Summary
from musicgen.random import NoiseKey, RandomStream
from musicgen.text import markdown

METHODS = {
    "none": [],
    "full": ["optimizer=adamw", "optimizer.lr=5e-4"],
    "lora": ["adapter=lora", "optimizer.lr=2e-3"],
    "prefix_state": ["adapter=prefix_state"],
}
WINDOWS = 2  # of a held-out piece, in training lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", required=True, help="a run, or a model of the package")
    parser.add_argument("--root", type=Path, required=True, help="POP909's folder")
    parser.add_argument("--pieces", default="5,20,100")
    parser.add_argument("--held-out", type=int, default=20, help="pieces of a family to measure on")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("outputs/adaptation"))
    parser.add_argument("--overrides", nargs="*", default=[], help="further settings of train.py")
    args = parser.parse_args()
    rng, base = np.random.default_rng(args.seed), load(args.base)
    rows = []
    for family, pieces in families(args.root).items():
        order = [pieces[i] for i in rng.permutation(len(pieces))]
        held_out = gather(order[: args.held_out], args.out / family / "held_out")
        for count in map(int, args.pieces.split(",")):
            learned = order[args.held_out :][:count]
            if len(learned) < count:
                print(f"{family}: only {len(learned)} pieces to learn from, not {count}")
                continue
            folder = gather(learned, args.out / family / str(count))
            for method in METHODS:
                run = args.out / family / f"{count}-{method}"
                row = run_row(args, base, method, run, folder, held_out)
                rows.append({"family": family, "pieces": count, "method": method, **row})
    table = summarise(rows)
    content = {
        "command": "python -m benchmarks.adaptation " + " ".join(sys.argv[1:]),
        "machine": measure.machine("cpu"),
        "table": table,
        "rows": rows,
    }
    write_text(args.out / "adaptation.json", json.dumps(content, indent=1) + "\n")
    print(markdown(table))


def families(root: Path) -> dict[str, list[Path]]:
    """Return the folders of the songs with the fewest and with the most sevenths."""
    songs = sorted(path.parent for path in root.glob("*/chord_midi.txt"))
    ranked = sorted(songs, key=lambda song: (share_of_sevenths(song), song))
    third = len(ranked) // 3
    return {"triads": ranked[:third], "sevenths": ranked[-third:]}


def share_of_sevenths(song: Path) -> float:
    """Return the share of a song's chords, by time, that have a seventh."""
    total = seventh = 0.0
    for line in (song / "chord_midi.txt").read_text().splitlines():
        start, end, label = line.split()[:3]
        if label != "N":
            total += float(end) - float(start)
            seventh += (float(end) - float(start)) * ("7" in label)
    return seventh / total if total else 0.0


def gather(pieces: list[Path], folder: Path) -> Path:
    """Copy the folders of songs to a folder."""
    for piece in pieces:
        shutil.copytree(piece, folder / piece.name, dirs_exist_ok=True)
    return folder.resolve()


def run_row(
    args: argparse.Namespace,
    base: MusicModel,
    method: str,
    run: Path,
    learned: Path,
    held_out: Path,
) -> dict[str, Any]:
    """Train one method, unless that is done, and measure it on the held-out pieces."""
    finished = run / "losses.json"
    if finished.is_file():
        row: dict[str, Any] = json.loads(finished.read_text())
        return row
    row = {"seconds": 0, "kilobytes": 0}
    model = base
    if method != "none":
        settings = [
            *(f"init={args.base}", "data=pop909", f"data.root={learned}"),
            *("loader.val_fraction=0.2", "loader.test_fraction=0"),
            f"loader.cache_dir={args.out.resolve() / 'cache'}",
            f"loader.chords={base.content.config['loader']['chords']}",
            *(f"trainer.max_steps={args.steps}", f"seed={args.seed}"),
            f"trainer.val_check_interval={max(1, args.steps // 10)}",
            *("loader.batches_per_epoch=50", f"hydra.run.dir={run}"),
        ]
        start = time.monotonic()
        command = [sys.executable, "train.py", *settings, *METHODS[method], *args.overrides]
        subprocess.run(command, check=True, stdout=sys.stderr)
        row["seconds"] = round(time.monotonic() - start)
        file = run / f"{method}.safetensors"
        if method == "full":
            file = run / "model.safetensors"
            load(run).save_pretrained(run, dtype="float16")
        row["kilobytes"] = round(file.stat().st_size / 1e3)
        model = load(run / "checkpoints" / "best.ckpt")
    row["losses"] = losses(model, measure.corpus("pop909", held_out), args.out / "cache")
    write_text(finished, json.dumps(row) + "\n")
    return row


def losses(model: MusicModel, corpus: Corpus, cache: Path) -> dict[str, float]:
    """Return the loss of the beginning of each piece, in nats a token, by name."""
    chords = model.content.config["loader"]["chords"]
    settings = {"val_fraction": 0, "test_fraction": 0, "chords": chords}
    data = measure.data_module(corpus, model.tokenizer, cache, **settings).encoded
    length = WINDOWS * model.training_length
    found = {}
    for i, name in enumerate(data.cache.names):
        tokens = data.cache[i][: length + 1]
        noise = NoiseKey((0, RandomStream.EVALUATION, i))
        positions = model.positions(tokens, data.cache.bar_lengths[i])
        (loss,) = position_losses(model.model, tokens, noise, positions=positions)
        found[name] = round(float(loss.mean()), 5)
    return found


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the means over all families' pieces, and the gains over the base, with intervals."""
    table = []
    base = {
        (row["family"], row["pieces"]): row["losses"] for row in rows if row["method"] == "none"
    }
    for count in sorted({row["pieces"] for row in rows}):
        for method in METHODS:
            chosen = [row for row in rows if (row["pieces"], row["method"]) == (count, method)]
            if not chosen:
                continue
            values = Summary.of(x for row in chosen for x in row["losses"].values())
            entry: dict[str, Any] = {
                **{"pieces": count, "method": method, "n": values.n},
                "loss": [round(x, 3) for x in (values.mean, values.low, values.high)],
                **{
                    key: round(np.mean([row[key] for row in chosen]))
                    for key in ("seconds", "kilobytes")
                },
            }
            gains = Summary.of(
                base[row["family"], count][name] - loss
                for row in chosen
                for name, loss in row["losses"].items()
            )
            entry["gain"] = [round(x, 3) for x in (gains.mean, gains.low, gains.high)]
            table.append(entry)
    return table


if __name__ == "__main__":
    main()
