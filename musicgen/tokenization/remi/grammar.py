"""The grammar of REMI as batched masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from musicgen.tokenization.grammar import Grammar, GrammarState, cumulate, latest, latest_rows
from musicgen.tokenization.remi import arrangement
from musicgen.tokenization.vocabulary import IntArray, Vocabulary

BoolArray = NDArray[np.bool_]

CLOSING = {"Beat", "Bar", "EOS"}
FOLLOWERS: dict[str, set[str]] = {
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
"""Which family may follow which; the state restricts the tokens of a family further."""

_NEVER = 2**62  # a float, too, as padding is


@dataclass
class REMIState(GrammarState):
    """The state of REMI sequences: [B] each, unless noted; -1 stands for none."""

    num_bars: Tensor  # bars begun
    bar_start: Tensor  # first grid step of the bar
    bar_end: Tensor  # first grid step after the bar
    pitch: Tensor  # index of the last pitch at this position
    ends: Tensor  # half grid step at which each pitch stops sounding [B, num_pitches]
    tempo: Tensor  # current index
    chord: Tensor  # current index
    chords: Tensor  # whether the model chooses Chord tokens
    progression: Tensor  # first grid step and index of the chords to come, then _NEVER [B, N, 2]
    metre: Tensor  # current index
    hold_tempo: Tensor  # whether the tempo stays once there is one, or a note
    hold_metre: Tensor  # whether the metre stays
    gaps: Tensor  # whether a gap may come
    gap_start: Tensor  # first grid step of the gap
    gap_end: Tensor  # first grid step after it
    gap_metre: Tensor  # current index before it
    gap_chord: Tensor  # likewise
    gap_tempo: Tensor  # likewise
    filling: Tensor  # whether the tokens are those that fill it


class REMIGrammar(Grammar[REMIState]):
    """Bars of ascending Beats with content: changes of chord and tempo, then ascending notes.

    A pitch cannot begin while it sounds. Chords continue a prompt only if it has chords or no
    notes. What follows a gap may stand before it, see `arrangement`; a continuation has no gap.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        families: Mapping[str, range],
        bar_lengths: IntArray,
        max_bars: int,
    ) -> None:
        super().__init__(vocabulary)
        self.families, self.max_bars = families, max_bars
        self.note_ons, self.bar_lines = families["Pitch"], families["Bar"]
        self.longest_bar = int(bar_lengths.max())
        size = len(vocabulary)
        follow = torch.zeros(size, size, dtype=torch.bool)
        orders = [FOLLOWERS, arrangement.FOLLOWERS] if families["Gap"] else [FOLLOWERS]
        for name, followers in chain.from_iterable(order.items() for order in orders):
            ids = families[name] if name else range(self.pad, self.pad + 1)
            for follower in followers:
                to = families[follower]
                follow[ids.start : ids.stop, to.start : to.stop] = True
        self._numbers = {name: number for number, name in enumerate(families)}
        family, rank = torch.full((size,), -1), torch.zeros(size, dtype=torch.long)
        for name, ids in families.items():
            family[ids.start : ids.stop] = self._numbers[name]
            rank[ids.start : ids.stop] = torch.arange(len(ids))
        self.follow = follow  # whether a token's family may follow another token's [V, V]
        self.family = family  # number of a token's family, -1 for PAD [V]
        self.rank = rank  # index of a token in its family [V]
        self.bar_lengths = torch.from_numpy(bar_lengths)
        # The same for single steps, whose many small operations are faster in numpy.
        self._slices = {name: slice(ids.start, ids.stop) for name, ids in families.items()}
        self._rank_arrays = {name: np.arange(len(ids)) for name, ids in families.items()}
        self._follow_array, self._length_array = follow.numpy(), bar_lengths
        self._family_array, self._rank_array = family.numpy(), rank.numpy()

    def tables(self) -> dict[str, Any]:
        """Return which family may follow which, and the lengths of bars by rank, in grid steps.

        They are those of the plain order, without gaps.
        """
        return {
            "followers": {name: sorted(families) for name, families in FOLLOWERS.items()},
            "bar_lengths": self.bar_lengths.tolist(),
            "max_bars": self.max_bars,
        }

    def _initial_state(self, num_rows: int) -> REMIState:
        zeros = torch.zeros(num_rows, dtype=torch.long)
        none = torch.full_like(zeros, -1)
        return REMIState(
            **self._initial_fields(num_rows),
            num_bars=zeros,
            bar_start=zeros,
            bar_end=zeros,
            pitch=none,
            ends=torch.zeros(num_rows, len(self.families["Pitch"]), dtype=torch.long),
            tempo=none,
            chord=none,
            chords=torch.ones_like(zeros, dtype=torch.bool),
            progression=torch.full((num_rows, 1, 2), _NEVER),
            metre=none,
            hold_tempo=torch.zeros_like(zeros, dtype=torch.bool),
            hold_metre=torch.zeros_like(zeros, dtype=torch.bool),
            gaps=torch.ones_like(zeros, dtype=torch.bool),
            gap_start=none,
            gap_end=none,
            gap_metre=none,
            gap_chord=none,
            gap_tempo=none,
            filling=torch.zeros_like(zeros, dtype=torch.bool),
        )

    def _after_prompt(self, state: REMIState, prompts: Tensor) -> REMIState:
        family = self.family[prompts]
        no_note = ~self._is("Pitch", family).any(dim=1)
        chords = self._is("Chord", family).any(dim=1) | no_note
        # From nothing on, all sequences are possible.
        return replace(state, chords=chords, gaps=state.gaps & (prompts.shape[1] == 0))

    def hold(self, state: REMIState, *, tempo: bool, metre: bool) -> REMIState:
        return replace(
            state,
            hold_tempo=torch.full_like(state.hold_tempo, tempo),
            hold_metre=torch.full_like(state.hold_metre, metre),
        )

    def harmonise(self, state: REMIState, progressions: Sequence[IntArray]) -> REMIState:
        free = torch.tensor([len(each) == 0 for each in progressions])
        rows = pad_sequence(
            list(map(torch.from_numpy, progressions)), batch_first=True, padding_value=_NEVER
        )
        ended = pad(rows, (0, 0, 0, 1), value=_NEVER)
        return replace(state, chords=state.chords & free, progression=ended)

    def _allowed(self, state: REMIState) -> Tensor:
        s = state.arrays()
        last, time, limit = (s[name][:, None] for name in ("last", "time", "limit"))
        ends, ranks, bar_end = s["ends"], self._rank_arrays, s["bar_end"][:, None]
        mask = self._follow_array[s["last"]]  # [B, V], a copy

        new_tempo = ranks["Tempo"] != s["tempo"][:, None]
        has_tempo = (s["tempo"] >= 0) | (ends > 0).any(axis=1)
        new_tempo &= ~(s["hold_tempo"] & (has_tempo | s["filling"]))[:, None]
        mask[:, self._slices["Tempo"]] &= new_tempo
        due, asked = _next_chord(s)
        new_chord = (ranks["Chord"] != s["chord"][:, None]) & s["chords"][:, None]
        new_chord |= (ranks["Chord"] == asked) & (due == time)
        mask[:, self._slices["Chord"]] &= new_chord
        must = (self._family_array[last] == self._numbers["Beat"]) & (due == time)
        mask &= ~must | (self._family_array == self._numbers["Chord"])
        higher = ranks["Pitch"] > s["pitch"][:, None]
        mask[:, self._slices["Pitch"]] &= (ends <= 2 * time) & higher

        # A Beat needs content: a change of tempo or chord, or else a pitch that is silent by then.
        # None, nor the bar's end, may pass the next chord of a progression.
        any_change = new_tempo.any(axis=1) | new_chord.any(axis=1)
        silent = np.where(any_change, 0, (ends.min(axis=1) + 1) // 2)[:, None]
        ready = np.minimum(silent, due)
        beat_time = s["bar_start"][:, None] + ranks["Beat"]
        after = time + (self._family_array[last] != self._numbers["Bar"])
        stop = np.minimum(bar_end, limit)
        beat = (beat_time >= np.maximum(after, ready)) & (beat_time < stop) & (beat_time <= due)
        mask[:, self._slices["Beat"]] &= beat
        num_more = self.max_bars - 1 - s["num_bars"][:, None]
        end = bar_end + self._length_array + num_more * self.longest_bar
        complete = due >= stop
        bar = (num_more >= 0) & (end > ready) & (bar_end < limit) & complete
        if self.families["Gap"]:
            bar = self._allow_gaps(mask, s, bar)
        held = (s["hold_metre"] & (s["metre"] >= 0))[:, None]
        mask[:, self._slices["Bar"]] &= bar & (~held | (ranks["Bar"] == s["metre"][:, None]))
        mask[:, self._slices["EOS"]] &= complete
        longest = 2 * (limit - time)  # in half grid steps
        mask[:, self._slices["Duration"]] &= ranks["Duration"] < longest
        return torch.from_numpy(mask)

    def _allow_gaps(self, mask: BoolArray, s: Mapping[str, Any], bar: BoolArray) -> BoolArray:
        """Restrict the mask [B, V] as gaps do; return which Bars may come. [B, num_metres]

        Args:
            bar: which may come without gaps.
        """
        ranks, filling, bar_end = self._rank_arrays, s["filling"], s["bar_end"]
        plain = s["gap_start"] < 0
        silent = s["ends"].max(axis=1) <= 2 * bar_end
        num_more = self.max_bars - 1 - s["num_bars"]
        fits = ranks["Gap"] <= num_more[:, None]
        mask[:, self._slices["Gap"]] &= (s["gaps"] & plain & silent)[:, None] & fits
        mask[:, self._slices["Fill"]] &= (~plain & ~filling)[:, None]
        whole = filling & (bar_end >= s["limit"])
        is_bar = self._family_array[s["last"]] == self._numbers["Bar"]
        mask[:, self.eos] &= np.where(plain, ~is_bar, whole)
        # Behind Gap a bar may be empty, as Fill or EOS may follow it.
        following = (num_more >= 0)[:, None]
        of_gap = ranks["Bar"] == np.maximum(s["gap_metre"], 0)[:, None]
        in_gap = of_gap & (bar_end < s["limit"])[:, None]
        return np.where(plain[:, None], bar, np.where(filling[:, None], in_gap, following))

    def _time_tokens(self, state: REMIState, until: Tensor) -> Tensor:
        is_beat = self._is("Beat", self.family)
        arrives = state.bar_start[:, None] + self.rank >= until[:, None]
        return self._is("Bar", self.family) | (is_beat & arrives)

    def advance(self, state: REMIState, tokens: Tensor) -> REMIState:
        s, ids = state.arrays(), tokens.numpy()
        family, rank = self._family_array[ids], self._rank_array[ids]
        bar, beat, pitch, tempo, chord, duration = (
            family == self._numbers[name]
            for name in ("Bar", "Beat", "Pitch", "Tempo", "Chord", "Duration")
        )
        bar_start = np.where(bar, s["bar_end"], s["bar_start"])
        time = np.where(beat, bar_start + rank, np.where(bar, bar_start, s["time"]))
        last_pitch = np.where(pitch, rank, np.where(bar | beat, -1, s["pitch"]))
        ends = s["ends"]
        rows = (duration & (last_pitch >= 0)).nonzero()[0]
        if len(rows):
            ends = ends.copy()
            ends[rows, last_pitch[rows]] = 2 * time[rows] + rank[rows] + 1
        length = self._length_array[np.where(bar, rank, 0)]
        changed: dict[str, Any] = {
            "num_bars": s["num_bars"] + bar,
            "bar_start": bar_start,
            "bar_end": np.where(bar, bar_start + length, s["bar_end"]),
            "pitch": last_pitch,
            "ends": ends,
            "tempo": np.where(tempo, rank, s["tempo"]),
            "chord": np.where(chord, rank, s["chord"]),
            "metre": np.where(bar, rank, s["metre"]),
        }
        if self.families["Gap"]:
            changed |= self._pass_gap(s, family, rank, changed)
        fields = {name: torch.from_numpy(array) for name, array in changed.items()}
        now = torch.from_numpy(time)
        return replace(state, **self._next_fields(state, tokens, now), **fields)

    def _pass_gap(
        self, s: Mapping[str, Any], family: IntArray, rank: IntArray, changed: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the fields that `Gap` and `Fill` change, or else tokens as `changed` says."""
        gap, fill = (family == self._numbers[name] for name in ("Gap", "Fill"))
        bars = np.where(gap, rank + 1, 0)
        end = s["bar_end"] + bars * self._length_array[np.maximum(s["metre"], 0)]
        fields = {
            "num_bars": changed["num_bars"] + bars,
            "bar_end": np.where(gap, end, np.where(fill, s["gap_start"], changed["bar_end"])),
            "ends": np.where(fill[:, None], 0, changed["ends"]),
            "gap_start": np.where(gap, s["bar_end"], s["gap_start"]),
            "gap_end": np.where(gap, end, s["gap_end"]),
            "filling": s["filling"] | fill,
            "limit": np.where(fill, np.minimum(s["gap_end"], s["limit"]), s["limit"]),
        }
        for name in ("metre", "chord", "tempo"):
            before = s[f"gap_{name}"]
            fields[f"gap_{name}"] = np.where(gap, s[name], before)
            fields[name] = np.where(gap, -1, np.where(fill, before, changed[name]))
        return fields

    def _scan(self, state: REMIState, tokens: Tensor) -> REMIState:
        family, rank = self.family[tokens], self.rank[tokens]
        bar, beat, pitch = (self._is(name, family) for name in ("Bar", "Beat", "Pitch"))
        gap, fill = (self._is(name, family) for name in ("Gap", "Fill"))

        def changing(name: str, kind: Tensor) -> dict[str, Tensor]:
            """Return the rank of the last token of a kind, and of that before the gap."""
            plain = latest(getattr(state, name), kind, rank)
            before = latest(getattr(state, f"gap_{name}"), gap, plain[:, :-1])
            value = rank.where(kind, before[:, 1:].where(fill, -1))
            now = latest(getattr(state, name), kind | gap | fill, value)
            return {name: now, f"gap_{name}": before}

        metre = changing("metre", bar)
        metre_now = rank.where(bar, metre["metre"][:, :-1]).clamp(min=0)
        num_bars = (rank + 1).where(gap, bar.long())
        steps = self.bar_lengths[metre_now] * num_bars
        bar_end = cumulate(state.bar_end, steps)
        gap_start = latest(state.gap_start, gap, bar_end[:, :-1])
        gap_end = latest(state.gap_end, gap, bar_end[:, 1:])
        back = latest(torch.zeros_like(state.bar_end), fill, bar_end[:, 1:] - gap_start[:, 1:])
        bar_end = bar_end - back
        bar_start = latest(state.bar_start, bar, bar_end[:, :-1])
        moved = bar_start[:, 1:] + rank.where(beat, 0)
        time = latest(state.time, bar | beat, moved)
        last_pitch = latest(state.pitch, bar | beat | pitch, rank.where(pitch, -1))
        note_ends = self._is("Duration", family)
        entry = last_pitch[:, 1:].where(note_ends, -1)
        filling = cumulate(state.filling.long(), fill) > 0
        note_end = 2 * time[:, 1:] + rank + 1
        ends = latest_rows(state.ends, entry, note_end)
        if fill.any():
            own = latest_rows(
                torch.zeros_like(state.ends), entry.where(filling[:, 1:], -1), note_end
            )
            begun = filling & ~state.filling[:, None]
            ends = own.where(begun[:, :, None], ends)
        fields = {
            **self._scan_fields(state, tokens, time),
            **metre,
            **changing("chord", self._is("Chord", family)),
            **changing("tempo", self._is("Tempo", family)),
            "num_bars": cumulate(state.num_bars, num_bars),
            "bar_start": bar_start,
            "bar_end": bar_end,
            "pitch": last_pitch,
            "ends": ends,
            "gap_start": gap_start,
            "gap_end": gap_end,
            "filling": filling,
        }
        limit = torch.minimum(fields["limit"][:, 1:], gap_end[:, 1:])
        fields["limit"] = latest(state.limit, fill, limit)
        for name in ("chords", "progression", "hold_tempo", "hold_metre", "gaps"):
            constant = getattr(state, name)[:, None]
            fields[name] = constant.expand(-1, time.shape[1], *constant.shape[2:])
        return REMIState(**fields)

    def _is(self, name: str, family: Tensor) -> Tensor:
        return family == self._numbers[name]


def _next_chord(s: Mapping[str, NDArray[Any]]) -> tuple[IntArray, IntArray]:
    """Return when a progression changes the chord next, which may be now, and to which. [B, 1]."""
    starts, indices = s["progression"][..., 0], s["progression"][..., 1]
    differs = np.ones_like(starts, dtype=bool)  # the end does
    is_ahead = starts[:, 1:] > s["time"][:, None]  # or in force: until the chord behind it begins
    differs[:, :-1] = is_ahead & (indices[:, :-1] != s["chord"][:, None])
    at = differs.argmax(axis=1)[:, None]
    due = np.maximum(np.take_along_axis(starts, at, 1), s["time"][:, None])
    return due, np.take_along_axis(indices, at, 1)
