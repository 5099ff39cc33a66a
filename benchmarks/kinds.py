"""Continue pieces of several kinds of music, and measure the new bars and those of the originals.

    python -m benchmarks.kinds KIND=FOLDER … --before CHECKOUT

A KIND is a folder of MIDI files and scores, or `drummers` (the Groove MIDI Dataset's test set),
`raw` (POP909, of which the beats are found), `aligned` (POP909 on its annotated beats) or `lieder`
(the folder of a training run on data=songbook, whose held-out songs are taken). Pieces that are
long enough are drawn at random into --out/KIND/prompts. generate.py continues each with its default
settings after its first bars, --samples times, none of them chosen: drummers and bands with
groove-small, all others with songs-small. With --before, the generate.py of another checkout
continues the same files, and this code measures them, too, on the beats of the files.

Notes are measured on twelfths of a quarter. The value of a piece is the mean over its samples:

- notes a bar; the share of pitched notes in the key of the prompt's notes;
- rhythm: the onset-duration similarity to the prompt, of drummers the onset-drum similarity;
- repeated and copied bars: as in `metrics.repeated_bars`, of bars of the prompt, too;
- velocities: how many a track has; off the grid: the share of onsets that are more than a hundredth
  of a quarter away from its eighths and twelfths, as they are in the file.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import musicgen
from benchmarks import measure
from musicgen.errors import UserError
from musicgen.evaluation.runs import open_training_data, piece_readers
from musicgen.files import read_csv, read_json, write_bytes
from musicgen.generation.source import on_beats
from musicgen.metrics.intervals import mean_of_valid
from musicgen.metrics.repeated_bars import (
    bar_notes,
    bar_similarities,
    copied_and_varied_shares,
    repeated_bar_share,
)
from musicgen.metrics.style import style_similarity
from musicgen.midi import Score, dumps, find_music, loads, pitched_notes, without_suffix
from musicgen.midi.io import read_with_data
from musicgen.midi.key import find_key, in_key_share
from musicgen.run_folders import MANIFEST

OF_BANDS = ("drummers", "bands")
MEASURES = (
    *("notes a bar", "in key", "rhythm", "repeated bars", "copied bars"),
    *("velocities", "off the grid"),
)
PER_QUARTER = 12
GRID, NEAR = (8, 12), 0.01  # divisions of a quarter, and a distance in quarters
SIDES = ("generated", "originals")
Reader = Callable[[], bytes]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="+", help="KIND=FOLDER", metavar="KIND=FOLDER")
    parser.add_argument("--prompts", type=int, default=8, help="of each kind")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--prompt-bars", type=int, default=8)
    parser.add_argument("--bars", type=int, default=16, help="that are added")
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit")
    parser.add_argument("--out", type=Path, default=Path("outputs/kinds"))
    args = parser.parse_args()
    path = measure.RESULTS / "kinds.json"
    content = read_json(path) if path.is_file() else {}
    found = content.setdefault("kinds", {})
    if args.before:
        command = ["git", "-C", str(args.before), "rev-parse", "--short=8", "HEAD"]
        commit = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        content["before is commit"] = commit.strip()
    for each in args.kinds:
        kind, _, folder = each.partition("=")
        prompts = write_prompts(kind, Path(folder), args)
        found[kind] = {"prompts": len(prompts), "now": measured(kind, measure.ROOT, args)}
        if args.before:
            found[kind]["before"] = measured(kind, args.before, args)
        print(kind, found[kind], flush=True)
        results = {name: content[name] for name in ("before is commit", "kinds") if name in content}
        measure.write_results(__file__, results)


def readers(kind: str, folder: Path) -> dict[str, Reader]:
    """Return functions that read the pieces of a kind as MIDI files, by name."""
    if kind == "lieder":
        data = open_training_data(musicgen.load(folder))
        scores = piece_readers(data, data.split("val"))
        named = {name: read for name, read in scores.items() if "/scores/" in name}
        return {name: partial(written, read) for name, read in named.items()}
    if kind in ("raw", "aligned"):
        corpus = measure.corpus("pop909", folder)
        pieces = corpus.pieces()
        if kind == "raw":
            return {x.name: (x.path / f"{x.name}.mid").read_bytes for x in pieces}
        return {x.name: partial(written, partial(corpus.read_piece, x)) for x in pieces}
    if kind == "drummers":  # groove-small was trained on the training set
        rows = [row for row in read_csv(folder / "info.csv") if row["split"] == "test"]
        names = [row["midi_filename"] for row in rows if row["beat_type"] == "beat"]
    else:
        names = [path.relative_to(folder).as_posix() for path in find_music(folder)]
    return {name: partial(file_of, folder / name) for name in names}


def written(read: Callable[[], Score]) -> bytes:
    return dumps(read())


def file_of(path: Path) -> bytes:
    return read_with_data(path)[1]


def write_prompts(kind: str, folder: Path, args: argparse.Namespace) -> list[Path]:
    """Return the files of a kind that are continued; draw and write them if there are none."""
    prompts = args.out / kind / "prompts"
    if not prompts.is_dir():
        named = readers(kind, folder)
        names = np.random.default_rng(0).permutation(sorted(named)).tolist()
        count = 0
        for name in names:
            try:
                data = named[name]()
                score = on_beats(loads(data), None, "auto")[0]
            except UserError:  # songs of POP909 in other time signatures than theirs
                continue
            if (score.bar_starts() > score.start).sum() >= args.prompt_bars + args.bars:
                stem = without_suffix(name).replace("/", "_")[-60:]
                write_bytes(prompts / f"{count:02} {stem}.mid", data)
                count += 1
            if count == args.prompts:
                break
    return find_music(prompts)


def measured(kind: str, checkout: Path, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the mean values of the continuations by a checkout, and of the originals."""
    is_now = checkout == measure.ROOT
    prompts, out = args.out / kind / "prompts", args.out / kind / ("now" if is_now else "before")
    if not (out / MANIFEST).is_file():
        settings = {
            "prompt": prompts,
            "checkpoint": "groove-small" if kind in OF_BANDS else "songs-small",
            "prompt_bars": args.prompt_bars,
            "bars": args.bars,
            "num_samples": args.samples,
            "originality": "false",
            "out": out,
        }
        command = [sys.executable, str(checkout / "generate.py")]
        command += [f"{name}={value}" for name, value in settings.items()]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(checkout)})
    by_prompt: dict[str, list[dict[str, dict[str, float]]]] = {}
    for entry in read_json(out / MANIFEST)["pieces"]:
        original = on_beats(
            *read_with_data(prompts / entry["prompt"]), "auto" if is_now else "file"
        )[0]
        new = read_with_data(out / entry["file"])[0]
        values = compared(original, new, entry["prompt end"], args.bars)
        by_prompt.setdefault(entry["prompt"], []).append(values)
    return {side: means([*by_prompt.values()], side) for side in SIDES}


def compared(original: Score, new: Score, begin: int, bars: int) -> dict[str, dict[str, float]]:
    """Return the values of the bars that follow a prompt, by side.

    Args:
        original: the piece, with the ticks of the new file.
        new: the prompt and its continuation.
        begin: tick at which the prompt ends.
        bars: how many follow.
    """
    assert original.ticks_per_beat == new.ticks_per_beat
    shown, lines = original.clip(0, begin), original.bar_starts()
    lines = np.append(lines[lines >= begin], original.end + 1)
    own = original.clip(begin, int(lines[min(bars, len(lines) - 1)]))
    music = new.clip(begin, new.end + 1), own
    num_shown = int((original.bar_starts() < begin).sum())
    return {
        side: dict(values(shown, each, num_shown, bars))
        for side, each in zip(SIDES, music, strict=True)
    }


def values(shown: Score, music: Score, num_shown: int, bars: int) -> Iterator[tuple[str, float]]:
    """Yield the values of some bars, by name, see the top of this file.

    Args:
        shown: the prompt, of `num_shown` bars.
        music: the bars behind it, of which there are `bars`.
    """
    yield "notes a bar", music.num_notes / bars
    velocities = [len(set(track.notes["velocity"].tolist())) for track in music.tracks]
    yield "velocities", mean_of_valid(np.array([float(count) for count in velocities if count]))
    onsets = music.notes["onset"] / music.ticks_per_beat
    distances = [abs(onsets - np.rint(onsets * division) / division) for division in GRID]
    yield "off the grid", mean_of_valid((np.min(distances, axis=0) > NEAR).astype(float))
    shown, music = quantised(shown), quantised(music)
    yield "in key", in_key_share(music, find_key(pitched_notes(shown)))
    is_drums = not len(pitched_notes(shown))
    profile = "onset_drum" if is_drums else "onset_duration"
    yield "rhythm", style_similarity(music, shown, profile)
    if is_drums:
        shown, music = with_drums_as_pitches(shown), with_drums_as_pitches(music)
    events = np.concatenate([bar_notes(shown), bar_notes(music) + np.array([num_shown, 0, 0, 0])])
    yield "repeated bars", repeated_bar_share(bar_similarities(events[:, :3]), num_shown)
    yield "copied bars", copied_and_varied_shares(events, num_shown)[0]


def quantised(score: Score) -> Score:
    """Return a score whose notes begin and end on twelfths of a quarter."""

    def moved(ticks: np.ndarray) -> np.ndarray:
        return np.rint(ticks * PER_QUARTER / score.ticks_per_beat).astype(np.int64)

    return replace(score.moved(moved), ticks_per_beat=PER_QUARTER)


def with_drums_as_pitches(score: Score) -> Score:
    return replace(score, tracks=[replace(track, is_drum=False) for track in score.tracks])


def means(pieces: list[list[dict[str, dict[str, float]]]], side: str) -> dict[str, float]:
    """Return the means over pieces of the means over their samples, by measure."""
    found = {}
    for name in MEASURES:
        of_pieces = [[sample[side][name] for sample in samples] for samples in pieces]
        found[name] = mean_of_valid(np.array([mean_of_valid(np.array(x)) for x in of_pieces]))
    return found


if __name__ == "__main__":
    main()
