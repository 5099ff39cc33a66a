"""Measure pianos that are written to tunes alone: python -m benchmarks.accompaniments FOLDER

Of each score below FOLDER that has a voice, its first 16 bars are accompanied (`keep=voice`), with
and without the figure that the piano begins with. A bar is doubled if four fifths of the notes of
the tune have their pitch class as the highest note of the piano that begins with them. It is of
block chords if three quarters of the onsets of the piano have three notes or more. The originals
are the pianos of the scores, where they have one.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

import musicgen
from benchmarks import measure
from musicgen.data.corpora.base import evenly_spaced
from musicgen.generation.gap import Gap
from musicgen.generation.kept_prompt import kept_prompt
from musicgen.generation.model import MusicModel
from musicgen.generation.sampler import Sampler
from musicgen.midi import NoteArray, Score, find_music, read

BARS = 16
VOICE, PIANO = 0, 1  # decoded tracks of songs
DOUBLED, BLOCK = 0.8, 0.75  # shares of notes and of onsets
MIN_CHORD = 3  # notes

Parts = tuple[Score, list[NoteArray]]
"""A score, and its notes of the voice and of the piano."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="of scores")
    parser.add_argument("--model", default="songs-small")
    parser.add_argument("--tunes", type=int, default=24)
    parser.add_argument("--samples", type=int, default=2)
    args = parser.parse_args()
    model = musicgen.load(args.model)
    paths = evenly_spaced(find_music(args.folder), 2 * args.tunes)  # half may lack what is needed
    found = [first_bars(model, read(path)) for path in paths]
    songs = [song for song in found if song is not None][: args.tunes]
    results = {"model": args.model, "tunes": len(songs), "originals": shares(songs)}
    for name, has_figure in ("with the figure", True), ("without it", False):
        results[name] = shares(accompanied(model, songs, args.samples, has_figure=has_figure))
    print(results)
    measure.write_results(__file__, results)


def first_bars(model: MusicModel, score: Score) -> Parts | None:
    """Return the bars of a score from its first of the voice on; None: it has no voice."""
    roles = model.tokenizer.find_tracks(score.tracks)
    parts = [
        [track for track, role in zip(score.tracks, roles, strict=True) if role == part]
        for part in (VOICE, PIANO)
    ]
    if len(parts[VOICE]) != 1 or not len(parts[VOICE][0].notes):
        return None
    score = replace(score, tracks=[*parts[VOICE], *parts[PIANO]], markers=[])
    lines = score.bar_starts()
    first = int(np.searchsorted(lines, parts[VOICE][0].notes["onset"].min(), side="right")) - 1
    if len(lines) <= first + BARS:
        return None
    score = score.clip(int(lines[first]), int(lines[first + BARS]))
    tune, *piano = score.tracks
    return score, [tune.notes, np.concatenate([track.notes for track in piano] or [tune.notes[:0]])]


def accompanied(
    model: MusicModel, songs: list[Parts], samples: int, *, has_figure: bool
) -> list[Parts]:
    """Return the tunes of songs with the pianos that a model writes to them."""
    prompts = [
        kept_prompt(
            model.tokenizer,
            replace(score, tracks=score.tracks[:1]),
            f"tune {number}",
            ["voice"],
            Gap(),
            markers=[],
            entropy=[number] if has_figure else None,
        )
        for number, (score, _) in enumerate(songs)
    ]
    request = model.request(keep="voice", num_samples=samples)
    pieces = Sampler(model.model, model.tokenizer, request).continuations(prompts)
    return [
        (piece.score, [piece.score.tracks[part].notes for part in (VOICE, PIANO)])
        for piece in pieces
    ]


def shares(songs: list[Parts]) -> dict[str, float]:
    """Return the shares of bars of songs, of those in which the piano begins notes."""
    doubled, block = list[bool](), list[bool]()
    for score, (tune, piano) in songs:
        bar_of = [
            np.searchsorted(score.bar_starts(), x["onset"], side="right") for x in (tune, piano)
        ]
        for bar in np.intersect1d(*bar_of):
            of_tune, of_piano = tune[bar_of[VOICE] == bar], piano[bar_of[PIANO] == bar]
            onsets, sizes = np.unique(of_piano["onset"], return_counts=True)
            tops = [of_piano["pitch"][of_piano["onset"] == onset].max() for onset in onsets]
            top = dict(zip(onsets.tolist(), tops, strict=True))
            hits = [
                onset in top and (top[onset] - pitch) % 12 == 0
                for onset, _, pitch, _ in of_tune.tolist()
            ]
            doubled.append(float(np.mean(hits)) >= DOUBLED)
            block.append(float(np.mean(sizes >= MIN_CHORD)) >= BLOCK)
    return {
        "doubled": float(np.mean(doubled)),
        "block chords": float(np.mean(block)),
        "bars": len(doubled),
    }


if __name__ == "__main__":
    main()
