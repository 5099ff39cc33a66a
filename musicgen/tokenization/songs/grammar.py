"""The grammar of Songs as batched masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from musicgen.tokenization.bar_grammar import BarGrammar, BarState
from musicgen.tokenization.bars import InBars
from musicgen.tokenization.grammar import BoolArray, latest
from musicgen.tokenization.vocabulary import IntArray

NEXT = {"Part", "Bar", "EOS"}


def followers(velocity: bool) -> dict[str, set[str]]:
    """Return which family may follow which; the state restricts the tokens of a family further."""
    struck = {"Velocity"} if velocity else {"Duration"}
    return {
        "": {"Bar", "EOS"},  # the beginning
        "Bar": {"Key", "Tempo", "Part", "Bar"},
        "Key": {"Tempo", *NEXT},
        "Tempo": NEXT,
        "Chord": {"Beat", *NEXT},
        "Part": {"Beat"},
        "Beat": {"Chord", "Pitch", "Drum"},
        "Pitch": struck,
        "Drum": {"Velocity"} if velocity else {"Drum", "Beat", *NEXT},
        "Velocity": {"Duration", "Drum", "Beat", *NEXT},
        "Duration": {"Pitch", "Beat", *NEXT},
        "EOS": set(),
    }


@dataclass
class SongsState(BarState):
    """The state of Songs. A `part` of -1 is the bar's header.

    Attributes:
        orders: whether the parts so far may be in each order. [B, N]
    """

    orders: BoolArray

    @property
    def key(self) -> IntArray:
        """Index of the key in force. [B]"""
        return self.in_force[:, 3]

    @property
    def has_chords(self) -> BoolArray:
        """Whether the part of chords of the current bar has begun. [B]"""
        return self.bars[:, 3] > 0


def part_order(num_parts: int, chords: bool) -> IntArray:
    """Return the place of each part, and of chords, which are the last index but come first."""
    return np.append(np.arange(num_parts), [-1] * chords).astype(np.int64)


class SongsGrammar(BarGrammar[SongsState]):
    """Bars of a header (key and tempo, where they change), then parts in one order.

    The first bar has a key. A part has ascending Beats with ascending notes, or with a chord. A
    pitch of a part cannot begin while it sounds there; drums do not sound on. The last part is of
    chords, if the tokenizer has them.
    """

    def __init__(self, tokenizer: InBars) -> None:
        self.followers = followers(len(tokenizer.velocities) > 0)
        super().__init__(tokenizer)
        self._opening = self.of_families("Bar", "Key", "Tempo", "Part")
        self._is_pitch, self._is_duration, self._is_key = (
            self.of_families(name) for name in ("Pitch", "Duration", "Key")
        )
        is_drum = [part.is_drum for part in tokenizer.instruments]
        parts = part_order(len(is_drum), tokenizer.chords)
        self.is_drum, self.is_chords = np.array(is_drum + [False] * tokenizer.chords), parts < 0
        self.num_instruments = len(is_drum)
        # Each set of parts, the empty one first, may lead in all bars: the others follow them.
        leads = np.arange(2 ** len(parts))[:, None] >> np.arange(len(parts)) & 1  # [N, P]
        place = parts - len(parts) * leads  # of each part, by order
        # Whether a part may come after another, or after the header (-1), in each order.
        self._ordered = np.ones((len(parts) + 1, len(parts), len(place)), bool)
        self._ordered[:-1] = (place[:, :, None] < place[:, None]).transpose(1, 2, 0)

    def _initial_state(self, batch: int) -> SongsState:
        num_parts = len(self.is_drum)
        return SongsState(
            **self._initial_fields(batch),
            ends=np.zeros((batch, num_parts * len(self.ranks["Pitch"])), np.int64),
            orders=np.ones((batch, self._ordered.shape[-1]), bool),
        )

    def may_follow(self, part: IntArray, leading: BoolArray) -> BoolArray:
        """Return which parts may come after a part [B], where some parts lead. [B, num_parts]

        Args:
            part: the current part; -1: the bar's header.
            leading: the parts that come before the others. [B, num_parts]
        """
        order = (leading * 2 ** np.arange(leading.shape[1])).sum(axis=1)
        return self._ordered[part, :, order]

    def _allowed(self, state: SongsState, earliest: Mapping[str, IntArray]) -> BoolArray:
        last, time, limit, bar_end, part = (
            column[:, None]
            for column in (state.last, state.time, state.limit, state.bar_end, state.part)
        )
        mask = self.follows[state.last]  # [B, V], a copy
        mask[:, self.slices["Duration"]] &= self.durations <= limit - time
        if self._is_pitch[state.last].all():
            # Only a velocity or a duration may follow; what limits other tokens is not needed.
            return mask

        ranks, stop = self.ranks, np.minimum(bar_end, limit)
        is_drum, in_chords = (of[part] & (part >= 0) for of in (self.is_drum, self.is_chords))

        self._limit_changes(state, mask)
        mask[:, self.slices["Key"]] &= ranks["Key"] != state.key[:, None]
        mask[:, self.slices["Chord"]] &= in_chords

        all_ends = state.ends.reshape(len(last), len(self.is_drum), -1)  # [B, P, num_pitches]
        # From when a part can have one more note. Drums and chords never sound on. [B, P]
        free = all_ends.min(axis=2)
        here = np.arange(len(part)), np.maximum(state.part, 0)
        ends, ready = all_ends[here], free[here][:, None]
        higher = ranks["Pitch"] > state.pitch[:, None]
        mask[:, self.slices["Pitch"]] &= (ends <= time) & higher & ~in_chords & ~is_drum
        higher = ranks["Drum"] > state.pitch[:, None]
        mask[:, self.slices["Drum"]] &= higher & is_drum
        mask[:, self.slices["Duration"]] &= ~is_drum
        if len(ranks["Velocity"]):
            struck = self.family[last] == self.numbers["Velocity"]
            mask &= ~struck | is_drum | self._is_duration

        beat_time = state.bar_start[:, None] + ranks["Beat"]
        after = np.maximum(time + ~self._opening[last], ready)
        mask[:, self.slices["Beat"]] &= (beat_time >= after) & (beat_time < stop)
        ordered = (self._ordered[state.part] & state.orders[:, None]).any(axis=2)
        mask[:, self.slices["Part"]] &= ordered & (free < stop)
        more = (state.num_bars[:, None] < self.max_bars) & (bar_end < limit)
        mask[:, self.slices["Bar"]] &= more
        first = (state.key < 0) & (state.num_bars > 0)
        if first.any():
            mask &= ~first[:, None] | self._is_key
        return mask

    def time_tokens(self, state: SongsState, until: IntArray) -> BoolArray:
        return np.tile(self.family == self.numbers["Bar"], (len(until), 1))

    def _advance(self, state: SongsState, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        time, changed = super()._advance(state, ids)
        family = self.family[ids]
        bar, part = (family == self.numbers[name] for name in ("Bar", "Part"))
        chords = part & self.is_chords[self._part[ids]]
        before = np.concatenate([state.part[None], changed["part"][:-1]])
        ordered = self._ordered[before, changed["part"]] | ~part[..., None]
        changed["bars"][..., 3] = latest(state.bars[:, 3], bar | chords, chords)
        return time, changed | {"orders": state.orders & np.logical_and.accumulate(ordered)}
