"""Songs in other orders than that of the encoding: parts that lead, kept parts, and gaps."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi import Score, Track
from musicgen.midi.score import is_line
from musicgen.tokenization.augmentation import Rng
from musicgen.tokenization.bars import InBars
from musicgen.tokenization.base import NO_TOKENS, NUM_FOLLOWING_BARS, ConditioningTokens
from musicgen.tokenization.constraints import FREE
from musicgen.tokenization.gaps import FUTURE_BARS
from musicgen.tokenization.grammar import latest
from musicgen.tokenization.instruments import find_named
from musicgen.tokenization.quantization import relocate
from musicgen.tokenization.vocabulary import IntArray, within

TUNE = "voice"  # name of the part for a lone melody
MAX_PARTS = 8  # with the chords; there are 2 to the power of their number orders

_SINGLE_PROBABILITY = 0.5  # of the crops in which parts lead; in the others any set leads
_MOST_ADDED = 8  # tokens that a gap's order adds: a header, two marks


class PartOrders(InBars):
    """The orders of the parts of a bar, and of the bars of a gap, see `Songs`.

    Attributes:
        words: words in the names of tracks that each part takes.
        part_names: in lower case.
        lead_probability, gap_probability: see `Songs`.
    """

    words: Sequence[Sequence[str]]
    part_names: Sequence[str]
    lead_probability: float
    gap_probability: float

    def rearrange(self, window: IntArray, rng: Rng) -> IntArray:
        leads = self._draw_leads(window, rng)
        if not self.gap_probability or rng.random() >= self.gap_probability:
            return window if leads is None else self.lead(window, leads)
        lines = np.flatnonzero(within(window, self.families["Bar"]))
        lines = lines[lines <= len(window) - _MOST_ADDED]  # so that the crop is no longer
        if len(lines) < 3:
            return window
        num_future = int(rng.integers(1, min(FUTURE_BARS, len(lines) - 2) + 1))
        gap_end = len(lines) - 1 - num_future
        before = self._in_order(window[: lines[gap_end]], leads)
        future = self.future(window[: lines[-1]], gap_end, leads)
        return np.concatenate([future, before, window[lines[gap_end] :][:1]])

    def _draw_leads(self, window: IntArray, rng: Rng) -> list[bool] | None:
        """Return whether each part leads in a training crop; None: the parts have one order."""
        if rng.random() >= self.lead_probability:
            return None
        ids = self.families["Part"]
        is_part = within(window, ids[: len(self.instruments)])
        present = np.unique(window[is_part]) - ids.start
        leads = np.isin(np.arange(len(ids)), rng.permutation(present)[:1])
        if rng.random() < _SINGLE_PROBABILITY:
            leads = rng.random(len(ids)) < 0.5
        return leads.tolist()

    def future(self, tokens: IntArray, bar: int, leads: Sequence[bool] | None) -> IntArray:
        """Return the first ids of a gap's order: up to eight bars from a bar on, between marks.

        Without bars, or without marks in the vocabulary, there are none.

        Args:
            tokens: whole bars in the order of the encoding, without EOS. [L]
            leads: whether each part leads; None: none does.
        """
        marks, lines = self.families["Gap"], np.flatnonzero(within(tokens, self.families["Bar"]))
        if not marks or bar >= len(lines):
            return NO_TOKENS
        stop = np.append(lines, len(tokens))[bar : bar + FUTURE_BARS + 1][-1]
        first = lines[bar]
        bars = self.crops.with_header(tokens[first:stop], tokens[:first])
        return np.concatenate([marks[:1], self._in_order(bars, leads), marks[1:]])

    def lead(self, tokens: IntArray, parts: Sequence[bool]) -> IntArray:
        """Return ids [L] with some parts before the others in each bar.

        Without EOS the last bar may be incomplete, and is left out. -> [<= L].

        Args:
            parts: whether each part leads, chords among them.
        """
        if tokens[-1] != self.families["EOS"].start:
            bars = np.flatnonzero(within(tokens, self.families["Bar"]))
            if len(bars) < 2:
                return tokens
            tokens = tokens[: bars[-1]]
        return self._in_order(tokens, parts)

    def _in_order(self, tokens: IntArray, leads: Sequence[bool] | None) -> IntArray:
        """Return ids of whole bars [L] with some parts before the others; None: as they are."""
        if leads is None:
            return tokens
        is_bar, is_part = (within(tokens, self.families[name]) for name in ("Bar", "Part"))
        part = np.where(is_part, tokens - self.families["Part"].start, -1)  # -1: the header
        order = np.append(self.places + MAX_PARTS * ~np.array(leads), -2)  # the header comes first
        place = order[latest(-1, is_bar | is_part, part)]
        place[tokens == self.families["EOS"].start] = 2 * MAX_PARTS
        return tokens[np.lexsort((place, np.cumsum(is_bar)))]

    def tells_part(self, track: Track) -> bool:
        """Return whether the name of a track tells its part, or that it has drums."""
        return track.is_drum or bool(find_named(track, self.instruments, self.words))

    def with_name(self, score: Score, index: int, part: int) -> Score:
        """Return a score whose track at an index has the name of a part."""
        tracks, name = [*score.tracks], self.instruments[part].name
        rule = f"{tracks[index].name or 'the tune'} read as {name}"
        tracks[index] = replace(tracks[index], name=name)
        return replace(score, tracks=tracks, repairs=[*score.repairs, rule])

    def keep_parts(
        self,
        score: Score,
        keep: Sequence[str],
        first: int,
        end: int | None,
        write: Sequence[str] = (),
    ) -> ConditioningTokens:
        """Return the tokens of a song and the bars to write, see `Tokenizer.keep_parts`.

        With an end, the bars after it come first, in the order of `gaps`.
        """
        report, lines, signatures = self.in_bars(score)
        ticks = relocate(np.array([first, end or 0]), report.tick_map)
        nearest_lines = np.abs(lines - report.grid(ticks)[:, None]).argmin(axis=1)
        start, stop = lines[nearest_lines].tolist()
        start = start if first else 0  # the silence before an upbeat is written, too
        score = self._with_named_line(report.score, keep)
        rules = score.repairs[len(report.score.repairs) :]
        roles = self.find_tracks(score.tracks)
        targets = self._targets(score, roles, keep, write)
        rules += self._shared_parts(score, roles, targets if write else [])
        sounding = {
            role for role, track in zip(roles, score.tracks, strict=True) if len(track.notes)
        }
        leads = [part in sounding - {*targets} for part in range(len(self.families["Part"]))]
        start_tick = round(start * score.ticks_per_beat / self.steps_per_beat)
        tracks = [
            track if role is not None and leads[role] else earlier
            for track, role, earlier in zip(
                score.tracks, roles, score.clip(0, start_tick).tracks, strict=True
            )
        ]
        bars = self._split_bars(self.lead(self.encode(replace(score, tracks=tracks)), leads)[:-1])
        whole = self.encode(score)[:-1]
        whole_bars = self._split_bars(self._in_order(whole, leads))
        last = len(whole_bars) if end is None else int(np.searchsorted(lines, stop))
        bar_tokens = self.families["Bar"].start + signatures
        bars += [bar_tokens[i : i + 1] for i in range(len(bars), last)]
        # Keys, and where phrases end, are those of all parts.
        bars[: len(whole_bars)] = map(self._with_header, bars, whole_bars)
        ids = self.future(whole, last, leads).tolist()
        gap_end = int(stop) if ids else None
        for bar, line in zip(bars[:last], lines.tolist(), strict=False):
            ids += bar.tolist()
            if line >= start:
                ids.append(FREE)
        ids.append(bar_tokens[min(last, len(bar_tokens) - 1)])  # ends the last bar
        following = np.concatenate([NO_TOKENS, *whole_bars[last : last + NUM_FOLLOWING_BARS]])
        return ConditioningTokens(
            np.array(ids),
            roles,
            targets,
            start,
            int(lines[last]),
            report.tick_map,
            rules,
            gap_end,
            following,
        )

    def _with_header(self, bar: IntArray, other: IntArray) -> IntArray:
        """Return the ids of a bar with the header of another one."""
        parts, others = (np.append(within(x, self.families["Part"]), True) for x in (bar, other))
        return np.concatenate([other[: np.argmax(others)], bar[np.argmax(parts) :]])

    def _split_bars(self, tokens: IntArray) -> list[IntArray]:
        """Return the ids of each bar of whole bars."""
        return np.split(tokens, np.flatnonzero(within(tokens, self.families["Bar"])))[1:]

    def _with_named_line(self, score: Score, names: Sequence[str]) -> Score:
        """Return the score with the name of a part for its only tune.

        That is done to keep a single part without notes in the score. The tune is the only pitched
        track, or the only one without a name that tells a part, and it is a line. Without parts to
        keep it is a tune alone, see `name_tune`.
        """
        if not names:
            return self.name_tune(score)[0]
        if len(names) != 1 or names[0].lower() not in self.part_names:
            return score
        part = self.part_names.index(names[0].lower())
        sounding = [i for i, track in enumerate(score.tracks) if len(track.notes)]
        roles = self.find_tracks(score.tracks)
        if part in [roles[i] for i in sounding]:
            return score
        tunes = [i for i in sounding if not score.tracks[i].is_drum]
        if len(tunes) > 1:
            tunes = [i for i in tunes if not self.tells_part(score.tracks[i])]
        lines = [i for i in tunes if is_line(score.tracks[i].notes)]
        return self.with_name(score, lines[0], part) if len(lines) == 1 else score

    def _targets(
        self,
        score: Score,
        roles: Sequence[int | None],
        keep: Sequence[str],
        write: Sequence[str],
    ) -> list[int]:
        """Return the parts to be written: those of `write`, else those not in `keep`.

        Raises:
            ParameterError: the score has no notes of a part to keep, or there is no part to write.
        """
        if write:
            return sorted({self._part_named(score, roles, name) for name in write})
        known, asked = self.part_names, [name.lower() for name in keep]
        played = sorted(
            {
                role
                for track, role in zip(score.tracks, roles, strict=True)
                if role is not None and len(track.notes)
            }
        )
        kept = [part for part in played if known[part] in asked]
        if len(kept) < len(asked):
            names = ", ".join(known[part] for part in played)
            expected = f"expected some of its parts: {names}"
            if (part := self.name_tune(score)[1]) is not None:
                expected = f"expected {known[part]}, as the piece is a tune alone"
            elif not played:
                expected = f"expected a piece with tracks of {', '.join(known)}"
            elif {*asked} <= {*known}:
                expected += f"; name the track of a tune {asked[0].capitalize()}"
            raise ParameterError("keep", ",".join(keep), expected)
        others = [part for part in range(len(known)) if part not in kept]
        if TUNE in known:  # a song is accompanied by one part, a tune of an ensemble by all
            others = others[:1]
        if not others:
            expected = "expected fewer parts: nothing is left to write"
            raise ParameterError("keep", ",".join(keep), expected)
        return [part for part in played if part not in kept] or others

    def _shared_parts(
        self, score: Score, roles: Sequence[int | None], parts: Sequence[int]
    ) -> list[str]:
        """Return a line for each of some parts that several tracks have, which are all written."""
        found = []
        for part in parts:
            pairs = zip(score.tracks, roles, strict=True)
            names = _names(track for track, role in pairs if role == part)
            if len(names) > 1:
                found.append(f"{', '.join(names)} written, as one part of the model")
        return found

    def _part_named(self, score: Score, roles: Sequence[int | None], name: str) -> int:
        """Return the part with a name, or of the track with that name.

        Raises:
            ParameterError: there is none, or other tracks are of the same part.
        """
        if name.lower() in self.part_names:
            return self.part_names.index(name.lower())
        pairs = [*zip(score.tracks, roles, strict=True)]
        of_name = [i for i, (track, _) in enumerate(pairs) if name.lower() in track.name.lower()]
        found = {roles[i] for i in of_name} - {None}
        if len(found) != 1:
            tracks = (track.name.lower() for track, role in pairs if role is not None)
            names = dict.fromkeys([*self.part_names, *tracks])
            expected = (
                f"expected parts and bars, such as bass 5-8, of {', '.join(filter(None, names))}"
            )
            raise ParameterError("fill", name, expected)
        (part,) = found
        assert part is not None
        others = _names(
            track for i, (track, role) in enumerate(pairs) if role == part and i not in of_name
        )
        if others:
            part_name = self.instruments[part].name
            raise ParameterError(
                "fill",
                name,
                f"{', '.join(others)} and it are one part of the model, {part_name}; "
                f"fill={part_name.lower()} writes all of them",
            )
        return part


def _names(tracks: Iterable[Track]) -> list[str]:
    """Return what messages call the tracks that have notes."""
    return [track.name or "a track without a name" for track in tracks if len(track.notes)]
