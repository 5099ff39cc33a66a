"""Songs: bars of parts, of which those that stand earlier in a bar can be given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from musicgen.errors import ParameterError
from musicgen.midi import TICKS_PER_BEAT, KeySignature, Score, Track, pitched_notes
from musicgen.midi.key import Key, find_key
from musicgen.tokenization.bars import FIFTHS, InBars, arranged
from musicgen.tokenization.base import KeptParts, Losses, Rng
from musicgen.tokenization.grammar import latest
from musicgen.tokenization.groove2groove.instruments import find_by_words, instruments_of
from musicgen.tokenization.quantization import (
    GridNotes,
    find_changes,
    in_time,
    nearest_bin,
    relocate,
    remove_overlaps,
)
from musicgen.tokenization.songs.grammar import SongsGrammar, part_order
from musicgen.tokenization.vocabulary import IntArray, within
from musicgen.validation import check_float

POSITIONS_PER_BEAT = 12
# In positions: the printed values with dots, doubled dots and triplets; then ties.
DURATIONS = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 18, 20, 21, 24, 27, 28, 30, 32, 33),
    *(36, 40, 42, 45, 48, 54, 60, 66, 72, 84, 96, 108, 120, 144, 168, 192),
)
MAX_PARTS = 8  # the orders are 2 to the power of their number


class Songs(InBars):
    """Bars: metre; key and tempo where they change; then part after part; EOS at the end.

        Bar_3/4 Key_-3 Tempo_95 Part_Chords Beat_0 Chord_C_m Part_Voice Beat_0 Pitch_60 Duration_12
            … Part_Piano Beat_0 Pitch_48 Duration_24 Pitch_55 Duration_24 Beat_12 …

    A grid step is a twelfth of a quarter. Onsets and ends are rounded to steps, durations, which
    may pass bar lines, and tempi to the nearest by ratio. A part has each pitch once at a time.
    Drums have no durations. The key, in fifths, is the score's signature, else found from its
    notes. Keys and tempi are of whole bars, the last in each; chords come from markers.

    Pieces are encoded with the chords, where they change, as the first part, and then the others in
    the order of `parts`. In training crops other parts may lead, in all of their bars, from which a
    model learns to write the chords and the other parts to them.

    Args:
        parts: name, program and drum flag of each, the programs that it takes, and words in the
            names of tracks that it takes, see `find_by_words`.
        time_signatures: the metres of the vocabulary, see `Metres`.
        pitch_range: lowest and highest MIDI pitch.
        velocity_bins: lowest, highest and step; None: no Velocity tokens.
        tempo_bins: lowest and highest in quarters a minute, and how many at equal ratios; None: no
            Tempo tokens.
        chords: whether the vocabulary has Chord tokens, and a part of them.
        max_bars: maximum number of bars; later events are dropped.
        max_transposition: training crops are shifted by up to this many semitones up or down.
        lead_probability: share of the crops in which any part that they have leads, or in half
            of these any set of parts, chords among them.
    """

    name: ClassVar[str] = "songs"
    note_families = ("Pitch", "Drum")
    steps_per_beat = POSITIONS_PER_BEAT
    drums = range(27, 88)  # General MIDI 2
    durations = np.array(DURATIONS) * (TICKS_PER_BEAT // POSITIONS_PER_BEAT)

    def __init__(
        self,
        *,
        parts: Sequence[Mapping[str, Any]],
        time_signatures: Sequence[str],
        pitch_range: Sequence[int] = (21, 108),
        velocity_bins: Sequence[int] | None = None,
        tempo_bins: Sequence[int] | None = (30, 240, 37),
        chords: bool = True,
        max_bars: int = 4096,
        max_transposition: int = 6,
        lead_probability: float = 0,
    ) -> None:
        bins = pitch_range, velocity_bins, tempo_bins
        super().__init__(time_signatures, *bins, chords, max_bars, max_transposition)
        check_float("lead_probability", lead_probability, maximum=1)
        self.lead_probability = lead_probability
        self.parts = [dict(part) for part in parts]
        self._words = [part.get("words", ()) for part in self.parts]
        self.instruments = instruments_of(
            [{name: part[name] for name in part if name != "words"} for part in self.parts]
        )
        self._is_drum = np.array([part.is_drum for part in self.instruments])
        if len(self.parts) + chords > MAX_PARTS:
            raise ParameterError("parts", len(self.parts), f"expected up to {MAX_PARTS - chords}")
        self.header = ("Key", "Tempo", *("Part", "Beat", "Chord")[: 3 * chords])
        self.tempi = [] if tempo_bins is None else _equal_ratios(tempo_bins)
        names = [part.name for part in self.instruments] + ["Chords"] * chords
        order = ("Beat", "Key", "Tempo", "Chord", "Part", "Pitch", "Drum", "Velocity", "Duration")
        own = {"Key": FIFTHS, "Part": names, "Drum": self.drums, "Duration": DURATIONS}
        self.number_tokens(order, **own)

    def grammar(self) -> SongsGrammar:
        return SongsGrammar(self)

    def find_track(self, track: Track) -> int | None:
        return find_by_words(track, self.instruments, self._words)

    def in_time(self, score: Score) -> Score:
        return in_time(score)

    def encode_with_losses(self, score: Score) -> tuple[IntArray, Losses]:
        losses, lines, metres = self.in_bars(score)
        score = losses.score
        notes = self._notes(losses)
        part, pitch = np.divmod(notes.voice, 128)
        chord_step, chord = self.chord_changes(losses)
        keys = np.array(score.key_signatures, np.int64).reshape(-1, 2)
        key_step, inside = losses.inside(keys[:, 0], "key signatures")
        key = keys[inside, 1]
        tempo_step, tempo = self.tempi_inside(losses, by_ratio=True)

        def bar_of(steps: IntArray) -> IntArray:
            return np.searchsorted(lines, steps, side="right") - 1

        def at(steps: IntArray, place: Any) -> tuple[IntArray, Any, IntArray]:
            return bar_of(steps), place, steps

        def beat(steps: IntArray) -> IntArray:
            return self.families["Beat"].start + steps - lines[bar_of(steps)]

        key_bar, key = find_changes(bar_of(key_step), (key - FIFTHS.start) % 12)
        key_bar[:1] = 0  # also of the bars before the first signature
        tempo_bar, tempo = find_changes(bar_of(tempo_step), tempo)
        bars = [bar_of(notes.onset), bar_of(chord_step), key_bar, tempo_bar]
        num_bars = int(np.concatenate(bars).max(initial=-1)) + 1
        if num_bars and not len(key):
            found = find_key(pitched_notes(score)) or Key(0, major=True)
            key_bar, key = np.zeros(1, np.int64), np.array([(found.fifths - FIFTHS.start) % 12])
        drum = self._is_drum[part]
        moments = np.unique(np.stack([part, notes.onset]), axis=1)
        begun = np.unique(np.stack([bar_of(notes.onset), part]), axis=1)
        first = {name: ids.start for name, ids in self.families.items()}
        keys = np.where(drum, first["Drum"] - self.drums.start, first["Pitch"] - self.pitches.start)
        velocity = first["Velocity"] + notes.velocity if self.velocities else -1
        duration = np.where(drum, -1, first["Duration"] + notes.duration)
        # Bar, place in it, step, place among the events there, and up to three ids.
        events: list[tuple[Any, ...]] = [
            (np.arange(num_bars), 0, 0, 0, first["Bar"] + metres[:num_bars]),
            (key_bar, 1, 0, 0, first["Key"] + key),
            (tempo_bar, 2, 0, 0, first["Tempo"] + tempo),
            (np.unique(bar_of(chord_step)), 3, -1, 0, self.families["Part"].stop - 1),
            (*at(chord_step, 3), 0, beat(chord_step), first["Chord"] + chord),
            (begun[0], 4 + begun[1], -1, 0, first["Part"] + begun[1]),
            (*at(moments[1], 4 + moments[0]), 0, beat(moments[1])),
            (*at(notes.onset, 4 + part), 1 + pitch, keys + pitch, velocity, duration),
        ]
        return np.append(arranged(events, num_keys=4), first["EOS"]), losses

    def _notes(self, losses: Losses) -> GridNotes:
        """Return the notes by 128 part + pitch, with indices of the other values."""
        found = [self.find_track(track) for track in losses.score.tracks]
        notes, part = losses.numbered_notes(found, "notes of other instruments")
        is_drum, pitch = self._is_drum[part], notes["pitch"]
        known = np.where(is_drum, np.isin(pitch, self.drums), np.isin(pitch, self.pitches))
        losses.drop("notes of other pitches", losses.grid(notes["onset"][~known]))
        onset, inside = losses.inside(notes["onset"][known])
        notes, part = notes[known][inside], part[known][inside]
        is_drum = self._is_drum[part]
        duration = losses.grid(notes["onset"] + notes["duration"]) - onset
        longest = f"notes longer than {DURATIONS[-1] // POSITIONS_PER_BEAT} beats"
        losses.clip(longest, onset[~is_drum & (duration > DURATIONS[-1])])
        nearest = np.array(DURATIONS)[nearest_bin(duration, DURATIONS, by_ratio=True)]
        duration = np.where(is_drum, 1, nearest)
        velocity = nearest_bin(notes["velocity"], self.velocities)
        columns = GridNotes(128 * part + notes["pitch"], onset, duration, velocity)
        kept = remove_overlaps(columns, losses)
        return kept._replace(duration=np.searchsorted(DURATIONS, kept.duration, side="right") - 1)

    def _crop(
        self, tokens: IntArray, starts: IntArray, length: int, bar_length: int, rng: Rng | None
    ) -> IntArray:
        """Return a crop, which begins with the key, tempo and chord in force."""
        window = super()._crop(tokens, starts, length, bar_length, rng)
        return self.with_header(window, tokens[: starts[0, 0]])[:length]

    def arrange(self, window: IntArray, rng: Rng) -> IntArray:
        if rng.random() < self.lead_probability:
            ids = self.families["Part"]
            present = np.unique(window[within(window, ids[: len(self.parts)])]) - ids.start
            leads = np.isin(np.arange(len(ids)), rng.permutation(present)[:1])
            if rng.random() < 0.5:
                leads = rng.random(len(ids)) < 0.5
            window = self.lead(window, leads.tolist())
        return window

    def lead(self, tokens: IntArray, parts: Sequence[bool]) -> IntArray:
        """Return ids [L] in the order in which, in each bar, some parts come before the others.

        The last bar is left out if it may be incomplete: at the end is no EOS. -> [<= L].
        """
        bars = np.flatnonzero(within(tokens, self.families["Bar"]))
        if tokens[-1] != self.families["EOS"].start:
            if len(bars) < 2:
                return tokens
            tokens = tokens[: bars[-1]]
        bar = np.cumsum(within(tokens, self.families["Bar"]))
        part = within(tokens, self.families["Part"])
        begins = part | (np.diff(bar, prepend=0) > 0)
        own = np.where(part, tokens - self.families["Part"].start, -1)
        section = latest(-1, begins, own)
        order = part_order(len(self.parts), self.chords) + MAX_PARTS * ~np.array(parts)
        place = np.where(section < 0, -2, order[section])
        place[tokens == self.families["EOS"].start] = 2 * MAX_PARTS
        return tokens[np.lexsort((place, bar))]

    def keep_parts(
        self, score: Score, names: Sequence[str], first: int, end: int | None
    ) -> KeptParts:
        losses, lines, metres = self.in_bars(score)
        near = losses.grid(relocate(np.array([first, end or 0]), losses.places))
        start, stop = lines[np.abs(lines - near[:, None]).argmin(axis=1)].tolist()
        start, score = first and start, losses.score  # silence before an upbeat is written, too
        known, asked = [x.name.lower() for x in self.instruments], [x.lower() for x in names]
        roles = [self.find_track(track) for track in score.tracks]
        pairs = [*zip(score.tracks, roles, strict=True)]
        played = sorted({i for track, i in pairs if i is not None and len(track.notes)})
        leads = [i in played and name in asked for i, name in enumerate(known)]
        leads += [False] * self.chords
        if sum(leads) < len(asked):
            expected = f"expected some of its parts: {', '.join(known[i] for i in played)}"
            raise ParameterError("keep", ",".join(names), expected)
        written = [i for i in played if not leads[i]]
        written = written or [i for i in range(len(known)) if not leads[i]][:1]
        if end is not None and not score.key_signatures:  # all bars tell it
            found = find_key(pitched_notes(score)) or Key(0, major=True)
            score = replace(score, key_signatures=[KeySignature(0, found.fifths)])
        before = score.clip(0, round(start * score.ticks_per_beat / POSITIONS_PER_BEAT)).tracks
        tracks = [
            track if i is not None and leads[i] else earlier
            for (track, i), earlier in zip(pairs, before, strict=True)
        ]
        ids = self.lead(self.encode(replace(score, tracks=tracks)), leads)[:-1]
        bars = self.families["Bar"].start + metres
        own = np.split(ids, np.flatnonzero(within(ids, self.families["Bar"])))[1:]
        last = int(within(self.encode(score), self.families["Bar"]).sum())
        last = last if end is None else int(np.searchsorted(lines, stop))
        own += [bars[i : i + 1] for i in range(len(own), last)]
        given: list[int] = []
        for bar, line in zip(own[:last], lines.tolist(), strict=False):
            given += [*bar, *[-1] * (line >= start)]
        given.append(bars[min(last, len(bars) - 1)])  # ends the last bar
        return KeptParts(np.array(given), roles, written, start, int(lines[last]), losses.places)


def _equal_ratios(bins: Sequence[int]) -> list[int]:
    """Return whole numbers from the first to the second, as many as the third."""
    low, high, number = bins
    values = np.geomspace(low, high, number).round().astype(int).tolist()
    if not 4 <= low <= high <= 1000 or len(set(values)) < number:
        expected = "expected [lowest, highest, number] within 4 and 1000, all different"
        raise ParameterError("tempo_bins", list(bins), expected)
    return values
