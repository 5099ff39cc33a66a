"""Compare recognised chords with POP909's annotations, beside MidiTok and chorder if installed.

python -m benchmarks.chord_agreement --root=data/POP909
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from musicgen.data.corpora import POP909
from musicgen.errors import UserError
from musicgen.midi import Marker, Score, Track, sort_notes, write
from musicgen.tokenization.chords.recognition import recognise_chords
from musicgen.tokenization.chords.symbols import NO_CHORD, QUALITIES, ROOTS, chord_index

FAMILIES = {"M": "maj", "M7": "maj", "7": "maj", "m": "min", "m7": "min", "+": "aug"}
FAMILIES |= {"o": "dim", "o7": "dim", "/o7": "dim", "sus2": "sus", "sus4": "sus"}
# MidiTok's qualities; ninths and the augmented seventh are simplified to what REMI's chords hold.
MIDITOK = {"maj": "M", "min": "m", "dim": "o", "aug": "+", "sus2": "sus2", "sus4": "sus4"}
MIDITOK |= {"7dom": "7", "7min": "m7", "7maj": "M7", "7halfdim": "/o7", "7dim": "o7"}
MIDITOK |= {"7aug": "+", "9maj": "7", "9min": "7"}
STEPS_PER_BEAT = 4


def timeline(markers: list[Marker], score: Score) -> NDArray[np.int64]:
    """Return the chord at each quarter of a beat, no chord before the first. [num_steps]."""
    step = score.ticks_per_beat // STEPS_PER_BEAT
    ticks = [marker.tick for marker in markers]
    chords = [NO_CHORD, *(chord_index(marker.text) for marker in markers)]
    times = np.arange(0, score.end, step) + step // 2
    return np.array(chords, dtype=np.int64)[np.searchsorted(ticks, times, side="right")]


def agreement(
    found: NDArray[np.int64], annotated: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return where the root, the root and the family of qualities, and the whole chord agree."""
    families = np.array([*(FAMILIES[quality] for quality in QUALITIES)] * len(ROOTS) + ["N"])
    roots = np.append(np.repeat(np.arange(len(ROOTS)), len(QUALITIES)), -1)
    root = roots[found] == roots[annotated]
    return root, root & (families[found] == families[annotated]), found == annotated


def miditok_chords(score: Score) -> list[Marker]:
    """Run MidiTok's `detect_chords` on all tracks merged, as its REMI does for a piano."""
    import symusic
    from miditok.constants import CHORD_MAPS
    from miditok.utils import detect_chords

    columns = sort_notes(score.notes)
    notes = [
        symusic.Note(*(int(note[name]) for name in ("onset", "duration", "pitch", "velocity")))
        for note in columns
    ]
    beats = np.array([[score.end + 1, score.ticks_per_beat]])
    markers = []
    for event in detect_chords(notes, beats, CHORD_MAPS):
        root, quality = event.value.split(":")
        markers.append(Marker(int(event.time), f"{root}_{MIDITOK[quality]}"))
    return markers


def chorder_chords(score: Score) -> list[Marker]:
    """Run the package chorder, by which the chords of Pop1K7 were found."""
    import miditoolkit
    from chorder import Dechorder

    with TemporaryDirectory() as folder:
        notes = sort_notes(score.notes)
        write(Score(score.ticks_per_beat, [Track(notes=notes)]), Path(folder) / "song.mid")
        midi = miditoolkit.MidiFile(str(Path(folder) / "song.mid"))
    return [
        Marker(
            beat * score.ticks_per_beat,
            f"{ROOTS[chord.root_pc]}_{chord.quality}" if chord.is_complete() else "N_N",
        )
        for beat, chord in enumerate(Dechorder.dechord(midi))
    ]


SIDES: dict[str, Callable[[Score], list[Marker]]] = {
    "ours": recognise_chords,
    "miditok": miditok_chords,
    "chorder": chorder_chords,
}


def run(side: str, root: str, every: int) -> dict[str, float]:
    """Return shares of the songs' time, and songs per second of processor time."""
    same = np.zeros(3)
    steps = songs = 0
    seconds = 0.0
    corpus = POP909(root, download=False, exclude=None)
    for piece in corpus.pieces()[::every]:
        try:
            score = corpus.read(piece.path)
        except UserError:  # in triple metre
            continue
        start = time.process_time()
        markers = SIDES[side](score)
        seconds += time.process_time() - start
        annotated = timeline(score.markers, score)
        same += [where.sum() for where in agreement(timeline(markers, score), annotated)]
        steps += len(annotated)
        songs += 1
    shares = dict(zip(("root", "family", "chord"), same / steps, strict=True))
    return {**shares, "songs": songs, "songs a second": songs / seconds}


def main() -> None:
    args = measure.arguments(__doc__, root="data/POP909", every=1)
    if args.side:
        print(json.dumps(run(args.side, args.root, args.every)))
        return
    ours = measure.side(__file__, "ours", args)
    rows = []
    for name in ("miditok", "chorder"):
        if find_spec(name) is None:
            print(f"{name} is not installed: left out")
            continue
        theirs = measure.side(__file__, name, args)
        for part in ("root", "family", "chord"):
            label = f"same {part} as annotated, ours / {name}, {ours['songs']:.0f} songs"
            rows.append(measure.row(label, ours[part], theirs[part], "of the time", "—"))
        rate = "songs a second"
        rows.append(measure.row(f"ours / {name}", ours[rate], theirs[rate], rate, "≥ 500 ours"))
    measure.save_results(__file__, rows, args)


if __name__ == "__main__":
    main()
