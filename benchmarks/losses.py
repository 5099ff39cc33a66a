"""Measure the loss of models: python -m benchmarks.losses MODEL ... --run RUN [--pop909 POP909]

In nats a note: of the first 2,048 tokens of each validation piece of a run, by corpus, with all
tokens, those of keys and of counts of bars included; and of 24 songs of POP909 drawn at random. A
row is named after its model's folder. Rows of other models stay, as their weights are not kept; of
those before `songs-small` some are of other pieces (`n`), and those of bands and drummers of every
fourth one, without the tokens of keys.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

import musicgen
from benchmarks import measure, tunes
from musicgen.errors import UserError
from musicgen.evaluation.position_loss import position_losses
from musicgen.evaluation.runs import open_training_data
from musicgen.files import read_json
from musicgen.generation.model import MusicModel
from musicgen.midi import Score
from musicgen.random import NoiseKey
from musicgen.tokenization.vocabulary import IntArray

LENGTH, NUM_POP = 2048, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--pop909", type=Path)
    args = parser.parse_args()
    path = measure.RESULTS / "losses.json"
    rows = read_json(path)["rows"] if path.is_file() else []
    for name in args.models:
        model, pieces = musicgen.load(name), defaultdict[str, list[tuple[float, int]]](list)
        for corpus, tokens in validation_pieces(args.run):
            pieces[corpus].append(found := loss(model, tokens))
            pieces["all"].append(found)
        for score in () if args.pop909 is None else pop_songs(args.pop909):
            pieces["POP909"].append(loss(model, model.tokenizer.encode(score)))
        rows = [row for row in rows if row["model"] != Path(name).name]
        for corpus, found in pieces.items():
            nats, notes = np.sum(found, axis=0)
            row = {"model": Path(name).name, "pieces": corpus, "n": len(found)}
            rows.append(row | {"nats a note": round(float(nats / notes), 4)})
            print(rows[-1], flush=True)
    measure.write_results(__file__, {"rows": rows})


def validation_pieces(run: Path) -> Iterator[tuple[str, IntArray]]:
    """Yield the corpus and the tokens of each validation piece of a run, without repeated ones."""
    data = open_training_data(musicgen.load(run))
    for i in data.split("val"):
        corpus = data.cache.names[i].split("/")[0]
        if not corpus[-1].isdigit():  # the name of a repetition has its number
            yield corpus, np.asarray(data.cache[i], np.int64)


def pop_songs(folder: Path) -> Iterable[Score]:
    readers, songs = tunes.readers("pop", folder), list[Score]()
    for i in np.random.default_rng(0).permutation(len(readers)):
        try:
            songs.append(readers[i]())
        except UserError:  # it is damaged
            continue
        if len(songs) == NUM_POP:
            break
    return songs


def loss(model: MusicModel, tokens: IntArray) -> tuple[float, int]:
    """Return the nats of the first tokens of a piece, and their number of notes."""
    ids = tokens[: LENGTH + 1]
    nats = position_losses(model.model, ids, NoiseKey((0,)), positions=model.positions(ids))
    return float(nats.mean(axis=0).sum()), model.tokenizer.num_notes(ids[1:])


if __name__ == "__main__":
    main()
