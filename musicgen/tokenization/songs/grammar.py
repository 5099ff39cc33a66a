"""The grammar of Songs as batched masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from musicgen.tokenization.bars import InBars
from musicgen.tokenization.grammar import NEVER, BoolArray, latest
from musicgen.tokenization.remi.grammar import BarGrammar, REMIState
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
class SongsState(REMIState):
    """The state of Songs; a `part` of -1 is the bar's header."""

    key: IntArray  # current index [B]
    orders: BoolArray  # whether the parts so far may be in each order [B, N]
    harmonised: BoolArray  # whether the chords of the bar have begun [B]
    writes: BoolArray  # whether each part may come where it is not given [B, P]
    next_given: IntArray  # index in `given` of the token to come, or of its -1 [B]


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
        self._opening = self._of("Bar", "Key", "Tempo", "Part")
        self._fixed = self._opening | self._of("EOS")
        is_drum = [part.is_drum for part in tokenizer.instruments]
        parts = part_order(len(is_drum), tokenizer.chords)
        self._is_drum, self._is_chords = np.array(is_drum + [False] * tokenizer.chords), parts < 0
        self.num_instruments = len(is_drum)
        # Each set of parts, the empty one first, may lead in all bars: the others follow them.
        leads = np.arange(2 ** len(parts))[:, None] >> np.arange(len(parts)) & 1  # [N, P]
        place = parts - len(parts) * leads  # of each part, by order
        # Whether a part may come after another, or after the header (-1), in each order.
        self._ordered = np.ones((len(parts) + 1, len(parts), len(place)), bool)
        self._ordered[:-1] = (place[:, :, None] < place[:, None]).transpose(1, 2, 0)

    def _initial_state(self, num_rows: int) -> SongsState:
        num_parts, none = len(self._is_drum), np.full(num_rows, -1)
        return SongsState(
            **self._initial_fields(num_rows),
            ends=np.zeros((num_rows, num_parts * len(self._ranks["Pitch"])), np.int64),
            key=none,
            orders=np.ones((num_rows, self._ordered.shape[-1]), bool),
            harmonised=np.zeros(num_rows, bool),
            writes=np.ones((num_rows, num_parts), bool),
            next_given=np.zeros(num_rows, np.int64),
        )

    def give(
        self, state: SongsState, given: Sequence[IntArray], written: Sequence[Sequence[int]]
    ) -> SongsState:
        """Return a state whose tokens are those given, with any number of others at each -1.

        The others end with the token given after -1, a bar. They are of the parts that are written,
        which follow those that are not; chords are written. Without given tokens all are of the
        parts that are written.
        """
        has_given = np.array([len(ids) > 0 for ids in given])[:, None]
        parts = np.arange(len(self._is_drum))
        writes = np.stack([np.isin(parts, some or parts) for some in written]) | self._is_chords
        order = (~writes * 2**parts).sum(axis=1)[:, None]
        return replace(
            super().give(state, given, written),
            next_given=state.positions[:, 0] + 1,
            writes=writes,
            chords=state.chords | has_given[:, 0],
            orders=np.where(has_given, np.arange(state.orders.shape[1]) == order, state.orders),
        )

    def _next_given(self, state: SongsState) -> IntArray:
        return state.next_given

    def _allowed(self, state: SongsState) -> BoolArray:
        due = state.progression[:, 0, 0]  # in bars before it the model chooses the chords
        state = replace(state, chords=state.chords | (state.bar_end <= due) & (due < NEVER))
        last, time, limit, bar_end, part = (
            column[:, None]
            for column in (state.last, state.time, state.limit, state.bar_end, state.part)
        )
        ranks, stop = self._ranks, np.minimum(bar_end, limit)
        mask = self._follows[state.last]  # [B, V], a copy
        is_drum, in_chords = (of[part] & (part >= 0) for of in (self._is_drum, self._is_chords))

        mask[:, self._slices["Key"]] &= ranks["Key"] != state.key[:, None]
        # After its part of chords, all chords of the bar have come.
        chord_time = np.where(state.harmonised, state.bar_end - 1, state.bar_start)
        chord_time = np.where(in_chords[:, 0], state.time, chord_time)
        _, _, due = self._limit_changes(state, mask, chord_time)
        mask[:, self._slices["Chord"]] &= in_chords

        all_ends = state.ends.reshape(len(last), len(self._is_drum), -1)  # [B, P, num_pitches]
        ends = np.take_along_axis(all_ends, np.maximum(part, 0)[..., None], axis=1)[:, 0]
        higher = ranks["Pitch"] > state.pitch[:, None]
        free = all_ends.min(axis=2)  # from when a part can have one more note [B, P]
        if self._max_notes is not None:  # the longest of so many have ended
            parts, most = np.arange(self.num_instruments), all_ends.shape[2]
            room = np.sort(all_ends)[:, parts, -np.minimum(self._max_notes, most)]
            free[:, parts] = np.where(state.writes[:, parts], room, free[:, parts])
        ready = np.where(is_drum, 0, np.take_along_axis(free, np.maximum(part, 0), axis=1))
        may_sound = (ends <= time) & (ready <= time)
        mask[:, self._slices["Pitch"]] &= may_sound & higher & ~in_chords & ~is_drum
        higher = ranks["Drum"] > state.pitch[:, None]
        mask[:, self._slices["Drum"]] &= higher & is_drum
        mask[:, self._slices["Duration"]] &= ~is_drum & (self.durations <= limit - time)
        if len(ranks["Velocity"]):
            struck = self._family[last] == self._numbers["Velocity"]
            mask &= ~struck | is_drum | (self._family == self._numbers["Duration"])

        any_chord = state.chords[:, None] | (due < stop)
        silent = np.where(self._is_drum, 0, free)
        silent[:, self._is_chords] = np.where(any_chord, 0, NEVER)
        beat_time = state.bar_start[:, None] + ranks["Beat"]
        after = time + ~self._opening[last]
        may_change = np.where(state.chords[:, None], len(ranks["Chord"]) > 0, beat_time == due)
        beat = np.where(in_chords, may_change, beat_time >= ready)
        mask[:, self._slices["Beat"]] &= beat & (beat_time >= after) & (beat_time < stop)

        complete = due >= stop
        ordered = (self._ordered[state.part] & state.orders[:, None]).any(axis=2)
        may_be = state.writes | (state.given[:, :1] >= 0)
        may_be &= complete | self._is_chords | ~state.writes
        mask[:, self._slices["Part"]] &= ordered & (silent < stop) & may_be
        more = (state.num_bars[:, None] < self.max_bars) & (bar_end < limit) & complete
        mask[:, self._slices["Bar"]] &= more
        mask[:, self._slices["EOS"]] &= complete
        if state.given.shape[1] > 1:
            now, following = self._given(state)[..., None]
            ends_free = np.where(following < 0, now < 0, np.arange(mask.shape[1]) == following)
            ends_free[:, self._slices["Part"]] |= state.writes
            in_written = np.take_along_axis(state.writes, np.maximum(part, 0), axis=1)
            mask &= ends_free | in_written & ~self._fixed
        first = (state.key < 0) & (state.num_bars > 0)
        mask &= ~first[:, None] | (self._family == self._numbers["Key"])
        return mask

    def _time_tokens(self, state: SongsState, until: IntArray) -> BoolArray:
        return np.tile(self._family == self._numbers["Bar"], (len(until), 1))

    def _advance(self, state: SongsState, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        time, changed = super()._advance(state, ids)
        family = self._family[ids]
        part, key = (family == self._numbers[name] for name in ("Part", "Key"))
        bar, chords = family == self._numbers["Bar"], part & self._is_chords[self._part[ids]]
        before = np.concatenate([state.part[None], changed["part"][:-1]])
        ordered = self._ordered[before, changed["part"]] | ~part[..., None]
        now, following = self._given(state)  # of one token, or none is given
        return time, changed | {
            "next_given": state.next_given + np.where(now >= 0, 1, 2 * (ids == following)),
            "key": latest(state.key, key, self._rank[ids]),
            "harmonised": latest(state.harmonised, bar | chords, chords),
            "orders": state.orders & np.logical_and.accumulate(ordered),
        }
