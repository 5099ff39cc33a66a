"""The measure `originality`: longest matches of continuations with the training set."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from musicgen import load
from musicgen.console import log, track
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import UserError
from musicgen.evaluation.references import read_manifest, read_pieces
from musicgen.evaluation.runs import Inputs, open_training_data
from musicgen.generation.model import MusicModel
from musicgen.metrics.originality import GRID, Match, MatchIndex, Notes, match_notes
from musicgen.midi import Score
from musicgen.report.tables import TableRow, write_csv

MAX_TOKENS = 20_000_000  # the largest training set that `originality=auto` searches: 10 seconds


def originality(inputs: Inputs, out: Path) -> list[TableRow]:
    """Return the length in notes of the longest match of each continuation with the training set.

    Matches may be in any key (see `musicgen.metrics.originality`). Prompts are not searched. The
    baseline is the longest matches of held-out pieces, which are cut to the median size of the
    continuations. Much longer matches are copies. `originality_matches.csv` has the place of each
    match.
    """
    if not inputs.generated:
        raise UserError("metrics=originality needs generated=, a folder of MIDI files")
    manifest = read_manifest(inputs.generated)
    model = load(manifest.checkpoint or inputs.checkpoint)
    data = open_training_data(model, inputs.root)
    pieces = read_pieces(manifest)
    new = {file: continuation for file, (*_, continuation) in pieces.items()}
    matches, held_out, size = training_matches(data, new, inputs.max_pieces)
    details = []
    rows: list[TableRow] = []
    for file, match in matches.items():
        original, entry, score, _ = pieces[file]
        tick = entry["prompt end"] + round(match.first_beat * score.ticks_per_beat)
        bar = int(np.searchsorted(score.bar_starts(), tick, side="right"))
        details.append({"piece": file, "bar": bar, **match._asdict()})
        row = {"pieces": "generated", "size": size, "piece": file, "original": original}
        rows.append({**row, "value": match.num_notes})
    write_csv(details, out / "originality_matches.csv")
    file, longest = max(matches.items(), key=lambda item: item[1].num_notes)
    log(f"longest match: {longest.num_notes} notes of {file}, in {longest.description}")
    for name, match in held_out.items():
        row = {"pieces": "held-out", "size": size, "piece": name, "original": name}
        rows.append({**row, "value": match.num_notes})
    return rows


def training_matches(
    data: EncodedCorpus, scores: Mapping[str, Score], max_held_out: int | None
) -> tuple[dict[str, Match], dict[str, Match], int]:
    """Return the longest matches of scores, and of held-out pieces, with a training set.

    Args:
        data: the corpus of the training set.
        scores: generated pieces, by name.
        max_held_out: number of validation and test pieces to use, evenly spaced; None: all.

    Returns:
        Matches of scores and of held-out pieces, by name, and the size in notes of the cut held-out
        pieces: the median of the scores.
    """
    tokenizer, cache = data.tokenizer, data.cache

    def notes_of(piece: int) -> Notes:
        return match_notes(tokenizer.decode(cache[piece]))

    def bar_at(name: str, onset: int) -> int:
        piece = cache.names.index(name)
        bars = tokenizer.bar_starts(cache[piece], cache.bar_lengths[piece])
        step = onset * tokenizer.steps_per_beat / GRID
        return int(np.searchsorted(bars, step, side="right"))

    index = MatchIndex({cache.names[i]: notes_of(i) for i in data.split("train")}, bar_at)
    generated = {
        name: index.longest_match(match_notes(scores[name]))
        for name in track(list(scores), "matches with the training set")
    }
    size = int(np.median([match.num_piece_notes for match in generated.values()]))
    held_out = {}
    pieces = [i for i, split in enumerate(cache.splits) if split != "train"]
    for i in evenly_spaced(pieces, max_held_out):
        notes = notes_of(i)
        # Longer music has longer matches. Pieces are therefore cut to equal size, in the middle.
        middle = notes[max(0, len(notes) - size) // 2 :][:size]
        held_out[cache.names[i]] = index.longest_match(middle)
    return generated, held_out, size


def searchable_training_data(
    model: MusicModel, wanted: bool | str, root: str | None
) -> EncodedCorpus | None:
    """Return the corpus of a model in which matches are searched, or None for no search.

    Args:
        wanted: True, False, or `auto`: search if the corpus is found, encoded and not large.
        root: folder of the corpus, if it was moved.

    Raises:
        UserError: the corpus is `wanted`, but not found.
    """
    if wanted is False:
        return None
    try:
        data = open_training_data(model, root)
        cache = data.cache if wanted is True else data.find_cache()
    except UserError:
        if wanted is True:
            raise
        return None
    if cache is None or (wanted == "auto" and cache.lengths.sum() > MAX_TOKENS):
        return None
    return data
