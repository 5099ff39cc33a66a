"""Train, export and measure the models of the package: make pretrained.

    python -m benchmarks.pretrained [--models NAME] [--root POP909] [--settings NAME=VALUE]

A model NAME is trained by experiment=pretrained/NAME, or its training resumed, and exported to
musicgen/pretrained/NAME in half precision. Then a new process continues one prompt, for the time to
the first file, and 50 prompts of composed pieces that it never saw, and of POP909 with --root. The
measures are written to the model's README.md.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import markdown
from musicgen.composer import compose_corpus
from musicgen.files import write_text
from musicgen.package_data import PRETRAINED

MODELS = {"pop-piano-small": "pop", "groove-small": "groove"}
MAX_MEGABYTES = 20
HELD_OUT_SEED = 1000  # of composed pieces; the training set's is 0
HEADING = "## Measures"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--root", type=Path, help="POP909's folder, for prompts of the pop model")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("outputs/pretrained"))
    parser.add_argument("--registry", type=Path, default=PRETRAINED)
    parser.add_argument("--settings", nargs="*", default=[], help="further settings of train.py")
    args = parser.parse_args()
    for name in args.models.split(","):
        folder = args.registry / name
        command = train(name, args.out / name, args.settings)
        run("-m", "musicgen.evaluation.choose_temperature", args.out / name)
        run("-m", "musicgen.pretrained", args.out / name, folder, "--dtype", "float16")
        size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        if size > MAX_MEGABYTES:
            sys.exit(f"{folder}: {size:.1f} MB, more than {MAX_MEGABYTES}")
        measures = measure(args, name, folder)
        lines = [f"Trained with `{command}`; {size:.1f} MB.", "", *measures]
        card = (folder / "README.md").read_text().partition(HEADING)[0].rstrip()
        card = re.sub(r"FOLDER\"\)  # .*", f'{name}")', card)
        write_text(folder / "README.md", "\n".join([card, "", HEADING, "", *lines]) + "\n")
        print("\n".join([f"# {name}", *lines]))


def train(name: str, folder: Path, settings: list[str]) -> str:
    """Train a model, or resume its run; return the command."""
    experiment = f"experiment=pretrained/{name.replace('-', '_')}"
    arguments = [experiment, *settings, f"hydra.run.dir={folder}"]
    if (folder / "checkpoints" / "last.ckpt").is_file():
        arguments = [f"resume={folder}"]
    run("train.py", *arguments)
    return " ".join(["python train.py", experiment, *settings])


def measure(args: argparse.Namespace, name: str, folder: Path) -> list[str]:
    """Return a table of what continuations measure, beside the originals' own."""
    composed = args.out / f"prompts-{MODELS[name]}-{args.prompts}"
    compose_corpus(composed, kind=MODELS[name], num_pieces=args.prompts, seed=HELD_OUT_SEED)  # type: ignore[arg-type]
    prompts = {"composed": composed}
    if args.root is not None and MODELS[name] == "pop":
        prompts["POP909"] = args.root
    start = time.monotonic()
    first = args.out / f"{name}-first-{time.time_ns()}"
    file = next(iter(sorted(composed.rglob("*.mid"))))
    run("generate.py", f"checkpoint={folder}", f"prompt={file}", "bars=8", f"out={first}")
    seconds = time.monotonic() - start
    lines = [
        f"Seconds from the command to 8 bars of one prompt, on this machine: {seconds:.0f}.",
        "",
    ]
    for kind, source in prompts.items():
        new = args.out / f"{name}-{kind}-{time.time_ns()}"
        settings = [f"prompt={source}", f"num_prompts={args.prompts}", "report=false"]
        run("generate.py", f"checkpoint={folder}", *settings, "bars=16", f"out={new}")
        measured = f"{new}-measured"
        run("evaluate.py", "metrics=descriptors", f"generated={new}", f"out={measured}")
        with Path(measured, "descriptors.csv").open(encoding="utf-8") as csv_file:
            table = [as_text(kind, row) for row in csv.DictReader(csv_file)]
        lines += [*markdown(table).splitlines(), ""]
    return lines


def as_text(kind: str, row: dict[str, str]) -> dict[str, str]:
    """Return a row of `metrics=descriptors` for print."""
    columns = ("n", "generated", "originals", "overlap")
    numbers = {key: f"{float(row[key]):.4g}" if row[key] else "n/a" for key in columns}
    return {kind: row["descriptor"], **numbers}


def run(*arguments: object) -> None:
    subprocess.run([sys.executable, *map(str, arguments)], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
