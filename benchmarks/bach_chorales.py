"""Train, export and measure the model bach-chorales: python -m benchmarks.bach_chorales

The run of experiment=pretrained/bach_chorales is trained, or resumed, and exported to
musicgen/pretrained/bach-chorales in half precision; `--measure` takes the model as it is. It
harmonises the sopranos of the first 50 held-out chorales, of the test split and then of validation,
and continues the first four bars of each by eight. The losses are those of whole pieces in plain
order. All goes to results/bach_chorales.json, and from there to the model's README.md.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import measure, tables
from benchmarks.pretrained import number, read, run, train
from musicgen.data.corpora import BachChorales
from musicgen.files import write_text
from musicgen.midi.io import write
from musicgen.package_data import PRETRAINED

FOLDER = PRETRAINED / "bach-chorales"
WAYS = {"harmonised": ["keep=soprano"], "continued": ["prompt_bars=4", "bars=8"]}
CARD = """
It also harmonises a melody and fills bars: `generate.py tune.mid keep=soprano`, `fill=9-12`.

## What it learned from

Four-part chorales by Johann Sebastian Bach, who died in 1750, so that the notes are in the public
domain: the {train} pieces of the training split of `data=bach_chorales`, which are files of the
package music21 (`musicgen/data/corpora/bach_chorales.json` lists them). What those files say
of themselves: most print "PDF © 2003" or "2004 Margaret Greentree", a claim on the printed page,
the others nothing; none states terms, and none forbids a use. Files that reserve rights in
electronic formats are left out. The counts are in
[data/README.md](../../../data/README.md#bach-chorales).

## Measures

Trained with `{command}`; {size:.1f} MB. No melody of a held-out piece is in the training split.
Nats a note of whole pieces, every voice of every sixteenth counted:

<!-- table bach_losses -->
<!-- end -->

The sopranos of {prompts} held-out chorales harmonised (`keep=soprano`), and their first four bars
continued by eight (`prompt_bars=4 bars=8`), one of each, none chosen, beside Bach's own, by
`python -m benchmarks.bach_chorales --measure` (`benchmarks/results/bach_chorales.json`;
[what is measured](../../../docs/evaluating.md)):

<!-- table bach_writing -->
<!-- end -->

## What it is bad at

- Parallel fifths and octaves: it writes some ten times as many as Bach.
- Phrase ends: fewer of its fermatas are cadences, as it knows neither text nor fermatas; its
  continuations hold chords twice as often as chorales do.
- It makes no use yet of what follows a gap, or of the soprano beyond this beat.
- Repeated notes are one long note to it, and music unlike chorales does not fit in four voices.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measure", action="store_true", help="the model as it is")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("outputs/pretrained/bach"))
    args = parser.parse_args()
    if not args.measure:
        export(args.out / "run", args.prompts)
    rows = [*losses(args.out), *writing(args.out, args.prompts)]
    measure.write_results(__file__, {"rows": rows}, argparse.Namespace(device="cpu"))
    tables.main()


def export(trained: Path, prompts: int) -> None:
    """Train and export the model, and write its card but for the figures."""
    command = train(trained, "experiment=pretrained/bach_chorales")
    run("-m", "musicgen.pretrained", trained, FOLDER, "--dtype", "float16")
    size = sum(path.stat().st_size for path in FOLDER.iterdir()) / 1e6
    in_training = sum(piece.split == "train" for piece in BachChorales().pieces())
    text = CARD.format(command=command, size=size, train=in_training, prompts=prompts)
    card = (FOLDER / "README.md").read_text().rstrip()
    card = re.sub(r"FOLDER\"\)  # .*", f'{FOLDER.name}")', card)
    write_text(FOLDER / "README.md", f"{card}\n{text}")


def losses(out: Path) -> Iterator[dict[str, Any]]:
    """Yield the nats a note of each held-out split."""
    for split in ("val", "test"):
        found = out / f"loss-{split}"
        whole = "metric.position_loss.max_factor=4"
        run("evaluate.py", f"checkpoint={FOLDER}", f"split={split}", whole, f"out={found}")
        for row in read(found / "position_loss.csv"):
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
        for row in read(measured / "part_writing.csv"):
            figures = {name: number(row[name]) for name in ("generated", "low", "high")}
            found = {"n": int(row["n"]), **figures, "originals": number(row["originals"])}
            yield {"measure": row["measure"], "way": way, **found}
        passages = {row["pieces"]: row for row in read(measured / "originality.csv")}
        for name in ("mean", "max"):
            values = {kind: number(row[name]) for kind, row in passages.items()}
            found = {"generated": values["generated"], "originals": values["held-out"]}
            yield {"measure": f"known passage, {name}", "way": way, **found}


if __name__ == "__main__":
    main()
