"""Measure how continuations with ending=close end: python -m benchmarks.endings FOLDER

Each score below FOLDER is continued after its first 4 bars by 8, --samples times. A pile is a last
beat with more than twice as many notes as the new music has in a beat (and one more), or with a
note outside the range of prompt and new music before it. A piece ends on its tonic chord if all
notes that sound in its last moment belong to the tonic triad of the prompt's key, and the tonic is
among the notes of the last bar. The bass is the lowest of the notes that begin in the last bar. The
originals are the whole pieces, with their own last bars.
"""

import argparse
from pathlib import Path

import numpy as np

import musicgen
from benchmarks import measure
from musicgen.data.corpora.base import evenly_spaced
from musicgen.generation.continuation import Continuation
from musicgen.midi import NoteArray, Score, find_music, pitched_notes, read
from musicgen.midi.key import Key, final_key

NUM_BARS = 12  # that an original has at least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="of scores or MIDI files")
    parser.add_argument("--model", default="songs-small")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--samples", type=int, default=3)
    args = parser.parse_args()
    paths = evenly_spaced(find_music(args.folder), args.prompts)
    scores = [score for score in map(read, paths) if len(score.bar_starts()) > NUM_BARS]
    model = musicgen.load(args.model)
    options = {"bars": 8, "ending": "close", "num_samples": args.samples, "seed": 0}
    pieces = model.generate(scores, prompt_bars=4, performance="none", **options)
    keys = [final_key(piece.prompt.score) for piece in pieces]
    own = [piece.score for piece in pieces]
    sides = {"": (own, keys), "originals: ": (scores, keys[:: args.samples])}
    found = {
        "model": args.model,
        "prompts": len(scores),
        "continuations": len(pieces),
        "piles": int(sum(map(has_pile, pieces))),
    }
    for side, (ended, of_scores) in sides.items():
        last = [*map(last_bar, ended)]
        on_tonic = [*map(ends_on_tonic, ended, of_scores)]
        has_tonic_bass = [*map(tonic_is_bass, last, of_scores)]
        found[side + "end on the tonic chord"] = float(np.mean(on_tonic))
        found[side + "bass of the last bar is the tonic"] = float(np.mean(has_tonic_bass))
        found[side + "notes in the last bar"] = float(np.mean([*map(len, last)]))
    print(found)
    measure.write_results(__file__, found)


def has_pile(piece: Continuation) -> bool:
    """Return whether notes pile up in the last beat of a continuation."""
    notes, beat = piece.new_score.notes, piece.new_score.ticks_per_beat
    if not len(notes):
        return False
    is_last = notes["onset"] > notes["onset"].max() - beat
    last, others = notes[is_last], np.append(piece.prompt.score.notes, notes[~is_last])
    beats = max(1.0, (notes["onset"].max() - notes["onset"].min()) / beat)
    is_outside = (last["pitch"] < others["pitch"].min()) | (last["pitch"] > others["pitch"].max())
    return bool(len(last) > 2 * len(notes) / beats + 1 or is_outside.any())


def ends_on_tonic(score: Score, key: Key | None) -> bool:
    """Return whether a piece ends on the tonic chord of a key."""
    notes = pitched_notes(score)
    if key is None or not len(notes):
        return False
    ends = notes["onset"] + notes["duration"]
    triad = {key.tonic, (key.tonic + (4 if key.major else 3)) % 12, (key.tonic + 7) % 12}
    last = set((notes["pitch"][ends >= ends.max() - score.ticks_per_beat // 8] % 12).tolist())
    return last <= triad and key.tonic in last_bar(score)["pitch"] % 12


def last_bar(score: Score) -> NoteArray:
    """Return the pitched notes that begin in the last bar in which one begins."""
    notes, starts = pitched_notes(score), score.bar_starts()
    bar = np.searchsorted(starts, notes["onset"].max(initial=0), side="right") - 1
    return notes[notes["onset"] >= starts[bar]]


def tonic_is_bass(notes: NoteArray, key: Key | None) -> bool:
    """Return whether the lowest of some notes is the tonic of a key."""
    if key is None or not len(notes):
        return False
    return bool((notes["pitch"].min() - key.tonic) % 12 == 0)


if __name__ == "__main__":
    main()
