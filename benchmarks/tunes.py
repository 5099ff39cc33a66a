"""Measure the tunes, cadences and phrases of continuations, and of the pieces that they continue.

    python -m benchmarks.tunes songs=LIEDER piano=POLISH pop=POP909 chorales bands=MMA

A kind is named with its folder: songs of OpenScore Lieder and works of the Polish scores for piano
alone, by the composers held out in conf/experiment/pretrained/songs_small.yaml, POP909 on its
annotated beats, or bands, a folder of MIDI files; the held-out chorales are in a package. Pieces
are drawn at random from those that are long enough, whose leading part plays in the prompt. They
are continued after 8 bars by 16 that end (`ending=close`), chorales after 4 by 8, --samples times,
none of them chosen: chorales with bach-chorales, bands with groove-small, all others with
songs-small.

The measures are those of evaluate.py (`metrics=[melody,cadences]`). The originals' bars are those
after the prompt, but their ends are those of the whole pieces. As continuations end and those bars
mostly do not, `last bars` measures as many bars at the ends of the originals. The value of a piece
is the mean over its samples. `last_note` is the median over pieces. Continuations stay in --out.
"""

import argparse
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

import musicgen
from benchmarks import measure
from musicgen.data.corpora import BachChorales
from musicgen.errors import UserError
from musicgen.evaluation.references import Pair
from musicgen.evaluation.tunes import cadences_of_pair
from musicgen.files import read_json, write_bytes
from musicgen.generation.continuation import Continuation
from musicgen.metrics.cadences import ending
from musicgen.metrics.intervals import mean_of_valid
from musicgen.metrics.melody import leading_part, melody_measures, notes_by_bar
from musicgen.midi import Score, find_music, read
from musicgen.midi.key import final_key
from musicgen.package_data import CONF

CORPORA = {"songs": "openscore_lieder", "piano": "polish_piano"}
MODELS = {"chorales": "bach-chorales", "bands": "groove-small"}
LENGTHS = {"chorales": (4, 8)}  # bars of the prompt and of the continuation
SIDES = ("generated", "originals", "last bars")
Reader = partial[Score]
Values = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", help="KIND=FOLDER", metavar="KIND=FOLDER")
    parser.add_argument("--pieces", type=int, default=16, help="of each kind")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("outputs/tunes"))
    args = parser.parse_args()
    for each in args.kinds:
        kind, _, folder = each.partition("=")
        pieces = continued(args, kind, Path(folder), args.pieces)
        store(kind, pieces, args.samples)


def store(kind: str, pieces: Sequence[Continuation], samples: int) -> None:
    """Measure the continuations of a kind, and add them to the results."""
    values = {"pieces": len(pieces) // samples, **summary(pieces)}
    print(kind, values, flush=True)
    path = measure.RESULTS / "tunes.json"
    found = read_json(path)["kinds"] if path.is_file() else {}
    found[kind] = {"all": values}
    measure.write_results(__file__, {"kinds": found})


def continued(args: argparse.Namespace, kind: str, folder: Path, number: int) -> list[Continuation]:
    """Return --samples continuations of `number` pieces in turn, from --out if they are there."""
    path = args.out / f"{kind} default {number} by {args.samples}.pickle"
    if not path.is_file():
        prompt_bars, bars = LENGTHS.get(kind, (8, 16))
        model = musicgen.load(MODELS.get(kind, "songs-small"))
        done = model.generate(
            [*drawn(readers(kind, folder), prompt_bars, bars, number).values()],
            prompt_bars=prompt_bars,
            bars=bars,
            ending="close",
            num_samples=args.samples,
            performance="none",
            seed=0,
        )
        write_bytes(path, pickle.dumps(done))
    pieces: list[Continuation] = pickle.loads(path.read_bytes())
    return pieces


def readers(kind: str, folder: Path) -> list[Reader]:
    """Return functions that read the pieces of a kind that no model was trained on."""
    if kind == "bands":
        return [partial(read, path) for path in find_music(folder)]
    if kind == "pop":
        pop = measure.corpus("pop909", folder)
        return [partial(pop.read_piece, piece) for piece in pop.pieces()]
    if kind == "chorales":
        chorales = BachChorales()
        held_out = [piece for piece in chorales.pieces() if piece.split in ("val", "test")]
        return [partial(chorales.read_piece, piece) for piece in held_out]
    name = CORPORA[kind]
    alone = {"header": r"^!!!AIN: *1 (piano|forte) *$"} if kind == "piano" else {}
    corpus = measure.corpus(name, folder, **alone)
    recipe = OmegaConf.load(CONF / "experiment/pretrained/songs_small.yaml")
    composers = recipe.data.corpora[name].val_groups
    return [partial(corpus.read_piece, x) for x in corpus.pieces() if x.group in composers]


def drawn(
    all_readers: Sequence[Reader], prompt_bars: int, bars: int, number: int
) -> dict[int, Score]:
    """Return random pieces that are long enough and whose leading part plays in the prompt.

    The keys are the indices of their readers.
    """
    scores: dict[int, Score] = {}
    for i in np.random.default_rng(0).permutation(len(all_readers)).tolist():
        try:
            score = all_readers[i]()
        except UserError:  # songs of POP909 in other time signatures than theirs
            continue
        lines = score.bar_starts()
        lines = lines[np.searchsorted(lines, score.start, side="right") - 1 :]
        if len(lines) >= prompt_bars + bars and (
            len(leading_part(score.clip(0, int(lines[prompt_bars])), score))
        ):
            scores[i] = score
        if len(scores) == number:
            break
    return scores


def summary(pieces: Sequence[Continuation]) -> dict[str, Any]:
    """Return the means of all measures, notes by bar and the last two harmonies, by side."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for piece in pieces:
        for side, values in zip(SIDES, sides(piece), strict=True):
            found[side].append(dict(values) | {"piece": id(piece.prompt)})
    return {side: means(rows) for side, rows in found.items()}


def sides(piece: Continuation) -> Iterator[dict[str, Any]]:
    """Yield the measures of a continuation, of its original and of the original's last bars."""
    prompt = piece.prompt
    pair = Pair(prompt.name, prompt.name, piece.new_on_grid, prompt.piece, prompt.end.tick)
    cadences = cadences_of_pair(pair)
    ends = (pair.continuation, final_key(prompt.score)), (prompt.piece, final_key(prompt.piece))
    parts = (pair.continuation, pair.original_continuation())
    for music, (end, key), of_ends in zip(parts, ends, cadences, strict=True):
        lead = leading_part(music, prompt.piece)
        found: dict[str, Any] = melody_measures(music, prompt.piece) | dict(of_ends)
        found["harmonies"] = " ".join(ending(end, key).harmonies) if key else ""
        found["notes by bar"] = notes_by_bar(music)[: piece.bars]
        found["lead notes by bar"] = notes_by_bar(music, lead)[: piece.bars]
        yield found
    lines = prompt.piece.bar_starts()[: prompt.piece.num_bars]
    last = prompt.piece.clip(int(lines[-piece.bars]), prompt.piece.end)
    yield {**melody_measures(last, prompt.piece), "notes by bar": notes_by_bar(last)}


def means(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over pieces of the means over their samples."""
    found: dict[str, Any] = {}
    pieces = list(dict.fromkeys(row["piece"] for row in rows))
    for name, value in rows[0].items():
        if isinstance(value, float):
            each = np.array(
                [mean_of_valid([x[name] for x in rows if x["piece"] == i]) for i in pieces]
            )
            median = np.median(each[~np.isnan(each)]) if name == "last_note" else None
            found[name] = mean_of_valid(each) if median is None else float(median)
        elif name.endswith("by bar"):
            longest = max(len(row[name]) for row in rows)
            counts = [np.pad(row[name], (0, longest - len(row[name]))) for row in rows]
            found[name] = np.mean(counts, axis=0).round(2).tolist()
        elif name == "harmonies":
            found["last harmonies"] = dict(Counter(row[name] for row in rows).most_common(8))
    return found


if __name__ == "__main__":
    main()
