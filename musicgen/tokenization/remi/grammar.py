"""The grammar of REMI as batched masks."""

from collections.abc import Mapping

import numpy as np

from musicgen.tokenization.bar_grammar import BarGrammar, BarState
from musicgen.tokenization.grammar import BoolArray
from musicgen.tokenization.vocabulary import IntArray

CLOSING = {"Beat", "Bar", "EOS"}


class REMIGrammar(BarGrammar[BarState]):
    """Bars of ascending Beats with content: changes of chord and tempo, then ascending notes.

    A pitch cannot begin while it sounds.
    """

    followers: Mapping[str, set[str]] = {
        "": {"Bar", "EOS"},  # the beginning
        "Bar": {"Bar", "Beat"},
        "Beat": {"Chord", "Tempo", "Pitch"},
        "Chord": {"Tempo", "Pitch", *CLOSING},
        "Tempo": {"Pitch", *CLOSING},
        "Pitch": {"Velocity"},
        "Velocity": {"Duration"},
        "Duration": {"Pitch", *CLOSING},
        "EOS": set(),
    }
    unit = 2

    def _initial_state(self, batch: int) -> BarState:
        ends = np.zeros((batch, len(self.ranks["Pitch"])), np.int64)
        return BarState(**self._initial_fields(batch), ends=ends)

    def _allowed(self, state: BarState, earliest: Mapping[str, IntArray]) -> BoolArray:
        last, time, limit, bar_end = (
            column[:, None] for column in (state.last, state.time, state.limit, state.bar_end)
        )
        ends, ranks = state.ends, self.ranks
        mask = self.follows[state.last]  # [B, V], a copy
        mask[:, self.slices["Duration"]] &= self.durations <= 2 * (limit - time)
        if self._in_note[state.last].all():
            # Only a velocity or a duration may follow; what limits other tokens is not needed.
            return mask

        higher = ranks["Pitch"] > state.pitch[:, None]
        mask[:, self.slices["Pitch"]] &= (ends <= 2 * time) & higher

        # A Beat needs content: a change of tempo or chord, or else a pitch that is silent by then.
        ready = (ends.min(axis=1) + 1) // 2
        for family, is_new in self._limit_changes(state, mask).items():
            with_change = np.minimum(ready, earliest.get(family, 0))
            ready = np.where(is_new.any(axis=1), with_change, ready)
        ready = ready[:, None]
        beat_time = state.bar_start[:, None] + ranks["Beat"]
        after = time + (self.family[last] != self.numbers["Bar"])
        stop = np.minimum(bar_end, limit)
        mask[:, self.slices["Beat"]] &= (beat_time >= np.maximum(after, ready)) & (beat_time < stop)
        num_more = self.max_bars - 1 - state.num_bars[:, None]
        end = bar_end + self.bar_lengths + num_more * self.bar_lengths.max()
        mask[:, self.slices["Bar"]] &= (num_more >= 0) & (end > ready) & (bar_end < limit)
        return mask

    def time_tokens(self, state: BarState, until: IntArray) -> BoolArray:
        arrives = state.bar_start[:, None] + self.rank >= until[:, None]
        return self.of_families("Bar") | self.of_families("Beat") & arrives
