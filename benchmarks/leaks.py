"""Planted twins that the audit finds, and honest pieces that it accuses.

    python -m benchmarks.leaks --pop909 POP909

In half of the pieces, drawn at random, others are planted: the same piece in another key, in a
medley of three or six pieces (in another key), and, where there is a melody, with it under other
chords and another texture. Composed pop gets the accompaniment of other songs before it is written,
POP909 the bridge and piano tracks of another song; grooves have no melody. The thresholds were
chosen on the sets `chosen on`, and are judged on the others, whose composer has other seeds or
whose songs are others. Honest pieces are compared across random halves, grooves across halves of
families, since those of a family share patterns by construction. Writes results/leaks.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.measure import arguments, corpus, write_results
from musicgen.composer import FAMILIES, compose_groove, compose_pop
from musicgen.composer.pop import song as pop_song
from musicgen.data.preparation.duplicates import sketch
from musicgen.data.preparation.shared import (
    LineHashes,
    PassageHashes,
    find_shared,
    line_hashes,
)
from musicgen.errors import UserError
from musicgen.metrics.metre import NO_GRID, fit_bars, grid_clarity
from musicgen.midi import Score, TimeSignature, Track, sort_notes
from musicgen.text import markdown

NUM_PIECES, NUM_PLANTED, ROUNDS = 300, 100, 4
Pieces = dict[str, Score]


def moved(score: Score, semitones: int = 0, ticks: float = 0, scale: float = 1) -> Score:
    """Return a piece in another key, later, or in other ticks."""
    tracks = []
    for track in score.tracks:
        notes = track.notes.copy()
        notes["pitch"] += 0 if track.is_drum else semitones
        notes["onset"] = notes["onset"] * scale + ticks
        notes["duration"] = np.maximum(1, notes["duration"] * scale)
        tracks.append(replace(track, notes=notes))
    return replace(score, tracks=tracks)


def medley(scores: Sequence[Score]) -> Score:
    """Return pieces one after the other, each from a bar line of 4/4 on."""
    tracks: dict[str, Track] = {}
    start = 0
    for score in scores:
        scale = 480 / score.ticks_per_beat
        for track in moved(score, ticks=start, scale=scale).tracks:
            old = tracks.get(track.name, replace(track, notes=track.notes[:0]))
            notes = np.concatenate([old.notes, track.notes])
            tracks[track.name] = replace(old, notes=sort_notes(notes))
        start += -(-int(score.end * scale) // 1920) * 1920
    return Score(480, list(tracks.values()))


def pop(seed: int) -> tuple[Pieces, Callable[[str, np.random.Generator], Score]]:
    """Return composed pop, and a function that gives a melody other chords."""
    pieces = {str(i): compose_pop(seed, i) for i in range(NUM_PIECES)}
    play, played = pop_song.play, list[Any]()

    def record(textures: Any, harmony: Any) -> Any:
        played.append((textures, harmony))
        return play(textures, harmony)

    with patch.object(pop_song, "play", record):
        for i in range(60):
            compose_pop(seed + 1000, i)

    def cover(name: str, rng: np.random.Generator) -> Score:
        others = cycle([played[i] for i in rng.integers(len(played), size=12)])

        def other(_: Any, harmony: Any) -> Any:
            textures, chords = next(others)
            return play(textures, list(islice(cycle(chords), len(harmony))))

        with patch.object(pop_song, "play", other):
            return compose_pop(seed, int(name))

    return pieces, cover


def grooves(seed: int) -> tuple[Pieces, None]:
    names = [(f, style, i) for style in range(4) for i in range(4) for f in FAMILIES][:NUM_PIECES]
    return {f"{f}/{s}_{i}": compose_groove(seed, f, s, i) for f, s, i in names}, None


def pop909(root: str, late: bool) -> tuple[Pieces, Callable[[str, np.random.Generator], Score]]:
    """Return the songs to 460 or those after, and a function that gives a melody other chords."""
    source, pieces = corpus("pop909", root), {}
    for piece in source.pieces():
        if (int(piece.name) > 460) == late:
            try:
                pieces[piece.name] = source.read_piece(piece)
            except UserError:  # not in 4/4
                continue

    def cover(name: str, rng: np.random.Generator) -> Score:
        own, other = pieces[name], pieces[rng.choice(list(set(pieces) - {name}))]
        tracks = [track for track in own.tracks if track.name == "MELODY"]
        return replace(own, tracks=tracks + [t for t in other.tracks if t.name != "MELODY"])

    return pieces, cover


def accused(pieces: Pieces, stored: Any, rng: np.random.Generator) -> dict[str, str]:
    """Return each piece that is said to share much with one of the other half, and with which."""
    names = list(pieces)
    groups = [name.split("/")[0] for name in names]
    found = {}
    for _ in range(ROUNDS):
        half = dict(zip(dict.fromkeys(groups), rng.permutation(len(set(groups))) % 2, strict=True))
        for pair in find_shared(stored, [("train", "val")[half[group]] for group in groups]):
            found[names[pair.piece]], found[names[pair.other]] = (
                names[pair.other],
                names[pair.piece],
            )
    return found


def shares(pieces: Pieces, cover: Any, rng: np.random.Generator) -> dict[str, Any]:
    names = list(pieces)
    chosen = rng.permutation(len(names))[:NUM_PLANTED]

    def other() -> Score:
        return pieces[names[rng.integers(len(names))]]

    planted: dict[str, list[Score]] = {"transposed": [], "in 3": [], "in 6": [], "other chords": []}
    for i in chosen:
        shift = int(rng.choice([-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]))
        twin = moved(pieces[names[i]], shift)
        planted["transposed"].append(twin)
        planted["in 3"].append(medley([other(), twin, other()]))
        planted["in 6"].append(medley([*(other() for _ in range(5)), twin]))
        if cover:
            planted["other chords"].append(moved(cover(names[i], rng), shift))
    row: dict[str, Any] = {}
    for how, hashes, kind in (("audit", line_hashes, LineHashes), ("default", sketch, None)):
        own = [hashes(score) for score in pieces.values()]
        stored = kind(own) if kind else PassageHashes(own, range(len(own)))
        accusations = accused(pieces, stored, rng)
        for what, scores in planted.items():
            if scores:
                both = own + [hashes(score) for score in scores]
                stored = kind(both) if kind else PassageHashes(both, range(len(both)))
                splits = ["train"] * len(own) + ["val"] * len(scores)
                pairs = {(p.piece, p.other) for p in find_shared(stored, splits)}
                hits = [(len(own) + k, int(i)) in pairs for k, i in enumerate(chosen)]
                row[f"{how}: {what}"] = round(float(np.mean(hits)), 3)
        row[f"{how}: accused"] = round(len(accusations) / len(names), 4)
        if len(accusations) <= 20:
            row[f"{how}: with"] = accusations
    return row


def without_last_beat(score: Score) -> Score:
    """Return bars of three beats, of those of 4/4, still written as 4/4."""
    bar, tracks = 4 * score.ticks_per_beat, []
    for track in score.tracks:
        notes = track.notes[track.notes["onset"] % bar < bar * 3 // 4].copy()
        notes["onset"] -= notes["onset"] // bar * (bar // 4)
        tracks.append(replace(track, notes=notes))
    return replace(score, tracks=tracks)


def findings(pieces: Pieces, rng: np.random.Generator) -> dict[str, Any]:
    """Return shares of pieces whose bars and grids are found wrong, as they are and spoilt."""

    def share(score_of: Callable[[Score], Score], found: Callable[[Score], bool]) -> float:
        return round(float(np.mean([found(score_of(score)) for score in pieces.values()])), 3)

    def free(score: Score) -> Score:
        tracks = []
        for track in score.tracks:
            notes = track.notes.copy()  # every onset by up to half a beat
            notes["onset"] += rng.integers(0, score.ticks_per_beat, len(notes))
            tracks.append(replace(track, notes=sort_notes(notes)))
        return replace(score, tracks=tracks)

    def no_grid(score: Score) -> bool:
        return grid_clarity(score.notes["onset"] / score.ticks_per_beat) < NO_GRID

    def as_it_is(score: Score) -> Score:
        return score

    row = {
        "metre accused": share(as_it_is, lambda s: fit_bars(s).metre is not None),
        "3/4 as 4/4": share(without_last_beat, lambda s: fit_bars(s).metre is not None),
        "4/4 as 3/4": share(
            lambda s: replace(s, time_signatures=[TimeSignature(0, 3, 4)]),
            lambda s: fit_bars(s).metre is not None,
        ),
        "bar lines accused": share(as_it_is, lambda s: fit_bars(s).shift is not None),
    }
    for beats in (1, 2, 3):
        row[f"{beats} beats late"] = share(
            lambda s, beats=beats: moved(s, ticks=beats * s.ticks_per_beat),
            lambda s, beats=beats: fit_bars(s).shift == beats,
        )
    return row | {"no grid accused": share(as_it_is, no_grid), "free": share(free, no_grid)}


def main() -> None:
    args = arguments(__doc__, pop909="")
    sets: dict[str, Any] = {
        "pop": (lambda: pop(11), lambda: pop(17)),
        "groove": (lambda: grooves(11), lambda: grooves(17)),
    }
    if args.pop909:
        sets["pop909"] = lambda: pop909(args.pop909, False), lambda: pop909(args.pop909, True)
    content: dict[str, Any] = {"chosen on": {}, "judged on": {}}
    roles = list(content)
    for name, makers in sets.items():
        for role, make in zip(roles, makers, strict=True):
            rng = np.random.default_rng(0)
            pieces, cover = make()
            row = {"pieces": len(pieces)} | shares(pieces, cover, rng) | findings(pieces, rng)
            content[role][name] = row
            print(role, name, row, flush=True)
    table = [
        {"": name} | {key: row.get(key, "—") for key in row if "with" not in key}
        for name, row in content["judged on"].items()
    ]
    for row in table:
        print(markdown([row]))
    write_results(__file__, content, args)


if __name__ == "__main__":
    main()
