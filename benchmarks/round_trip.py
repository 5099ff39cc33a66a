"""Check that a corpus survives encoding and decoding exactly, on the grid.

Each file's decoded tokens are compared with its notes, quantised by the plain loops below (which
share no code with the tokenizers), and encoded again. Differences are listed.

    python -m benchmarks.round_trip --corpus pop909 --root DIR
    python -m benchmarks.round_trip --corpus midi_folder --root DIR --tokenizer groove2groove
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from fractions import Fraction
from math import floor
from pathlib import Path

import numpy as np

from benchmarks import measure
from musicgen.data.corpora import Corpus
from musicgen.errors import UserError
from musicgen.midi import Score
from musicgen.tokenization import REMI, Groove2Groove
from musicgen.tokenization.groove2groove.instruments import find_instrument

Note = tuple[str, int, int, int, int]
"""Track, pitch, onset in ticks of 1/480 beat, duration, velocity."""


def nearest(value: int, steps: int, ticks: int) -> int:
    """Round a time in ticks to the nearest grid step, halves upwards."""
    return floor(Fraction(value * steps, ticks) + Fraction(1, 2))


def one_at_a_time(notes: dict[tuple[str, int, int], list[tuple[int, int]]]) -> set[Note]:
    """Merge the notes of one onset, and end each note at the next of its pitch."""
    voices = defaultdict(list)
    for (track, pitch, onset), both in notes.items():
        duration, velocity = (max(values) for values in zip(*both, strict=True))
        voices[track, pitch].append((onset, duration, velocity))
    result = set()
    for (track, pitch), rows in voices.items():
        rows.sort()
        ends = [onset for onset, _, _ in rows[1:]] + [10**12]
        for (onset, duration, velocity), end in zip(rows, ends, strict=True):
            result.add((track, pitch, onset, min(duration, end - onset), velocity))
    return result


def on_remi_grid(score: Score) -> set[Note]:
    """Sixteenths, durations of 1 to 32 half sixteenths, 24 velocities, A0 to C8, no drums."""
    notes = defaultdict(list)
    for track in score.tracks:
        for onset, duration, pitch, velocity in track.notes.tolist():
            step = nearest(onset, 4, score.ticks_per_beat)
            if track.is_drum or not 21 <= pitch <= 108 or step >= 4096 * 16:
                continue
            halves = min(32, max(1, nearest(duration, 8, score.ticks_per_beat)))
            level = floor(Fraction(min(86, max(40, velocity)) - 40, 2) + Fraction(1, 2))
            notes["", pitch, step * 120].append((halves * 60, 40 + 2 * level))
    return one_at_a_time(notes)


def on_groove_grid(score: Score, tokenizer: Groove2Groove) -> set[Note]:
    """Twelfths of a beat, one velocity."""
    notes = defaultdict(list)
    last = 16384 * 12
    for track in score.tracks:
        index = find_instrument(track, tokenizer.instruments)
        if index is None:
            continue
        name = tokenizer.instruments[index].name
        for onset, duration, pitch, _ in track.notes.tolist():
            step = nearest(onset, 12, score.ticks_per_beat)
            if step < last:
                length = min(max(1, nearest(duration, 12, score.ticks_per_beat)), last - step)
                notes[name, pitch, step * 40].append((length * 40, 80))
    return one_at_a_time(notes)


def notes_of(score: Score, *, named: bool) -> set[Note]:
    return {
        (track.name if named else "", pitch, onset, duration, velocity)
        for track in score.tracks
        for onset, duration, pitch, velocity in track.notes.tolist()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--corpus", choices=("pop909", "midi_folder"), default="midi_folder")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--tokenizer", choices=("remi", "groove2groove"), default="remi")
    args = parser.parse_args()
    tokenizer = REMI() if args.tokenizer == "remi" else Groove2Groove()
    corpus: Corpus = measure.corpus(args.corpus, args.root)
    counts: Counter[str] = Counter()
    for piece in corpus.pieces():
        try:
            score = corpus.read(piece.path)
        except UserError as error:
            counts["not read"] += 1
            print(f"{piece.path.name}: {error}")
            continue
        tokens = tokenizer.encode(score)
        decoded = tokenizer.decode(tokens)
        if isinstance(tokenizer, Groove2Groove):
            expected = on_groove_grid(score, tokenizer)
        else:
            expected = on_remi_grid(score)
        same_notes = notes_of(decoded, named=args.tokenizer != "remi") == expected
        same_tokens = np.array_equal(tokenizer.encode(decoded), tokens)
        counts["read"] += 1
        counts["notes"] += len(expected)
        counts["tokens"] += len(tokens)
        counts["files whose notes come back on the grid"] += same_notes
        counts["files whose tokens come back"] += same_tokens
        if not same_notes or not same_tokens:
            print(f"{piece.path.name}: notes {same_notes}, tokens {same_tokens}")
    for label, count in counts.items():
        print(f"{label}: {count:,}")


if __name__ == "__main__":
    main()
