"""Train and export a model of the package, and measure groove-small: make pretrained.

    python -m benchmarks.pretrained --bands FOLDER [--measure]
    python -m benchmarks.pretrained --model NAME [--settings NAME=VALUE ...]

The model is trained in the steps of recipes.yaml, or their training resumed, and exported to
musicgen/pretrained/NAME in half precision; `--measure` takes it as it is. songs-small needs the
folders of its corpora as settings (data.corpora.*.root), and benchmarks/songs.py measures it.
groove-small needs the Groove MIDI Dataset in data/groove. It continues composed bands that it never
heard, and those of others in --bands; the measures go to results/pretrained.json. Notes that are
longer than any of their track in the prompt are counted with and without `limit_durations`.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

import musicgen
from benchmarks import measure
from musicgen.checkpoints import CONTENT_KEY, load_initial
from musicgen.checkpoints.storage import CONFIG
from musicgen.composer import compose_corpus
from musicgen.data.corpora.base import evenly_spaced
from musicgen.files import read_csv, write_json
from musicgen.generation.model import MusicModel
from musicgen.metrics.intervals import Summary
from musicgen.metrics.style import PROFILES, SAME_PIECE, SIMILARITIES
from musicgen.midi import Score, find_music
from musicgen.package_data import PRETRAINED
from musicgen.run_folders import find_checkpoint

GROOVE = "groove-small"
DRUMMERS = "data/groove"  # the Groove MIDI Dataset
HELD_OUT_SEED = 1000  # of composed pieces; the training set's is 0
RECIPES: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("recipes.yaml")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default=GROOVE, choices=RECIPES["runs"])
    parser.add_argument("--measure", action="store_true", help="the model as it is")
    parser.add_argument("--bands", type=Path, help="bands of others")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("outputs/pretrained"))
    parser.add_argument("--settings", nargs="*", default=[], help="further settings of train.py")
    args = parser.parse_args()
    if args.model == GROOVE and not args.bands:
        parser.error(f"{GROOVE} is measured on bands of others, too: give --bands FOLDER")
    if not args.measure:
        model = load(trained(args.model, args.out, args.settings))
        model.save_pretrained(PRETRAINED / args.model, dtype="float16")
    if args.model == GROOVE:
        store(list(rows(args)))


def trained(name: str, out: Path, more: Sequence[str] = ()) -> Path:
    """Train a model in the steps of its recipe, or resume; return the folder of the model."""
    folders = [Path()]
    for i, settings in enumerate(RECIPES["runs"][name]):
        folder = out / f"{name}-{i}"
        train(folder, *settings.replace("RUN", str(folders[-1])).split(), *more)
        if i in (averages := RECIPES["averages"].get(name, {})):
            number, share = averages[i]
            model = load(folder)
            average(load(folders[number + 1]), model, share)
            folder = out / f"{name}-{i}-average"
            model.save_pretrained(folder)
        folders.append(folder)
    if factor := RECIPES["key_factors"].get(name):
        model = load(folders[-1])
        model.model.inputs["key"].weight.data *= factor
        folders.append(out / f"{name}-key")
        model.save_pretrained(folders[-1])
    return folders[-1]


def load(run: Path) -> MusicModel:
    """Load a run's best model."""
    return musicgen.load(find_checkpoint(str(run), setting="init"))


def average(before: MusicModel, model: MusicModel, share: float) -> None:
    """Mix weights, by the names of tokens, into a model, which keeps this share of its own."""
    own = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    weights = {f"model.{name}": tensor for name, tensor in before.model.state_dict().items()}
    checkpoint = {"state_dict": weights, CONTENT_KEY: before.content.to_plain()}
    load_initial(checkpoint, model.content, model.model)  # new tokens keep their weights
    others = model.model.state_dict()
    model.model.load_state_dict({name: others[name].lerp(own[name], share) for name in own})


def train(folder: Path, *settings: str) -> None:
    """Train a model, or resume its run."""
    arguments = [*settings, f"hydra.run.dir={folder}"]
    if (folder / "checkpoints" / "last.ckpt").is_file():
        arguments = [f"resume={folder}"]
    run("train.py", *arguments)


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield each measure of groove-small's continuations."""
    composed = args.out / f"prompts-groove-{args.prompts}"
    compose_corpus(composed, kind="groove", num_pieces=args.prompts, seed=HELD_OUT_SEED)
    model = with_drummers(args.out)
    for kind, source in {"composed": composed, "bands": args.bands}.items():
        new = args.out / f"{GROOVE}-{kind}-{time.time_ns()}"
        settings = [f"prompt={source}", f"num_prompts={args.prompts}", "bars=16", "report=false"]
        run("generate.py", f"checkpoint={model}", *settings, f"out={new}")
        measured = Path(f"{new}-measured")
        metrics = "metrics=[descriptors,style,originality]"
        run("evaluate.py", metrics, f"generated={new}", f"out={measured}")
        for row in [*measures(measured), *training_matches(measured)]:
            yield {"prompts": kind, **row}
        for limits in (False, True):
            yield {"prompts": kind, **longer_notes(source, args.prompts, limits=limits)}


def with_drummers(out: Path) -> Path:
    """Return a copy of the model with the folder of its drummers, by which its data is found."""
    folder = out / GROOVE
    shutil.copytree(PRETRAINED / GROOVE, folder, dirs_exist_ok=True)
    content = json.loads((folder / CONFIG).read_text())
    content["config"]["data"]["drummers"] = DRUMMERS
    write_json(folder / CONFIG, content)
    return folder


def longer_notes(source: Path, number: int, *, limits: bool) -> dict[str, Any]:
    """Count the notes longer than the longest of their track in the prompt, per 1,000 of a piece.

    Tracks without a note in the prompt do not count.
    """
    files = evenly_spaced(find_music(source), number)
    options = {"prompt_bars": 4, "bars": 16, "limit_durations": limits}
    pieces = musicgen.load(GROOVE).generate(files, **options)

    def per_1000(prompt: Score, music: Score) -> float:
        longer = [
            own.notes["duration"] > track.notes["duration"].max()
            for track, own in zip(prompt.tracks, music.tracks, strict=True)
            if len(track.notes)
        ]
        return 1000 * float(np.concatenate(longer).mean())

    values = [per_1000(piece.prompt.score, piece.new_on_grid) for piece in pieces]
    originals = []
    for prompt in (piece.prompt for piece in pieces):
        end = prompt.end.tick + 16 * prompt.end.tick // 4
        originals.append(per_1000(prompt.score, prompt.piece.clip(prompt.end.tick, end)))
    name = f"longer notes per 1,000, limit_durations={str(limits).lower()}"
    return as_row(name, values, str(np.nanmean(originals)))


def measures(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the mean of each measure of `evaluate.py`, with its interval over continuations."""
    pieces = read_csv(folder / "descriptors_pieces.csv")
    for row in (each for each in read_csv(folder / "descriptors.csv") if each["n"]):
        name = row["descriptor"]  # one of all pieces together has no value of each
        values = [number(piece.get(name, row["generated"])) for piece in pieces]
        line = as_row(name, values, row["originals"])
        yield line | {"overlap": number(row["similarity"])}
    means = {(row["profile"], row["part"]): row for row in read_csv(folder / "style.csv")}
    for profile in (each for each in PROFILES if (each, "all") in means):
        line = interval_row(SIMILARITIES[profile], means[profile, "all"])
        yield line | {"originals": number(means[profile, SAME_PIECE]["mean"])}


def training_matches(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the notes of the longest matches with the training set."""
    means = {row["pieces"]: row for row in read_csv(folder / "originality.csv")}
    line = interval_row("longest match with the training set, mean", means["generated"])
    yield line | {"originals": number(means["held-out"]["mean"])}
    values: dict[str, list[float]] = {kind: [] for kind in means}
    for row in read_csv(folder / "originality_pieces.csv"):
        values[row["pieces"]].append(number(row["value"]))
    new, old = max(values["generated"]), max(values["held-out"])
    name = "longest match with the training set, max"
    yield {"measure": name, "generated": new, "originals": old}


def interval_row(name: str, row: dict[str, str]) -> dict[str, Any]:
    """Return the mean of generated pieces with its interval from a row of `evaluate.py`."""
    figures = {"generated": number(row["mean"]), "low": number(row["low"])}
    return {"measure": name, "n": int(row["n"]), **figures, "high": number(row["high"])}


def as_row(name: str, values: list[float], originals: str) -> dict[str, Any]:
    found = Summary.of(values)
    interval = {"low": found.low, "high": found.high}
    figures = {"generated": found.mean, **interval, "originals": number(originals)}
    return {"measure": name, "n": found.n, **figures}


def number(text: str) -> float:
    return float(text or "nan")


def store(rows: list[dict[str, Any]]) -> None:
    measure.write_results(__file__, {"rows": rows})


def run(*arguments: object) -> None:
    subprocess.run([sys.executable, *map(str, arguments)], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
