"""Train, export and measure the model bach-chorales: python -m benchmarks.bach_chorales

The training of benchmarks/recipes.yaml is run or resumed, and the model exported to
musicgen/pretrained/bach-chorales in half precision; `--measure` skips the training. The model
harmonises the sopranos of 50 held-out chorales (of the test split, then of validation), and adds
eight bars to the first four of each. Losses are those of whole pieces with no voice ahead of the
others. Results go to results/bach_chorales.json.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.pretrained import (
    interval_row,
    number,
    run,
    trained,
    training_matches,
)
from musicgen.data.corpora import BachChorales
from musicgen.files import read_csv
from musicgen.midi.io import write
from musicgen.package_data import PRETRAINED

FOLDER = PRETRAINED / "bach-chorales"
WAYS = {"harmonised": ["keep=soprano"], "continued": ["prompt_bars=4", "bars=8"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measure", action="store_true", help="the model as it is")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("outputs/pretrained/bach"))
    args = parser.parse_args()
    if not args.measure:
        run("-m", "musicgen.pretrained", trained(FOLDER.name, args.out), FOLDER)
    rows = [*losses(args.out), *writing(args.out, args.prompts)]
    measure.write_results(__file__, {"rows": rows})


def losses(out: Path) -> Iterator[dict[str, Any]]:
    """Yield the nats per note of each held-out split."""
    for split in ("val", "test"):
        found = out / f"loss-{split}"
        whole = ["metrics=position_loss", "metric.position_loss.max_factor=8"]
        run("evaluate.py", f"checkpoint={FOLDER}", f"split={split}", *whole, f"out={found}")
        for row in read_csv(found / "position_loss.csv"):
            if row["part"] == "nats per note":
                figures = {name: number(row[name]) for name in ("mean", "low", "high")}
                yield {"measure": "nats per note", "way": split, "of": row["run"], **figures}


def writing(out: Path, num_prompts: int) -> Iterator[dict[str, Any]]:
    """Yield each measure of harmonisations and continuations."""
    prompts = out / "prompts"
    prompts.mkdir(parents=True, exist_ok=True)
    corpus = BachChorales()
    held_out = [p for split in ("test", "val") for p in corpus.pieces() if p.split == split]
    for piece in held_out[:num_prompts]:
        write(corpus.read_piece(piece), prompts / f"{piece.name}.mid")
    for way, settings in WAYS.items():
        new, measured = out / way, out / f"{way}-measured"
        run("generate.py", f"checkpoint={FOLDER}", f"prompt={prompts}", *settings, f"out={new}")
        metrics = "metrics=[part_writing,originality]"
        run("evaluate.py", metrics, f"generated={new}", f"out={measured}")
        found = read_csv(measured / "part_writing.csv")
        originals = {x["measure"]: number(x["mean"]) for x in found if x["pieces"] == "originals"}
        for row in found:
            if row["pieces"] == "generated":
                figures = interval_row(row["measure"], row)
                yield figures | {"way": way, "originals": originals[row["measure"]]}
        for row in training_matches(measured):
            yield {"way": way, **row}


if __name__ == "__main__":
    main()
