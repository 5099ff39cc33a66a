"""Measure new pieces in keys that are asked for: python -m benchmarks.keys

Eight major keys and their relative minor ones, --samples pieces of 16 bars each that end
(`ending=close`), by each of `MODELS`. `in its mode` is the share whose notes, without the last bar,
fit the key that was asked for better than its relative one (`find_key`). Pieces of drums alone are
left out. The other measures are those of the endings of evaluate.py (`metrics=cadences`). The
originals are the held-out chorales; the keys are those of their signatures, with modes.
"""

import argparse
from collections.abc import Iterable
from functools import partial
from typing import Any

import musicgen
from benchmarks import measure
from musicgen.data.corpora import BachChorales
from musicgen.metrics.cadences import ending_measures
from musicgen.metrics.intervals import mean_of_valid
from musicgen.midi import Score, pitched_notes
from musicgen.midi.key import Key, find_key, first_signature, in_key_share, key_of, named_key

MODELS = ("songs-small", "bach-chorales", "groove-small")
KEYS = ["C", "Am", "G", "Em", "D", "Bm", "A", "F#m", "F", "Dm", "Bb", "Gm", "Eb", "Cm", "Ab", "Fm"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=3)
    args = parser.parse_args()
    chorales = BachChorales()
    held_out = [chorales.read_piece(x) for x in chorales.pieces() if x.split != "train"]
    add = partial(rows_of, rows := [])
    add("chorales, originals", [(score, key_of(first_signature(score))) for score in held_out])
    for name in MODELS:
        add(name, new_pieces(name, args.samples))
    measure.write_results(__file__, {"rows": rows})


def new_pieces(name: str, samples: int) -> Iterable[tuple[Score, Key]]:
    """Yield new pieces with the keys that were asked for."""
    model = musicgen.load(name)
    for seed, key in enumerate(KEYS):  # with one seed, all bands would have the same instruments
        options = {"bars": 16, "ending": "close", "num_samples": samples, "seed": seed}
        for piece in model.generate(key=key, **options):
            yield piece.score, named_key(key)


def rows_of(rows: list[dict[str, Any]], pieces: str, scores: Iterable[tuple[Score, Key]]) -> None:
    """Add the means over the pieces in major and in minor keys to the rows."""
    measured: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for score, key in scores:
        notes = pitched_notes(score)
        last_bar = score.bar_starts()[-1]
        body = notes[notes["onset"] < last_bar]
        if not len(body):  # drums alone
            continue
        of_piece = {
            "mode": float(find_key(body, key.fifths) == key),
            "in_scale": in_key_share(score.clip(0, last_bar), key),
        }
        measured[key.major].append(of_piece | ending_measures(score, key))
    for major, found in measured.items():
        row: dict[str, Any] = {"pieces": pieces, "mode": "major" if major else "minor"}
        means = {name: mean_of_valid([x[name] for x in found]) for name in found[0]}
        rows.append(row | {"n": len(found), "in its mode": means.pop("mode"), **means})
        print(rows[-1])


if __name__ == "__main__":
    main()
