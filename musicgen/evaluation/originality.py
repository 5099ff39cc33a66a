"""Originality: what music shares with the training set of its model, and where it lies there."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from musicgen import load
from musicgen.console import log, track
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import UserError
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.references import read_manifest, read_pieces
from musicgen.evaluation.training_data import open_training_data
from musicgen.generation.model import MusicModel
from musicgen.metrics.originality import GRID, Notes, Passage, PassageIndex, passage_notes
from musicgen.midi import Score
from musicgen.report.tables import TableRow, write_csv

MAX_HELD_OUT = 100  # pieces that a report compares with
MAX_TOKENS = 20_000_000  # of a training set that is searched without being asked for: 10 seconds


def originality(inputs: Inputs, out: Path) -> list[TableRow]:
    """Find the longest passage that each continuation shares with the training set, in any key.

    Prompts do not count. Held-out pieces, cut to the median size of the continuations, are the
    scale: much longer passages than theirs are copied; see `musicgen.metrics.originality`. A value
    is the number of notes. Where the passages are from stands in `originality_passages.csv`.
    """
    if not inputs.generated:
        raise UserError("metrics=originality needs generated=, a folder of MIDI files")
    folder = Path(inputs.generated).expanduser()
    manifest = read_manifest(folder)
    model = load(manifest.checkpoint or inputs.checkpoint)
    data = open_training_data(model, inputs.root)
    pieces = read_pieces(folder, model.tokenizer)
    new = {file: continuation for file, (*_, continuation) in pieces.items()}
    passages, held_out, size = known_passages(data, new, inputs.max_pieces)
    details = []
    for file, each in passages.items():
        _, score, end, _ = pieces[file]
        tick = end + round(each.first_beat * score.ticks_per_beat)
        bar = int(np.searchsorted(score.bar_starts(), tick, side="right"))
        details.append({"piece": file, "bar": bar, **each._asdict()})
    write_csv(details, out / "originality_passages.csv")
    file, longest = max(passages.items(), key=lambda item: item[1].num_notes)
    log(f"longest: {longest.num_notes} notes of {file}, as in: {longest.words}")
    return [
        {"pieces": kind, "size": size, "piece": name, "original": own, "value": passage.num_notes}
        for kind, some in (("generated", passages), ("held-out", held_out))
        for name, passage in some.items()
        for own in [pieces[name][0] if some is passages else name]
    ]


class KnownPassages(NamedTuple):
    """The known passages of pieces and of held-out pieces, by name."""

    passages: Mapping[str, Passage]
    held_out: Mapping[str, Passage]
    size: int  # median number of notes of the pieces, to which the held-out ones are cut


def known_passages(
    data: EncodedCorpus, scores: Mapping[str, Score], max_held_out: int | None
) -> KnownPassages:
    """Find the longest passages of scores, and of held-out pieces, that a training set has.

    Args:
        scores: by name.
        max_held_out: pieces of val and test to use, evenly spaced; None: all.
    """
    tokenizer, cache = data.tokenizer, data.cache

    def notes_of(piece: int) -> Notes:
        return passage_notes(tokenizer.decode(cache[piece]))

    def bar_at(name: str, onset: int) -> int:
        piece = cache.names.index(name)
        bars = tokenizer.bar_starts(cache[piece], cache.bar_lengths[piece])
        step = onset * tokenizer.steps_per_beat / GRID
        return int(np.searchsorted(bars, step, side="right"))

    index = PassageIndex({cache.names[i]: notes_of(i) for i in data.split("train")}, bar_at)
    passages = {
        name: index.longest_passage(passage_notes(scores[name]))
        for name in track(list(scores), "passages")
    }
    size = int(np.median([passage.num_own for passage in passages.values()]))
    held_out = {}
    pieces = [i for i, split in enumerate(cache.splits) if split != "train"]
    for i in evenly_spaced(pieces, max_held_out):
        notes = notes_of(i)
        # From the middle. More notes have longer passages: compare music of equal size.
        middle = notes[max(0, len(notes) - size) // 2 :][:size]
        held_out[cache.names[i]] = index.longest_passage(middle)
    return KnownPassages(passages, held_out, size)


def known_music(model: MusicModel, wanted: bool | str, root: str | None) -> EncodedCorpus | None:
    """Return the corpus that a model knows; None if it is not `wanted`.

    Args:
        wanted: True, False, or `auto`: if the corpus is here and encoded, and not large.
        root: the corpus's folder, if it was moved.
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
