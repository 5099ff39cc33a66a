"""Measure gaps of four bars with and without what follows them, on music kept back.

    python -m benchmarks.gaps --lieder FOLDER --polish FOLDER [--quartets FOLDER] [--model MODEL]
    python -m benchmarks.gaps --model bach-chorales

Songs and piano pieces by composers who are not in the training set, the string quartets of a folder
that has only such composers, or with bach-chorales gaps of two bars after four in held-out
chorales, with four bars behind.

- `nats a note` of the original gap, bar lines and chords included: after its eight bars of past
  alone, with the eight bars that follow first, and with those of another piece.
- `next bar`: nats a note of the original bar after the gap, read without a future, after the
  original gap, and after the gap that the model wrote.
- Music compared with the original bars, as by MIDI-RWKV (Zhou-Zheng & Pasquier 2025): content
  preservation is the cosine of pitch classes by half notes (Lu & Su 2018), groove similarity the
  share of sixteenths in which both have onsets or neither has (Wu & Yang 2020), entropy difference
  that of pitch-class histograms, in bits.
- `bars copied from the future`: bars with the onsets and pitches of one of the eight bars behind.
- `tokens a second` of a filled gap, of which one of eight candidates counts, as a multiple of
  those of a continuation by as many bars; of the first four gaps, one after the other.

Intervals are over pieces. The rows of other models stay in the result; those of `songs-small
before` were measured with the weights and the code that drew the best of eight candidates.
"""

import argparse
import json
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from omegaconf import OmegaConf
from torch.nn import functional as F

import musicgen
from benchmarks import measure
from benchmarks.songs import key_of
from musicgen.data.corpora import BachChorales
from musicgen.data.corpora.base import evenly_spaced
from musicgen.files import write_bytes
from musicgen.generation.model import MusicModel
from musicgen.metrics.intervals import Summary, mean_of_valid
from musicgen.metrics.repeated_bars import bar_notes
from musicgen.midi import Score, pitched_notes, read
from musicgen.midi.key import in_key_share
from musicgen.package_data import CONF
from musicgen.tokenization import Chorale
from musicgen.tokenization.chord_recognition import with_chords
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.vocabulary import IntArray

APART, MOST = 24, 2  # bars from gap to gap of a piece, and gaps of a piece
CHORALES = "chorales"
Row = dict[str, Any]


class Sizes(NamedTuple):
    """How many bars there are before a gap, in it, and behind it."""

    past: int = 8
    gap: int = 4
    future: int = 8


@dataclass(frozen=True)
class Place:
    """A gap in a piece: the piece's number, its music, its ids without EOS, and the first bar."""

    piece: int
    score: Score
    tokens: IntArray
    bar: int
    sizes: Sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lieder", type=Path, help="folder of OpenScore Lieder")
    parser.add_argument("--polish", type=Path, help="of humdrum-polish-scores")
    parser.add_argument("--model", default="songs-small", help="of the package, or a run")
    parser.add_argument("--quartets", type=Path, help="folder of quartets by composers held out")
    parser.add_argument("--pieces", type=int, default=20, help="of each kind")
    parser.add_argument("--out", type=Path, default=Path("outputs/gaps"))
    args = parser.parse_args()
    model, name = musicgen.load(args.model), Path(args.model).name
    path = measure.RESULTS / "gaps.json"
    stored = json.loads(path.read_text())["rows"] if path.is_file() else []
    rows: list[Row] = [row for row in stored if row["model"] != name]
    for kind, scores in pieces(args).items():
        sizes = Sizes(4, 2, 4) if kind == CHORALES else Sizes()
        found = [*places(model, scores, sizes)]
        print(f"{kind}: {len(found)} gaps in {len({place.piece for place in found})} pieces")
        filled = written(model, found, args.out / f"{name} {kind}.pickle")
        new = [*losses(model, found), *measures(model, found, filled), speed(model, found[:4])]
        rows += [{"model": name, "music": kind} | row for row in new]
    measure.write_results(__file__, {"rows": rows})


def pieces(args: argparse.Namespace) -> dict[str, list[Score]]:
    """Return the pieces by kind: those that no model is trained on."""
    if args.model == "bach-chorales":
        chorales = BachChorales()
        held_out = [piece for piece in chorales.pieces() if piece.split in ("val", "test")]
        some = evenly_spaced(held_out, args.pieces)
        return {CHORALES: [chorales.read_piece(piece) for piece in some]}
    found: dict[str, list[Score]] = {}
    for name, folder in ("openscore_lieder", args.lieder), ("polish_piano", args.polish):
        found[name] = [*held_out_pieces(name, folder, args.pieces).values()]
    if args.quartets:
        paths = evenly_spaced(sorted(args.quartets.rglob("*.mxl")), args.pieces)
        found["string quartets"] = [read(path) for path in paths]
    return found


def held_out_pieces(name: str, folder: Path, number: int) -> dict[str, Score]:
    """Return evenly spaced pieces of a corpus by the composers held out, by their names."""
    settings = OmegaConf.load(CONF / "experiment/pretrained/songs_small.yaml")
    corpus = measure.corpus(name, folder)
    groups = settings.data.corpora[name].val_groups
    by_others = [piece for piece in corpus.pieces() if piece.group in groups]
    return {piece.name: corpus.read_piece(piece) for piece in evenly_spaced(by_others, number)}


def places(model: MusicModel, scores: Sequence[Score], sizes: Sizes) -> Iterator[Place]:
    """Yield the gaps of pieces whose bars are those of the tokens. Notes begin in each gap."""
    past, gap, future = sizes
    for number, score in enumerate(scores):
        tokens = encoded(model, score)
        whole = Place(number, score, tokens, 0, sizes)
        num_bars = len(bar_lines(model, whole)) - 1
        same = num_bars == len(score.bar_starts())  # else bars of the file were divided
        for bar in range(past, num_bars - gap - future, APART)[:MOST] if same else ():
            place = replace(whole, bar=bar)
            both = section(model, place, 0, gap), section(model, place, gap, 1)
            if all(map(model.tokenizer.num_notes, both)):
                yield place


def bar_lines(model: MusicModel, place: Place) -> IntArray:
    """Return the index of the first token of each bar, and of the end. [num_bars + 1]"""
    tokenizer, tokens = model.tokenizer, place.tokens
    starts = tokenizer.crops.starts(tokens, bar_length=tokenizer.bar_length(place.score))[:, 0]
    return np.append(starts + isinstance(tokenizer, Chorale), len(tokens))  # there, behind BOS


def section(model: MusicModel, place: Place, first: int, bars: int) -> IntArray:
    """Return the ids of some bars, counted from the gap."""
    lines = bar_lines(model, place)
    return place.tokens[lines[place.bar + first] : lines[place.bar + first + bars]]


def past_of(model: MusicModel, place: Place) -> IntArray:
    """Return the ids of the bars before the gap, with the values in force in the first one."""
    crops, bar_length = model.tokenizer.crops, model.tokenizer.bar_length(place.score)
    before = place.tokens[: bar_lines(model, place)[place.bar]]
    starts = crops.starts(before, bar_length=bar_length)[place.bar - place.sizes.past :]
    return crops.crop(before, starts, len(before))


def future_of(model: MusicModel, place: Place) -> IntArray:
    tokenizer: Any = model.tokenizer
    if isinstance(tokenizer, Chorale):
        bars = section(model, place, place.sizes.gap, place.sizes.future)
        future, now = tokenizer.families["Gap"]
        return np.concatenate([[future], bars, [now]])
    return np.asarray(tokenizer.future(place.tokens, place.bar + place.sizes.gap, None))


def nats(model: MusicModel, before: IntArray, of: IntArray, end: int | None = None) -> float:
    """Return the nats a note of ids that follow others.

    Args:
        end: grid step at which a future begins.
    """
    ids = np.concatenate([before, of])
    names = model.model.coordinate_names
    positions = Coordinates(model.tokenizer).of(ids, names, gap_end=end)
    with torch.inference_mode():
        logits = model.model(
            torch.from_numpy(ids)[None, :-1], positions=torch.from_numpy(positions)[None, :-1]
        )[0, len(before) - 1 :]
    each = F.cross_entropy(logits.float(), torch.from_numpy(of), reduction="sum")
    return float(each) / model.tokenizer.num_notes(of)


def losses(model: MusicModel, found: Sequence[Place]) -> Iterator[Row]:
    """Yield the nats a note of the original gaps by what the model reads."""
    values: dict[str, list[float]] = {"past alone": [], "its future": [], "another's future": []}
    for number, place in enumerate(found):
        past, gap = past_of(model, place), section(model, place, 0, place.sizes.gap)
        order = [*found[number + 1 :], *found[:number]]
        other = next(x for x in order if x.piece != place.piece)
        end = int(model.tokenizer.times(np.concatenate([past, gap, gap[:1]]))[-1])
        for way, ids in (
            ("past alone", past),
            ("its future", np.concatenate([future_of(model, place), past])),
            ("another's future", np.concatenate([future_of(model, other), past])),
        ):
            values[way].append(nats(model, ids, gap, end))
    for way, each in values.items():
        yield row(found, f"nats a note of the gap, {way}", each)


def written(model: MusicModel, found: Sequence[Place], path: Path) -> list[Score]:
    """Return the pieces with their gaps as the model fills them, from a file if it is there."""
    if not path.is_file():
        done: list[Score] = []
        for number, place in enumerate(found):
            bars = f"{place.bar + 1}-{place.bar + place.sizes.gap}"
            (piece,) = model.generate(place.score, rewrite=bars, seed=number)
            done.append(piece.midi_file().score)
        write_bytes(path, pickle.dumps(done))
    filled: list[Score] = pickle.loads(path.read_bytes())
    return filled


def measures(model: MusicModel, found: Sequence[Place], filled: Sequence[Score]) -> Iterator[Row]:
    """Yield what filled gaps are like, and the originals."""
    next_bars: dict[str, list[float]] = {"original": [], "filled": []}
    values: dict[str, list[float]] = {}
    copies: dict[str, list[float]] = {"original": [], "filled": []}
    in_key: dict[str, list[float]] = {"original": [], "filled": []}
    density: list[float] = []
    for place, score in zip(found, filled, strict=True):
        new, (_, num_bars, num_behind) = encoded(model, score), place.sizes
        for way, tokens in (("original", place.tokens), ("filled", new)):
            gap = section(model, replace(place, tokens=tokens), 0, num_bars)
            before = np.concatenate([past_of(model, place), gap])
            next_bars[way].append(nats(model, before, section(model, place, num_bars, 1)))
        starts = np.append(place.score.bar_starts(), place.score.end)
        a, b, c = (int(starts[place.bar + x]) for x in (0, num_bars, num_bars + num_behind))
        sides = {"original": place.score, "filled": score}
        own, music = place.score.clip(a, b), score.clip(a, b)
        for name, value in compared(own, music).items():
            values.setdefault(name, []).append(value)
        for way, each in sides.items():
            copies[way].append(copied(each.clip(a, c), num_bars))
            in_key[way].append(in_key_share(each.clip(a, b), key_of(place.score)))
        density.append(music.num_notes / max(1, own.num_notes))
    for way, nats_of_bars in next_bars.items():
        yield row(found, f"nats a note of the next bar, {way}", nats_of_bars)
    for name, shares in values.items():
        yield row(found, name, shares)
    for way in copies:
        yield row(found, f"bars copied from the future, {way}", copies[way])
        yield row(found, f"notes in key, {way}", in_key[way])
    yield row(found, "notes, as a multiple of the original's", density)


def speed(model: MusicModel, found: Sequence[Place]) -> Row:
    """Return the tokens a second of filled gaps, as a multiple of those of continuations."""
    ratios = []
    for place in found:
        size, rates = place.sizes.gap, []
        gap = {"rewrite": f"{place.bar + 1}-{place.bar + size}"}
        for options in gap, {"prompt_bars": place.bar, "bars": size}:
            start = time.perf_counter()
            (piece,) = model.generate(place.score, **options)
            rates.append(piece.num_new_tokens / (time.perf_counter() - start))
        ratios.append(rates[0] / rates[1])
    return row(found, "tokens a second, as a multiple of a continuation's", ratios)


def encoded(model: MusicModel, score: Score) -> IntArray:
    """Return the ids of a piece as in training, without EOS."""
    rhythm = model.tokenizer.normalise_rhythm(score)
    return model.tokenizer.encode(with_chords(rhythm, model.content.config["loader"]["chords"]))[
        :-1
    ]


def compared(own: Score, music: Score) -> dict[str, float]:
    """Return the measures of MIDI-RWKV of two versions of the same bars."""
    chromas, grooves, entropies = [], [], []
    ticks = max(own.end, music.end, 1)
    half, sixteenth = 2 * own.ticks_per_beat, own.ticks_per_beat / 4
    for score in (own, music):
        notes = pitched_notes(score)
        chroma = np.zeros((ticks // half + 1, 12))
        np.add.at(chroma, (notes["onset"] // half, notes["pitch"] % 12), notes["duration"])
        groove = np.zeros(int(ticks / sixteenth) + 2, bool)
        groove[np.rint(notes["onset"] / sixteenth).astype(int)] = True
        shares = np.bincount(notes["pitch"] % 12, minlength=12) / max(1, len(notes))
        chromas.append(chroma)
        grooves.append(groove)
        entropies.append(-sum(x * np.log2(x) for x in shares if x))
    norms = np.linalg.norm(chromas[0], axis=1) * np.linalg.norm(chromas[1], axis=1)
    cosines = (chromas[0] * chromas[1]).sum(axis=1)[norms > 0] / norms[norms > 0]
    return {
        "content preservation": mean_of_valid(cosines),
        "groove similarity": float((grooves[0] == grooves[1]).mean()),
        "difference of pitch-class entropy, bits": abs(entropies[0] - entropies[1]),
    }


def copied(music: Score, gap: int) -> float:
    """Return the share of the first bars with notes that are note for note one of those behind."""
    events = bar_notes(music)
    bars = [
        frozenset(map(tuple, events[events[:, 0] == bar][:, 1:3].tolist()))
        for bar in range(int(events[:, 0].max(initial=0)) + 1)
    ]
    return mean_of_valid(
        np.array([float(bar in bars[gap:]) if bar else np.nan for bar in bars[:gap]])
    )


def row(found: Sequence[Place], name: str, values: Sequence[float]) -> Row:
    """Return the mean over pieces of a measure of gaps, with its interval."""
    by_piece: dict[int, list[float]] = {}
    for place, value in zip(found, values, strict=True):
        by_piece.setdefault(place.piece, []).append(value)
    summary = Summary.of([mean_of_valid(np.array(each)) for each in by_piece.values()])
    interval = {"generated": summary.mean, "low": summary.low, "high": summary.high}
    return {"measure": name, "n": summary.n, "gaps": len(values), **interval}


if __name__ == "__main__":
    main()
