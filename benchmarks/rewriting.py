"""What `keep=` and `fill=` make of files that nobody here wrote, and what following bars are worth.

    python -m benchmarks.rewriting --pop909 POP909 --bands FOLDER --chorales FOLDER [--num 10]

The first files of each folder are given to the package's model of such music, with each request.
`unchanged` counts the files in which every note that is kept is as it was, or cut where a gap
begins, every new note is in a gap, and the model's grammar accepts the tokens. The
other columns compare what was written with what was in its place: the share of the notes in the
file's key, and the share of the kept notes that are tones of the chord recognised in the others at
their time; `one draft`: without a choice among drafts.
"""

from __future__ import annotations

import argparse
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import musicgen
from benchmarks import measure
from musicgen.composer import compose_corpus
from musicgen.evaluation.infilling import middle_losses
from musicgen.generation import filling
from musicgen.metrics.key import find_key, in_key_share
from musicgen.metrics.summary import Summary
from musicgen.midi import NoteArray, Score, Track, pitched_notes, read
from musicgen.midi.replacement import read_parts
from musicgen.random import NoiseKey
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.recognition import recognise_chords, with_chords
from musicgen.tokenization.chords.symbols import INTERVALS, NO_CHORD, QUALITIES, chord_index

NUM_FILLED = 4
"""Bars in the middle of a piece whose loss is measured."""
NUM_BARS = 8
"""At the end of a file, in which `keep` writes; the bars before them stay."""
REQUESTS: dict[str, list[dict[str, Any]]] = {
    "pop909": [{"fill": "17-20,33-36"}, {"keep": "melody"}],
    "bands": [{"fill": "5-8"}, {"fill": "5-8", "tracks": "bass"}, {"keep": "drums,bass"}],
    "chorales": [{"fill": "5-6"}, {"keep": "soprano"}],
}
END = 2**31  # ticks: later than all music
MODELS = {
    "composed pop": "pop-piano-small",
    "composed groove": "groove-small",
    "pop909": "pop-piano-small",
    "bands": "groove-small",
    "chorales": "bach-chorales",
}
COMPOSED: dict[str, Any] = {"num_pieces": 30, "seed": 1000}  # held out: the models' seed is 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in REQUESTS:
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--num", type=int, default=10, help="files of each folder")
    parser.add_argument("--device", default="cpu", choices=("cpu",))
    args = parser.parse_args()
    content = {"infilling": list(infilling(args)), "rows": list(rows(args))}
    measure.write_results("rewriting", content, args)


def infilling(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the nats a note of true bars in the middle of pieces, see `middle_losses`."""
    with TemporaryDirectory() as folder:
        composed = {
            f"composed {kind}": compose_corpus(Path(folder) / kind, kind=kind, **COMPOSED)
            for kind in ("pop", "groove")
        }
        own = {name: files(name, args) for name in ("pop909", "bands")}
        for name, paths in {**composed, **own}.items():
            model, pairs = musicgen.load(MODELS[name]), []
            for i, path in enumerate(paths[: 3 * args.num]):
                score = read(path)
                if model.tokenizer.chords:
                    score = with_chords(score, "auto")
                tokens, bar = model.tokenizer.encode(score), model.tokenizer.bar_length(score)
                pairs.append(middle_losses(model, tokens, bar, NUM_FILLED, NoiseKey((i,))))
            known, filled = np.array([pair for pair in pairs if pair is not None]).T
            row = {"files": name, "known": float(known.mean()), "filled": float(filled.mean())}
            row |= asdict(Summary.of(filled - known, seed=0))
            print(row, flush=True)
            yield row


def files(name: str, args: argparse.Namespace) -> list[Path]:
    """Return the files of a folder; for `pop-piano-small` those in 4/4."""
    if name != "pop909":
        return sorted(getattr(args, name).glob("**/*.mid"))
    paths = sorted(args.pop909.glob("*/*.mid"))[: 10 * args.num]
    return [path for path in paths if {s[1:] for s in read(path).time_signatures} <= {(4, 4)}]


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name, requests in REQUESTS.items():
        paths = files(name, args)[: args.num]
        for options in requests:
            found = [written(MODELS[name], path, options) for path in paths]
            row = {
                "files": name,
                "request": " ".join(
                    f"{key}=[{value}]" if "," in value else f"{key}={value}"
                    for key, value in options.items()
                ),
                "n": len(found),
                "unchanged": sum(each.pop("unchanged") for each in found),
                **{name: mean([each[name] for each in found]) for name in found[0]},
            }
            print(row, flush=True)
            yield row


def mean(values: list[float]) -> float | None:
    known = [value for value in values if not np.isnan(value)]
    return round(float(np.mean(known)), 3) if known else None


def written(model_name: str, path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of one file."""
    model, score = musicgen.load(model_name), read(path)
    parts = read_parts(path.read_bytes())
    before = [part.track for part in parts]
    hanging = {(tick, pitch) for part in parts for tick, pitch, _ in part.hanging}
    kept = kept_parts(before, options.get("keep", "").split(","), model.tokenizer)
    starts = [*score.bar_starts().tolist(), score.end]
    bars, spans = None, [(0, END)]
    if kept and model_name != "bach-chorales":
        bars = max(1, len(starts) - 1 - NUM_BARS)
        spans = [(starts[bars], END)]
    elif fill := options.get("fill"):
        ranges = [each.split("-") for each in fill.split(",")]
        spans = [(starts[int(first) - 1], starts[int(last)]) for first, last in ranges]
    (piece,) = model.generate(path, prompt_bars=bars, **options)
    with patch.object(filling, "NUM_CANDIDATES", 1):
        (other,) = model.generate(path, prompt_bars=bars, **options)
    early = score.ticks_per_beat // (2 * model.tokenizer.steps_per_beat)
    after = [part.track for part in read_parts(piece.midi_file().data)]
    accepted = model.tokenizer.grammar().accepts(torch.from_numpy(piece.tokens)[None]).all()
    ours, single = (pitched_notes(each.new_score) for each in (piece, other))
    own = pitched_notes(replace(score, tracks=[t for t in before if t not in kept]))
    own = own[[any(first <= onset < last for first, last in spans) for onset in own["onset"]]]
    melody = pitched_notes(replace(score, tracks=kept))
    melody = melody[melody["onset"] >= spans[0][0]]
    key = find_key(pitched_notes(score))
    return {
        "unchanged": bool(accepted) and is_kept(before, after, kept, spans, early, hanging),
        **{
            f"{name} in key": in_key_share(Score(1, [Track(notes=notes)]), key)
            for name, notes in {"written": ours, "original": own}.items()
        },
        **{
            f"{name} chord tones": chord_tones(melody, replace(score, tracks=[Track(notes=notes)]))
            for name, notes in {"written": ours, "one draft": single, "original": own}.items()
        },
    }


def kept_parts(parts: list[Track], names: list[str], tokenizer: Tokenizer) -> list[Track]:
    """Return the parts with some names, of their own or of the decoded tracks that they become."""
    decoded = [track.name.lower() for track in tokenizer.decode(tokenizer.start_tokens()).tracks]
    roles = [tokenizer.find_track(part) for part in parts]
    return [
        part
        for part, role in zip(parts, roles, strict=True)
        if part.name.lower() in names or (role is not None and decoded[role] in names)
    ]


def is_kept(
    before: list[Track],
    after: list[Track],
    kept: list[Track],
    spans: list[tuple[int, int]],
    early: int,
    hanging: set[tuple[int, int]],
) -> bool:
    """Return whether kept parts, and notes outside spans, are as before, and new ones in spans.

    Notes of other parts that sound where a span begins end there, and so do those that nothing else
    ended, by their tick and pitch.
    """
    left = Counter(note for track in after for note in track.notes.tolist())
    for track in before:
        for onset, duration, *rest in track.notes.tolist():
            cuts = [first for first, _ in spans if onset < first < onset + duration]
            inside = any(first <= onset + early < last + early for first, last in spans)
            if left[onset, duration, *rest]:
                left[onset, duration, *rest] -= 1
            elif track in kept:
                return False
            elif cuts and left[onset, cuts[0] - onset, *rest]:
                left[onset, cuts[0] - onset, *rest] -= 1
            elif not inside:
                return False
    starts = {first for first, _ in spans}
    return all(
        any(first <= onset < onset + duration <= last for first, last in spans)
        or (onset + duration in starts and (onset, pitch) in hanging)
        for onset, duration, pitch, _ in left.elements()
    )


def chord_tones(melody: NoteArray, others: Score) -> float:
    """Return the share of a melody's notes that are tones of the chord in force in other notes."""
    markers = recognise_chords(replace(others, markers=[]))
    starts = [marker.tick for marker in markers]
    found = []
    for onset, _, pitch, _ in melody.tolist():
        at = bisect_right(starts, onset) - 1
        chord = chord_index(markers[at].text) if at >= 0 else None
        if chord is not None and chord != NO_CHORD:
            root, quality = divmod(chord, len(QUALITIES))
            found.append((pitch - root) % 12 in INTERVALS[QUALITIES[quality]])
    return float(np.mean(found)) if found else np.nan


if __name__ == "__main__":
    main()
