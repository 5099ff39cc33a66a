"""Learning somebody's music from a few pieces: all weights, LoRA, a prefix state, or nothing.

    python -m benchmarks.adaptation --base RUN --root FOLDER [--data pop909] [--pieces 5,20,100]

Each family of pieces is learned on its own, by train.py init=RUN, and measured on pieces of the
family that are held out. Families are the folders below --root; with --data pop909, the songs with
the most and with the fewest sevenths among their chords. Without --root, grooves are composed. The
base must not have been trained on these pieces. Finished runs are kept, and so are their figures.
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
from musicgen.composer import compose_corpus
from musicgen.data.corpora import Corpus
from musicgen.evaluation.position_loss import position_losses
from musicgen.files import write_text
from musicgen.generation.model import MusicModel
from musicgen.metrics import Summary
from musicgen.random import NoiseKey, RandomStream

METHODS = {
    "none": [],
    "full": ["optimizer=adamw", "optimizer.lr=5e-4"],
    "lora": ["adapter=lora", "optimizer.lr=2e-3"],
    "prefix_state": ["adapter=prefix_state"],
}
CORPORA = ("midi_folder", "pop909")
WINDOWS = 2  # of a held-out piece, in training lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", required=True, help="a run, or a model of the package")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--data", default="midi_folder", choices=CORPORA)
    parser.add_argument("--pieces", default="5,20,100")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--families", type=int, default=3, help="at most, the largest ones")
    parser.add_argument("--held-out", type=int, default=20, help="pieces of a family to measure on")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("outputs/adaptation"))
    parser.add_argument("--overrides", nargs="*", default=[], help="further settings of train.py")
    args = parser.parse_args()
    rng, base = np.random.default_rng(args.seed), load(args.base)
    rows = []
    for family, pieces in families(args).items():
        order = [pieces[i] for i in rng.permutation(len(pieces))]
        held_out = gather(order[: args.held_out], args.out / family / "held_out")
        for count in map(int, args.pieces.split(",")):
            learned = order[args.held_out :][:count]
            if len(learned) < count:
                print(f"{family}: only {len(learned)} pieces to learn from, not {count}")
                continue
            folder = gather(learned, args.out / family / str(count))
            for method in args.methods.split(","):
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
    print(measure.markdown([in_words(row) for row in table]))


def families(args: argparse.Namespace) -> dict[str, list[Path]]:
    """Return the files, or POP909's song folders, of the largest families."""
    if args.data == "pop909":
        songs = sorted(path.parent for path in args.root.glob("*/chord_midi.txt"))
        ranked = sorted(songs, key=lambda song: (share_of_sevenths(song), song))
        third = len(ranked) // 3
        return {"triads": ranked[:third], "sevenths": ranked[-third:]}
    root = args.root
    if root is None:
        root = args.out / "composed"
        compose_corpus(root, kind="groove", num_pieces=1200, seed=7)
    found: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*.mid")):
        found.setdefault(path.relative_to(root).parts[0], []).append(path)
    largest = sorted(found, key=lambda family: (-len(found[family]), family))[: args.families]
    return {family: found[family] for family in largest}


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
    """Copy pieces, which are files or folders, to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for piece in pieces:
        if piece.is_dir():
            shutil.copytree(piece, folder / piece.name, dirs_exist_ok=True)
        else:
            shutil.copy(piece, folder)
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
            *(f"init={args.base}", f"data={args.data}", f"data.root={learned}"),
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
    row["losses"] = losses(model, measure.corpus(args.data, held_out), args.out / "cache")
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
            if base:
                gains = Summary.of(
                    base[row["family"], count][name] - loss
                    for row in chosen
                    for name, loss in row["losses"].items()
                )
                entry["gain"] = [round(x, 3) for x in (gains.mean, gains.low, gains.high)]
            table.append(entry)
    return table


def in_words(row: dict[str, Any]) -> dict[str, object]:
    """Return a row for print; intervals are bootstrapped over the held-out pieces."""
    loss, gain = (
        "{:.3f} [{:.3f}, {:.3f}]".format(*row[key]) if key in row else ""
        for key in ("loss", "gain")  # no gain without the method none
    )
    numbers = {key: row[key] for key in ("pieces", "method")}
    cost = {"seconds": row["seconds"], "kB": f"{row['kilobytes']:,}"}
    return {**numbers, "loss": loss, "gain over the base": gain, **cost}


if __name__ == "__main__":
    main()
