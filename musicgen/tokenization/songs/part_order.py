"""The order of parts in the bars of a song: leading parts come first in all bars."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi import KeySignature, Score, Track, pitched_notes
from musicgen.midi.key import Key, find_key
from musicgen.midi.score import PIANO, is_line
from musicgen.tokenization.augmentation import Rng
from musicgen.tokenization.bars import InBars
from musicgen.tokenization.grammar import latest
from musicgen.tokenization.instruments import find_named
from musicgen.tokenization.part_order import (
    NO_TOKENS,
    NUM_FOLLOWING_BARS,
    ConditioningTokens,
    PartOrder,
)
from musicgen.tokenization.quantization import relocate
from musicgen.tokenization.songs.grammar import part_order
from musicgen.tokenization.vocabulary import IntArray, within

TUNE = "voice"
"""Lower-case name of the part as which a tune is read."""
MAX_PARTS = 8  # there are 2 to the power of their number orders

_SINGLE_PROBABILITY = 0.5  # of the crops in which parts lead; in the others any set leads


def key_of(score: Score) -> Key:
    """Return the key of a score without key signatures: found from its notes, else C major."""
    return find_key(pitched_notes(score)) or Key(0, major=True)


class SongsPartOrder(PartOrder):
    """The orders of parts, chords among them.

    Args:
        tokenizer: the codec.
        words: of each part, the beginnings of words that name it, see `find_by_words`.
        lead_probability: share of the training crops in which other parts than chords lead.
    """

    def __init__(
        self, tokenizer: InBars, words: Sequence[Sequence[str]], lead_probability: float
    ) -> None:
        self.tokenizer, self.lead_probability = tokenizer, lead_probability
        self._words = words
        self._families, self._instruments = tokenizer.families, tokenizer.instruments

    def rearrange(self, window: IntArray, rng: Rng) -> IntArray:
        if rng.random() >= self.lead_probability:
            return window
        ids = self._families["Part"]
        is_part = within(window, ids[: len(self._instruments)])
        present = np.unique(window[is_part]) - ids.start
        leads = np.isin(np.arange(len(ids)), rng.permutation(present)[:1])
        if rng.random() >= _SINGLE_PROBABILITY:
            return self.lead(window, leads.tolist())
        return self.lead(window, (rng.random(len(ids)) < 0.5).tolist())

    def lead(self, tokens: IntArray, parts: Sequence[bool]) -> IntArray:
        """Return ids [L] in the order in which, in each bar, some parts come before the others.

        The last bar is left out if it may be incomplete: if there is no EOS. -> [<= L].

        Args:
            parts: whether each part leads, chords among them.
        """
        eos = self._families["EOS"].start
        bars = np.flatnonzero(within(tokens, self._families["Bar"]))
        if tokens[-1] != eos:
            if len(bars) < 2:
                return tokens
            tokens = tokens[: bars[-1]]
        bar = np.cumsum(within(tokens, self._families["Bar"]))
        is_part = within(tokens, self._families["Part"])
        begins = is_part | (np.diff(bar, prepend=0) > 0)
        part = np.where(is_part, tokens - self._families["Part"].start, -1)
        section = latest(-1, begins, part)  # -1: the header
        order = part_order(len(self._instruments), self.tokenizer.chords)
        order = order + MAX_PARTS * ~np.array(parts)
        place = np.where(section < 0, -2, order[section])
        place[tokens == eos] = 2 * MAX_PARTS
        return tokens[np.lexsort((place, bar))]

    def name_tune(self, score: Score) -> tuple[Score, int | None]:
        """Return a score of a tune alone with the name of a part, and the index of that part.

        It is the voice, as chords soon follow on a tune of a piano. The instrument is not known if
        the track's name tells none, and its program is that of files without programs.
        """
        tracks = [track for track in score.tracks if len(track.notes)]
        names = [instrument.name.lower() for instrument in self._instruments]
        if len(tracks) != 1 or tracks[0].is_drum or TUNE not in names:
            return score, None
        tune, part = tracks[0], names.index(TUNE)
        is_unnamed = find_named(tune, self._instruments, self._words) is None
        if not (is_unnamed and tune.program == PIANO and is_line(tune.notes)):
            return score, None
        named = replace(tune, name=self._instruments[part].name)
        rule = f"{tune.name or 'the tune'} read as {named.name}"
        return replace(score, tracks=[named], repairs=[*score.repairs, rule]), part

    def keep_parts(
        self, score: Score, names: Sequence[str], first: int, end: int | None
    ) -> ConditioningTokens:
        report, lines, signatures = self.tokenizer.in_bars(score)
        ticks = relocate(np.array([first, end or 0]), report.tick_map)
        nearest_lines = np.abs(lines - report.grid(ticks)[:, None]).argmin(axis=1)
        start, stop = lines[nearest_lines].tolist()
        if first == 0:  # the silence before an upbeat is written, too
            start = 0
        score, rules = self._with_named_line(report.score, names)
        roles = [self.tokenizer.find_track(track) for track in score.tracks]
        leads, targets = self._leads_and_targets(score, roles, names)
        if end is not None and not score.key_signatures:  # that of all bars, not of the kept ones
            key = KeySignature(0, key_of(score).fifths)
            score = replace(score, key_signatures=[key])
        start_tick = round(start * score.ticks_per_beat / self.tokenizer.steps_per_beat)
        before = score.clip(0, start_tick).tracks
        tracks: list[Track] = []
        for track, role, earlier in zip(score.tracks, roles, before, strict=True):
            is_kept = role is not None and leads[role]
            tracks.append(track if is_kept else earlier)
        ids = self.lead(self.tokenizer.encode(replace(score, tracks=tracks)), leads)[:-1]
        bar_tokens = self._families["Bar"].start + signatures
        bars = self._split_bars(ids)
        bars_of_all_parts = self._split_bars(self.lead(self.tokenizer.encode(score), leads)[:-1])
        last = len(bars_of_all_parts) if end is None else int(np.searchsorted(lines, stop))
        following = bars_of_all_parts[last : last + NUM_FOLLOWING_BARS]
        bars += [bar_tokens[i : i + 1] for i in range(len(bars), last)]
        conditioning: list[int] = []
        for bar, line in zip(bars[:last], lines.tolist(), strict=False):
            conditioning += bar.tolist()
            if line >= start:
                conditioning.append(-1)
        conditioning.append(bar_tokens[min(last, len(bar_tokens) - 1)])  # ends the last bar
        ids, stop = np.array(conditioning), int(lines[last])
        following_ids = np.concatenate([NO_TOKENS, *following])
        return ConditioningTokens(
            ids, roles, targets, start, stop, report.tick_map, rules, following_ids
        )

    def _split_bars(self, tokens: IntArray) -> list[IntArray]:
        """Return the ids of each bar."""
        return np.split(tokens, np.flatnonzero(within(tokens, self._families["Bar"])))[1:]

    def _with_named_line(self, score: Score, names: Sequence[str]) -> tuple[Score, list[str]]:
        """Return the score with the name of a part for its only tune, and what was read so.

        That is done if one part is to be kept of which the score has no notes. The tune is the only
        pitched track, or the only one without a name that tells a part, and it is a line.
        """
        known = {instrument.name.lower(): instrument.name for instrument in self._instruments}
        part = known.get(names[0].lower()) if len(names) == 1 else None
        sounding = [i for i, track in enumerate(score.tracks) if len(track.notes)]
        found = [self.tokenizer.find_track(score.tracks[i]) for i in sounding]
        if part is None or [*known.values()].index(part) in found:
            return score, []
        pitched = [i for i in sounding if not score.tracks[i].is_drum]
        unnamed = [
            i
            for i in pitched
            if find_named(score.tracks[i], self._instruments, self._words) is None
        ]
        candidates = pitched if len(pitched) == 1 else unnamed
        lines = [i for i in candidates if is_line(score.tracks[i].notes)]
        if len(lines) != 1:
            return score, []
        tracks = [*score.tracks]
        tune = tracks[lines[0]]
        tracks[lines[0]] = replace(tune, name=part)
        return replace(score, tracks=tracks), [f"{tune.name or 'the tune'} read as {part}"]

    def _leads_and_targets(
        self, score: Score, roles: Sequence[int | None], names: Sequence[str]
    ) -> tuple[list[bool], list[int]]:
        """Return whether each part is kept, chords among them, and the target parts.

        Raises:
            ParameterError: the score has no notes of a named part.
        """
        known = [instrument.name.lower() for instrument in self._instruments]
        asked = [name.lower() for name in names]
        played = {
            role
            for track, role in zip(score.tracks, roles, strict=True)
            if role is not None and len(track.notes)
        }
        leads = [part in played and name in asked for part, name in enumerate(known)]
        if sum(leads) < len(asked):
            of_piece = ", ".join(known[part] for part in sorted(played))
            expected = f"expected some of its parts: {of_piece}"
            if {*asked} <= {*known}:
                expected += f"; name the track of a tune {asked[0].capitalize()}"
            raise ParameterError("keep", ",".join(names), expected)
        targets = [part for part in sorted(played) if not leads[part]]
        if not targets:
            targets = [part for part in range(len(known)) if not leads[part]][:1]
        if self.tokenizer.chords:
            leads.append(False)
        return leads, targets
