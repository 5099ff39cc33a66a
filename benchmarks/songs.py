"""Measure a model of songs on composers that are not in its training set.

    python -m benchmarks.songs --run RUN

RUN is the training on data=songbook; it says where the corpora and their held-out composers are.
The model writes --samples continuations of each prompt, none of them chosen:

- `16 bars after 8` of all music, and `12 bars after 4` of piano music, as in MIREX; each also of
  every second song of POP909 with --pop909, whose copied bars differ much from song to song. The
  other songs may select settings, and are measured apart;
- `piano to a voice`, a piano part for the first 24 bars of songs, with guidance and without.

Each is compared with the original's bars and with those of an unrelated piece in the same time
signature. The value of a piece is the mean over its samples. `chords asked for` are measured by
benchmarks/progressions.py. Finished parts stay in --out; all measures go to results/songs.json.

Keys are those of the signatures, else of the prompts' notes. `clash` is `clash_share`. Repeated
bars may repeat bars of the prompt. Copied bars have the onsets and pitches of an earlier bar,
varied bars only its rhythm. `bar lines kept` is the share of pieces in which all bar lines are
those of the file, up to its next change of time signature.
"""

import argparse
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import musicgen
from benchmarks import measure, progressions
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import UserError
from musicgen.evaluation.originality import training_matches
from musicgen.evaluation.position_loss import position_losses
from musicgen.evaluation.runs import open_training_data, piece_readers
from musicgen.files import write_bytes
from musicgen.generation.continuation import Continuation
from musicgen.generation.model import MusicModel
from musicgen.metrics.intervals import Summary, mean_of_valid
from musicgen.metrics.position_loss import unit_values
from musicgen.metrics.repeated_bars import (
    bar_notes,
    bar_similarities,
    copied_and_varied_shares,
    repeated_bar_share,
)
from musicgen.metrics.style import style_similarity
from musicgen.midi import TICKS_PER_BEAT, NoteArray, Score, dumps, loads, pitched_notes
from musicgen.midi.key import Key, find_key, in_key_share
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization.chord_recognition import with_chords
from musicgen.tokenization.vocabulary import within

METRES = ("4/4", "3/4", "6/8", "2/4")
SIDES = ("generated", "originals", "unrelated")
CLASHES = (1, 11)  # semitones and major sevenths, plus any number of octaves
BATCH = 20  # continuations at a time
BARS = 24  # of each piece, prompt included
Row = dict[str, Any]
Readers = Sequence[Callable[[], Score]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", required=True, help="the training on data=songbook")
    parser.add_argument("--model", default="songs-small", help="of the package, or a run")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--pop909", type=Path, help="POP909's folder, for prompts of its songs")
    parser.add_argument("--only", nargs="*", help="parts of it, such as 'piano to a voice'")
    parser.add_argument("--samples", type=int, default=3, help="continuations of each prompt")
    parser.add_argument("--out", type=Path, default=Path("outputs/songs"))
    args = parser.parse_args()
    model, data = musicgen.load(args.model), open_training_data(musicgen.load(args.run))
    for part, (readers, way) in parts(args, data).items():
        if not args.only or part in args.only:
            pieces = written(args, model, part, readers, way)
            rows = [*summaries(pieces, args.samples, model.tokenizer.steps_per_beat)]
            rows += nats(model, pieces[:: args.samples]) if "keep" in way else matches(data, pieces)
            store(args.model, part, rows)
    if not args.only or "chords asked for" in args.only:
        store(args.model, "chords asked for", [*chords(args.model)])


def parts(args: argparse.Namespace, data: EncodedCorpus) -> dict[str, tuple[Readers, Row]]:
    """Return what is continued in each part of the measurement, and how."""
    cache, voice = data.cache, data.tokenizer.vocabulary.id("Part_Voice")
    corpora = "openscore_lieder/", "polish_piano/"  # which hold out all pieces of a composer
    held_out = [i for i in data.split("val") if cache.names[i].startswith(corpora)]
    starts = {i: data.tokenizer.bar_starts(cache[i], cache.bar_lengths[i]) for i in held_out}
    long = [i for i in held_out if len(starts[i]) > BARS]
    sung = {i: data.tokenizer.times(cache[i])[cache[i] == voice] for i in long}
    songs = [i for i in long if (sung[i] < starts[i][BARS]).any()]
    piano = [i for i in long if not len(sung[i])]

    def read(pieces: list[int]) -> Readers:
        return evenly_spaced([*piece_readers(data, pieces).values()], args.prompts)

    after_8, after_4 = {"prompt_bars": 8, "bars": 16}, {"prompt_bars": 4, "bars": 12}
    found = {"16 bars after 8": (read(long), after_8), "12 bars after 4": (read(piano), after_4)}
    if args.pop909:
        pop = measure.corpus("pop909", args.pop909)
        pop_songs = [partial(pop.read_piece, x) for x in pop.pieces()]
        halves = {
            "POP909": evenly_spaced(pop_songs[::2], args.prompts),
            "the other songs of POP909": evenly_spaced(pop_songs[1::2], args.prompts),
        }
        found |= {
            f"{part} of {name}": (some, way)
            for name, some in halves.items()
            for part, (_, way) in found.items()
        }
    to_voice: Row = {"keep": "voice"}
    plain = {"piano to a voice without guidance": (read(songs), to_voice | {"guidance": 1})}
    return found | {"piano to a voice": (read(songs), to_voice)} | plain


def written(
    args: argparse.Namespace, model: MusicModel, part: str, readers: Readers, way: Row
) -> list[Continuation]:
    """Return --samples continuations of each score in turn, from --out if they are there."""
    pieces = []
    for first in range(0, len(readers), BATCH):
        name = f"{args.samples} by {Path(args.model).name} {part} {first} of {len(readers)}"
        path = args.out / f"{name}.pickle"
        if not path.is_file():
            scores = []
            for read in readers[first : first + BATCH]:
                with suppress(UserError):  # songs of POP909 in other metres than theirs
                    scores.append(read())
            if "keep" in way:
                scores = [score.clip(0, int(score.bar_starts()[BARS])) for score in scores]
            done = model.generate(scores, seed=first, num_samples=args.samples, **way)
            write_bytes(path, pickle.dumps(done))
        pieces += pickle.loads(path.read_bytes())
    return pieces


def summaries(pieces: Sequence[Continuation], samples: int, steps_per_beat: int) -> Iterator[Row]:
    """Yield each measure's means, over all pieces and by metre."""
    metres = [
        "{1}/{2}".format(*x.prompt.score.time_signature_at(x.prompt.end.tick)) for x in pieces
    ]
    values = []
    for i, piece in enumerate(pieces):
        prompt, kept = piece.prompt, piece.prompt.kept
        steps = kept.conditioning.stop if kept else piece.bars * prompt.bar_length
        ticks = steps * TICKS_PER_BEAT // steps_per_beat
        order = [(i + len(pieces) // 2 + j) % len(pieces) for j in range(len(pieces))]
        other = min(order, key=lambda j: pieces[j].prompt is prompt or metres[j] != metres[i])
        own, unrelated = (
            x.piece.clip(x.end.tick, x.end.tick + ticks) for x in (prompt, pieces[other].prompt)
        )
        music = {"generated": piece.new_on_grid, "originals": own, "unrelated": unrelated}
        sides = {side: measures(piece, score) for side, score in music.items()}
        sides["generated"] |= checks(piece)
        values.append(sides)
    for name in values[0]["generated"]:
        for metre in ("all", *METRES):
            some = [v for v, own in zip(values, metres, strict=True) if metre in ("all", own)]
            columns = [[v[side].get(name, np.nan) for v in some] for side in SIDES]
            each = [np.reshape(column, (-1, samples)) for column in columns]
            yield as_row(name, [[*map(mean_of_valid, side)] for side in each], metre)


def measures(piece: Continuation, music: Score) -> dict[str, float]:
    """Measure what was written, or other music in its place."""
    prompt, kept = piece.prompt, piece.prompt.kept
    tracks = [track for i, track in enumerate(music.tracks) if not kept or i in kept.targets]
    music, shown = replace(music, tracks=tracks), prompt.piece if kept else prompt.score
    first = int((prompt.piece.bar_starts() < prompt.end.tick).sum())
    events = bar_notes(music) + np.array([first, 0, 0, 0])
    if not kept:
        events = np.concatenate([bar_notes(shown), events])
    copied, varied = copied_and_varied_shares(events, first)
    given = pitched_notes(prompt.score) if kept else None
    return {
        "in key": in_key_share(music, key_of(shown)),
        "notes a bar": music.num_notes / (piece.bars or BARS),
        "clash": clash_share(pitched_notes(music), given),
        "repeated bars": repeated_bar_share(bar_similarities(events[:, :3]), first),
        "copied bars": copied,
        "varied bars": varied,
        "onset-duration similarity": style_similarity(music, shown),
    }


def clash_share(notes: NoteArray, others: NoteArray | None = None) -> float:
    """Return the share of dissonant pairs (`CLASHES`) among pairs of notes that sound together.

    It is NaN if no notes sound together.

    Args:
        others: a pair is one of the notes and one of these; None: a pair is two of the notes.
    """
    seconds = notes if others is None else others
    ends = (each["onset"] + each["duration"] for each in (notes, seconds))
    together = np.maximum.outer(notes["onset"], seconds["onset"]) < np.minimum.outer(*ends)
    if others is None:
        np.fill_diagonal(together, False)
    intervals = np.subtract.outer(notes["pitch"], seconds["pitch"])[together] % 12
    return mean_of_valid(np.isin(intervals, CLASHES))


def key_of(score: Score) -> Key | None:
    """Return the major key of a score's signature, else the key of its notes."""
    if score.key_signatures:
        return Key(7 * score.key_signatures[0].fifths % 12, True)
    return find_key(pitched_notes(score))


def checks(piece: Continuation) -> dict[str, float]:
    """Return 1 if what must stay has stayed, otherwise 0."""
    prompt, kept = piece.prompt, piece.prompt.kept
    # The prompt does not tell where the file changes its metre later.
    later = [x.tick for x in prompt.piece.time_signatures if x.tick >= prompt.end.tick]
    lines = [score.bar_starts() for score in (piece.score, prompt.piece)]
    lines = [x[: np.searchsorted(x, later[0]) + 1] if later else x for x in lines]
    number = min(map(len, lines))
    found = {"bar lines kept": float(np.array_equal(*(x[:number] for x in lines)))}
    if kept:
        # As MIDI, which cannot hold a pitch that begins again before it ends.
        files = (loads(each).tracks for each in (piece.midi_file().data, dumps(kept.source)))
        tracks = zip(*files, kept.conditioning.roles, strict=False)
        same = all(new == own for new, own, role in tracks if role not in kept.targets)
        found["given notes unchanged"] = float(same)
    return found


def matches(data: EncodedCorpus, pieces: Sequence[Continuation]) -> list[Row]:
    """Return the row of the longest matches with the training set."""
    scores = {str(i): piece.new_on_grid for i, piece in enumerate(pieces)}
    *sides, _ = training_matches(data, scores, len(pieces))
    lengths = [[match.num_notes for match in side.values()] for side in sides]
    return [as_row("longest match with the training set, notes", lengths)]


def nats(model: MusicModel, pieces: Sequence[Continuation]) -> list[Row]:
    """Return rows of the nats per note of the piano's own tokens, with the voice and without."""
    tokenizer = model.tokenizer
    ids_of_parts, ids_of_bars = tokenizer.families["Part"], tokenizer.families["Bar"]
    losses: dict[str, list[np.ndarray]] = {"voice given": [], "without the voice": []}
    counts = []
    for i, piece in enumerate(pieces):
        kept, own = piece.prompt.kept, piece.prompt.kept.source
        assert kept
        score = with_chords(own or Score(), model.content.config["loader"]["chords"])
        alone = [
            track if role in kept.targets else replace(track, notes=track.notes[:0])
            for track, role in zip(score.tracks, kept.conditioning.roles, strict=True)
        ]
        for way, music in zip(losses, (score, replace(score, tracks=alone)), strict=True):
            ids = tokenizer.encode(music)
            begins = within(ids, ids_of_parts) | within(ids, ids_of_bars)
            section = ids[np.maximum.accumulate(np.where(begins, np.arange(len(ids)), 0))]
            noise = NoiseKey((0, RandomStream.EVALUATION, i))
            found = position_losses(model.model, ids, noise, positions=model.positions(ids))
            losses[way].append(found[:, np.isin(section[1:] - ids_of_parts.start, kept.targets)])
        counts.append(sum(len(piece.prompt.piece.tracks[j].notes) for j in kept.targets))
    each = {way: unit_values(some, counts).mean(axis=(1, 2)) for way, some in losses.items()}
    return [as_row(f"nats per note of the piano, {way}", [some]) for way, some in each.items()]


def chords(model: str) -> Iterator[Row]:
    """Yield the shares of bars with the chord asked for, and of the same without being asked."""
    for row in progressions.rows(model):
        for way in ("with_chords", "without"):
            yield as_row(f"bars of {row['chords']}, {way}", [[row[way]["chord"]]])


def as_row(name: str, sides: Sequence[Sequence[float]], metre: str = "all") -> Row:
    found = [Summary.of(values) for values in sides]
    means = {side: each.mean for side, each in zip(SIDES, found, strict=False)}
    interval = {"low": found[0].low, "high": found[0].high}
    return {"measure": name, "metre": metre, "n": found[0].n, **means, **interval}


def store(model: str, part: str, rows: Sequence[Row]) -> None:
    """Replace the rows of a model's part in the results."""
    path, own = measure.RESULTS / "songs.json", {"model": Path(model).name, "part": part}
    old = json.loads(path.read_text())["rows"] if path.is_file() else []
    rows = [own | row for row in rows]
    kept = [row for row in old if not own.items() <= row.items()]
    measure.write_results(__file__, {"rows": kept + rows})


if __name__ == "__main__":
    main()
