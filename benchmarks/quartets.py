"""Measure a model of string quartets on quartets by composers who are not in its training set.

    python -m benchmarks.quartets --run RUN [--model strings-small]

RUN is the training on data=openscore_quartets; it says where the quartets are and which are held
out. The model continues the first 8 bars of up to --pieces of them by 16, --samples times, none of
them chosen. The originals are their next 16 bars. The value of a piece is the mean over its
samples, intervals are over pieces.

- Of each part: notes a bar; the share of pieces in which it has .7 to 1.4 of the original's notes,
  and in which it is silent though the original is not; the share of notes outside its range.
- `crossings`: the share of sixteenths in which a part sounds above the part over it.
- `clash`: as in benchmarks/songs.py. `in key`: of the key that the prompt's notes have.
- `doubled`: the share of bars in which two parts have the same onsets and pitch classes.
- `leading`: the share of bars in which each part has the most onsets, the higher of equal ones, and
  for how many bars in a row the same part does.
- The longest match with the training set, in notes.

Continuations stay in --out.
"""

import argparse
import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import musicgen
from benchmarks import measure
from benchmarks.songs import as_row, clash_share, matches
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.preparation import EncodedCorpus
from musicgen.evaluation.runs import open_training_data, piece_readers
from musicgen.files import write_bytes
from musicgen.generation.continuation import Continuation
from musicgen.metrics.intervals import mean_of_valid
from musicgen.metrics.repeated_bars import bar_notes, copied_and_varied_shares
from musicgen.midi import NoteArray, Score, Track, pitched_notes
from musicgen.midi.key import final_key, in_key_share

PROMPT_BARS, BARS = 8, 16
WITHIN = (0.7, 1.4)  # of the original's notes
Values = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--model", default="strings-small")
    parser.add_argument("--pieces", type=int, default=20)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("outputs/quartets"))
    args = parser.parse_args()
    data = open_training_data(musicgen.load(args.run))
    pieces = continued(args, data)
    rows = [*summaries(pieces, args.samples), *matches(data, pieces)]
    for row in rows:
        print(row, flush=True)
    measure.write_results(__file__, {"rows": rows})


def continued(args: argparse.Namespace, data: EncodedCorpus) -> list[Continuation]:
    """Return --samples continuations of each held-out quartet in turn, from --out if there."""
    path = args.out / f"{Path(args.model).name} {args.pieces} by {args.samples}.pickle"
    if not path.is_file():
        readers: Sequence[Callable[[], Score]] = [*piece_readers(data, data.split("val")).values()]
        scores = [read() for read in evenly_spaced(readers, args.pieces)]
        done = musicgen.load(args.model).generate(
            scores, prompt_bars=PROMPT_BARS, bars=BARS, num_samples=args.samples, seed=0
        )
        write_bytes(path, pickle.dumps(done))
    found: list[Continuation] = pickle.loads(path.read_bytes())
    return found


def summaries(pieces: Sequence[Continuation], samples: int) -> Iterator[dict[str, Any]]:
    """Yield each measure's means over pieces, of what was written and of the originals."""
    columns: list[tuple[Values, Values]] = []
    for piece in pieces:
        original = piece.prompt.piece
        lines = original.bar_starts()
        first = int((lines < piece.prompt.end.tick).sum())
        stop = lines[first + BARS] if first + BARS < len(lines) else original.end
        own = original.clip(piece.prompt.end.tick, int(stop))
        new, old = measures(piece, piece.new_on_grid), measures(piece, own)
        columns.append((new | compared(new, old, piece), old))
    for name in columns[0][0]:
        values = [[side.get(name, np.nan) for side in own] for own in zip(*columns, strict=True)]
        by_piece = [np.reshape(side, (-1, samples)) for side in values]
        yield as_row(name, [[*map(mean_of_valid, side)] for side in by_piece])


def measures(piece: Continuation, music: Score) -> Values:
    """Measure what was written, or the original's bars in its place."""
    shown = piece.prompt.score
    first = int((piece.prompt.piece.bar_starts() < piece.prompt.end.tick).sum())
    key = final_key(shown)
    events = np.concatenate([bar_notes(shown), bar_notes(music) + np.array([first, 0, 0, 0])])
    found = {
        "in key": in_key_share(music, key) if key else np.nan,
        "clash": clash_share(pitched_notes(music)),
        "copied bars": copied_and_varied_shares(events, first)[0],
        "crossings": crossing_share(music),
        "doubled": doubled_share(music),
    }
    leaders = leading_parts(music)
    runs = [len([*run]) for _, run in itertools.groupby(leaders)]
    found["bars in a row with the same leading part"] = mean_of_valid(np.array(runs, float))
    parts = piece.prompt.tokenizer.settings()["parts"]
    for i, (track, part) in enumerate(zip(music.tracks, parts, strict=True)):
        found[f"notes a bar, {track.name}"] = len(track.notes) / BARS
        found[f"leading, {track.name}"] = mean_of_valid(np.array(leaders) == i)
        found[f"below its range, {track.name}"] = mean_of_valid(
            track.notes["pitch"] < part["lowest"]
        )
    return found


def compared(new: Values, old: Values, piece: Continuation) -> Values:
    """Return whether each part has about as many notes as the original, or none where it has."""
    found = {}
    for track in piece.prompt.piece.tracks:
        own, original = (x[f"notes a bar, {track.name}"] for x in (new, old))
        if original:
            is_within = WITHIN[0] <= own / original <= WITHIN[1]
            found[f"within .7 to 1.4 of the original's notes, {track.name}"] = float(is_within)
            found[f"silent where the original is not, {track.name}"] = float(own == 0)
    return found


def crossing_share(score: Score) -> float:
    """Return the share of sixteenths with two neighbouring parts in which the lower is higher."""
    step = score.ticks_per_beat // 4
    tops = np.stack([top_pitches(track, step, score.end // step + 1) for track in score.tracks])
    upper, lower = tops[:-1], tops[1:]
    both = (upper >= 0) & (lower >= 0)
    return mean_of_valid((lower > upper)[both])


def top_pitches(track: Track, step: int, number: int) -> NoteArray:
    """Return the highest pitch that sounds at each step, -1 without one. [number]"""
    tops = np.full(number, -1)
    for onset, duration, pitch, _ in track.notes.tolist():
        first, end = round(onset / step), round((onset + duration) / step)
        sounds = slice(first, max(end, first + 1))
        tops[sounds] = np.maximum(tops[sounds], pitch)
    return tops


def bars_of_parts(score: Score) -> Iterator[list[NoteArray]]:
    """Yield the notes of each part that begin in each bar with a note."""
    lines = [*score.bar_starts().tolist(), score.end + 1]
    for begin, end in itertools.pairwise(lines):
        onsets = [track.notes["onset"] for track in score.tracks]
        own = [
            track.notes[(onset >= begin) & (onset < end)]
            for track, onset in zip(score.tracks, onsets, strict=True)
        ]
        if any(map(len, own)):
            yield own


def doubled_share(score: Score) -> float:
    """Return the share of bars in which two parts with three notes or more have the same tune."""
    doubled = []
    for parts in bars_of_parts(score):
        tunes = [
            {(note["onset"], note["pitch"] % 12) for note in notes}
            for notes in parts
            if len(notes) >= 3
        ]
        doubled.append(any(a == b for a, b in itertools.combinations(tunes, 2)))
    return mean_of_valid(np.array(doubled))


def leading_parts(score: Score) -> list[int]:
    """Return the part with the most onsets in each bar with a note, the higher of equal ones."""
    return [
        int(np.argmax([len(np.unique(notes["onset"])) for notes in parts]))
        for parts in bars_of_parts(score)
    ]


if __name__ == "__main__":
    main()
