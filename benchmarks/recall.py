"""What models recall: their loss by bar and on planted copies, and how often their music returns.

    python -m benchmarks.recall [--root POP909] NAME=CHECKPOINT ...

`evaluate.py metrics=[recall]` on held-out pieces, then 48 bars after each of 48 prompts of 4 bars,
one continuation each, none chosen, with each model's own sampling.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import measure, tables
from benchmarks.pretrained import HELD_OUT_SEED, run
from musicgen.composer import compose_corpus
from musicgen.files import read_csv

NUM_PROMPTS = NUM_BARS = 48
MEASURES = {
    "in_key_share": "in key",
    "bars_recalled": "bars recalled",
    "similarity_error": "SE",
    "notes_per_bar": "notes a bar",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="+", metavar="NAME=CHECKPOINT")
    parser.add_argument("--root", type=Path, help="POP909's folder, for more prompts")
    args = parser.parse_args()
    rows, continuations = [], []
    with TemporaryDirectory() as folder:
        prompts = {"composed": Path(folder, "prompts")}
        compose_corpus(prompts["composed"], kind="pop", num_pieces=NUM_PROMPTS, seed=HELD_OUT_SEED)
        if args.root:
            prompts["POP909"] = args.root
        for name, _, checkpoint in (model.partition("=") for model in args.models):
            out = Path(folder, name)
            run("evaluate.py", "metrics=[recall]", f"checkpoint={checkpoint}", f"out={out}")
            rows += [{"model": name, **row} for row in read_csv(out / "recall.csv")]
            for kind, source in prompts.items():
                new, measured = Path(folder, f"{name}-{kind}"), Path(folder, f"{name}-{kind}-m")
                chosen = [f"prompt={source}", f"num_prompts={NUM_PROMPTS}", f"bars={NUM_BARS}"]
                chosen += [f"checkpoint={checkpoint}", "report=false", f"out={new}"]
                run("generate.py", *chosen)
                run("evaluate.py", "metrics=[descriptors]", f"generated={new}", f"out={measured}")
                continuations += [{"model": name, **row} for row in measures(measured, kind)]
    content = {"rows": rows, "continuations": continuations}
    measure.write_results(__file__, content, argparse.Namespace(device="cpu"))
    tables.main()


def measures(folder: Path, kind: str) -> Iterator[dict[str, str]]:
    """Yield the means of `MEASURES` after prompts of a kind."""
    for row in read_csv(folder / "descriptors.csv"):
        if label := MEASURES.get(row["descriptor"]):
            part = f"{kind}: {label}"
            yield {"part": part, "mean": row["generated"], "originals": row["originals"]}


if __name__ == "__main__":
    main()
