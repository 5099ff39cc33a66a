"""What music shares with the training set of its model: the longest passage, and where it lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from musicgen.cli.datasets import evenly_spaced, open_training_data
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import UserError
from musicgen.generation.model import MusicModel
from musicgen.metrics.originality import GRID, Notes, Passage, PassageIndex, passage_notes
from musicgen.midi import Score
from musicgen.text import pluralize

MAX_HELD_OUT = 100  # pieces that a report compares with
MAX_TOKENS = 20_000_000  # of a training set that is searched without being asked for: 10 seconds


@dataclass(frozen=True)
class KnownPassage:
    """The longest passage that a piece shares with the training set.

    Attributes:
        num_notes: in it; 0 without one.
        num_own: notes of the piece.
        source_bar: bar of the source, from 1, in which it begins.
    """

    num_notes: int
    num_own: int
    passage: Passage | None = None
    source_bar: int = 0

    def ticks(self, ticks_per_beat: int) -> tuple[int, int]:
        """Return where its first and its last note begin, from the beginning of the piece."""
        assert self.passage is not None
        edges = self.passage.onset, self.passage.last_onset
        first, last = (round(edge * ticks_per_beat / GRID) for edge in edges)
        return first, last

    def source(self) -> str:
        """Say where it is from, in words."""
        if (passage := self.passage) is None:
            return "none"
        shift = passage.transposition
        key = f"{pluralize(abs(shift), 'semitones')} {'higher' if shift > 0 else 'lower'}"
        text = f"{passage.source} from bar {self.source_bar}, {key if shift else 'in its key'}"
        others = passage.num_sources - 1
        return text + (f", and in {others:,} more" if others else "")


class Originality(NamedTuple):
    """The known passages of pieces and of held-out pieces, by name.

    `size` is the median number of notes of the pieces, to which the held-out ones are cut.
    """

    passages: Mapping[str, KnownPassage]
    held_out: Mapping[str, KnownPassage]
    size: int


class KnownMusic:
    """The training set of a model, and the held-out pieces as a scale.

    Args:
        max_held_out: pieces of val and test to use, evenly spaced; None uses all.
    """

    def __init__(self, data: EncodedCorpus, max_held_out: int | None = None) -> None:
        self.data = data
        held_out = [i for i, split in enumerate(data.cache.splits) if split != "train"]
        self.held_out = evenly_spaced(held_out, max_held_out)

    @cached_property
    def index(self) -> PassageIndex:
        """The training set's passages, which take seconds to sort."""
        data = self.data
        return PassageIndex({data.cache.names[i]: self._notes(i) for i in data.split("train")})

    def find(self, score: Score) -> KnownPassage:
        """Find the longest passage of a score."""
        return self._find(passage_notes(score))

    def held_out_passages(self, num_notes: int) -> dict[str, KnownPassage]:
        """Return those of the held-out pieces by name, each of `num_notes` from its middle.

        More notes have longer passages: compare music of equal size.
        """
        found = {}
        for i in self.held_out:
            notes = self._notes(i)
            middle = notes[max(0, len(notes) - num_notes) // 2 :][:num_notes]
            found[self.data.cache.names[i]] = self._find(middle)
        return found

    def originality(self, scores: Mapping[str, Score]) -> Originality:
        """Find the longest passages of scores, by name, and of held-out pieces of their size."""
        return self.beside_held_out({name: self.find(score) for name, score in scores.items()})

    def beside_held_out(self, passages: Mapping[str, KnownPassage]) -> Originality:
        """Return the passages with those of held-out pieces of their size."""
        size = int(np.median([passage.num_own for passage in passages.values()]))
        return Originality(passages, self.held_out_passages(size), size)

    def _find(self, notes: Notes) -> KnownPassage:
        passage = self.index.longest_passage(notes)
        if passage is None:
            return KnownPassage(0, len(notes))
        tokenizer, cache = self.data.tokenizer, self.data.cache
        piece = cache.names.index(passage.source)
        bars = tokenizer.bar_starts(cache[piece], cache.bar_lengths[piece])
        step = passage.source_onset * tokenizer.steps_per_beat / GRID
        bar = int(np.searchsorted(bars, step, side="right"))
        return KnownPassage(passage.num_notes, len(notes), passage, bar)

    def _notes(self, piece: int) -> Notes:
        return passage_notes(self.data.tokenizer.decode(self.data.cache[piece]))


def known_music(model: MusicModel, wanted: bool | str, root: str | None) -> KnownMusic | None:
    """Return the music that a model knows; None if it is not `wanted`.

    Args:
        wanted: True, False, or `auto`: if the corpus is here and encoded, and not large.
        root: the corpus's folder, if it was moved.
    """
    if wanted is False:
        return None
    try:
        data = open_training_data(model, root)
        found = data.cache if wanted is True else data.find_cache()
    except UserError:
        if wanted is True:
            raise
        return None
    if found is None or (wanted == "auto" and found.lengths.sum() > MAX_TOKENS):
        return None
    return KnownMusic(data, MAX_HELD_OUT)
