"""What tokenizers with tokens of bars have in common."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import (
    DEFAULT_VELOCITY,
    NOTE,
    TEMPO,
    TICKS_PER_BEAT,
    KeySignature,
    Marker,
    Score,
    TimeSignature,
    Track,
)
from musicgen.tokenization.base import Losses, Tokenizer
from musicgen.tokenization.chords.symbols import CHORDS, chord_index
from musicgen.tokenization.grammar import latest
from musicgen.tokenization.groove2groove.instruments import Instrument
from musicgen.tokenization.quantization import find_changes, nearest_bin, parse_bins
from musicgen.tokenization.remi.metre import Metres, in_whole_bars
from musicgen.tokenization.vocabulary import IntArray, number_tokens, within
from musicgen.validation import check_bool, check_int

FIFTHS = range(-5, 7)  # keys that sound the same are one


class InBars(Tokenizer):
    """Bars of beats, and what their tokens mean; a vocabulary may lack some of the families.

    A `Bar`, one for each metre, is followed by changes of `Key`, `Tempo` and `Chord`, by `Part`s,
    and by notes: `Pitch` or `Drum`, `Velocity`, and the `Duration` of a pitch. A `Beat` is a grid
    step of its bar; a `Part` begins at the bar's first.

    Attributes:
        header: families of which a crop's first bar has the tokens in force, in this order; after
            the last Part, of chords, and the first Beat.
        instruments: the parts; a single one needs no tokens.
        pitches, velocities, tempi: the values of the tokens; without velocities all are equal.
        durations: in ticks of decoded scores. [num_durations]
    """

    header: tuple[str, ...]
    instruments: Sequence[Instrument]
    drums: ClassVar[range] = range(0)
    tempi: Sequence[int]
    durations: IntArray

    def __init__(
        self,
        time_signatures: Sequence[str],
        pitch_range: Sequence[int],
        velocity_bins: Sequence[int] | None,
        tempo_bins: Sequence[int] | None,
        chords: bool,
        max_bars: int,
        max_transposition: int,
    ) -> None:
        check_bool("chords", chords)
        check_int("max_bars", max_bars)
        check_int("max_transposition", max_transposition, 0)
        self.metres = Metres(time_signatures, self.steps_per_beat)
        self.pitches = parse_bins("pitch_range", pitch_range, 0, 127, step=1)
        self.velocities = parse_bins("velocity_bins", velocity_bins, 1, 127)
        self.time_signatures, self.pitch_range = time_signatures, pitch_range
        self.velocity_bins, self.tempo_bins = velocity_bins, tempo_bins
        self.chords, self.max_bars, self.max_transposition = chords, max_bars, max_transposition

    def number_tokens(self, order: Sequence[str], **values: Sequence[Any]) -> None:
        """Number the tokens of bars and of the end, then of families in this order.

        Args:
            values: of families that others do not have; others that are not there have none.
        """
        values |= {
            "Beat": range(self.metres.lengths.max()),
            "Tempo": self.tempi,
            "Chord": CHORDS if self.chords else (),
            "Pitch": self.pitches,
            "Velocity": self.velocities,
        }
        families = {"Bar": self.metres.tokens, "EOS": ["EOS"]}
        families |= {name: [f"{name}_{each}" for each in values.get(name, ())] for name in order}
        self.vocabulary, self.families = number_tokens(families)

    def start_tokens(self) -> IntArray:
        return np.array([self.families["Bar"].start])

    def bar_length(self, score: Score) -> int:
        return self._steps(score.first_metre())

    def in_bars(self, score: Score) -> tuple[Losses, IntArray, IntArray]:
        """Return the losses of a score, which has whole bars there, and `Metres.bars`."""
        losses = in_whole_bars(score, self.steps_per_beat, self._steps)
        return losses, *self.metres.bars(self.max_bars, losses)

    def _steps(self, metre: TimeSignature) -> int:
        return int(self.metres.lengths[self.metres.find(metre[1:])])

    def times(self, tokens: IntArray) -> IntArray:
        """Return the grid step of each id: that of its Bar, Part or the last Beat. [L] -> [L]."""
        tokens = np.asarray(tokens, dtype=np.int64)
        is_bar, is_beat, is_part = (
            within(tokens, self.families[name]) for name in ("Bar", "Beat", "Part")
        )
        lengths = self.metres.lengths[tokens[is_bar] - self.families["Bar"].start]
        # Before the first bar, and at its beginning, the time is 0.
        starts = np.concatenate([[0, 0], np.cumsum(lengths[:-1])])
        beat = np.where(is_beat, tokens - self.families["Beat"].start, 0)
        return starts[np.cumsum(is_bar)] + latest(0, is_bar | is_beat | is_part, beat)

    def bar_starts(self, tokens: IntArray, bar_length: int) -> IntArray:
        starts = self.times(tokens)[within(tokens, self.families["Bar"])]
        return starts if len(starts) else np.zeros(1, np.int64)

    def crop_starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        bars = np.flatnonzero(within(tokens, self.families["Bar"]))
        return np.stack([bars, np.zeros_like(bars)], axis=1)

    def with_header(self, window: IntArray, before: IntArray) -> IntArray:
        """Return ids [L] that begin with a bar, with what is in force there after those before."""
        single = {"Part": self.families["Part"].stop - 1, "Beat": self.families["Beat"].start}
        families = self.families | {name: range(i, i + 1) for name, i in single.items()}
        of_header = {i for name in self.header for i in families[name]}
        own = [*takewhile(of_header.__contains__, window[1:].tolist())]
        known = np.array([*before, *own], np.int64)
        header: list[int] = []
        for name in reversed(self.header):
            if name in single:  # only before another
                kept = [single[name]] * (len(header) > 0 or single[name] in own)
            else:
                kept = known[within(known, families[name])][-1:].tolist()
            header = kept + header
        return np.concatenate([window[:1], np.array(header, np.int64), window[1 + len(own) :]])

    def chord_changes(self, losses: Losses) -> tuple[IntArray, IntArray]:
        """Return grid step and index in `CHORDS` of each change of chord before the end."""
        markers = losses.score.markers if self.chords else []
        tick = np.array([marker.tick for marker in markers], dtype=np.int64)
        found = [chord_index(marker.text) for marker in markers]
        chord = np.array([-1 if index is None else index for index in found], dtype=np.int64)
        at, named = losses.grid(tick), chord >= 0
        losses.drop("markers naming no chord", at[~named])
        losses.no_chords_until = min(at[named], default=np.inf if self.chords else 0)
        step, inside = losses.inside(tick[named], "chords")
        return find_changes(step, chord[named][inside])

    def tempi_inside(self, losses: Losses, by_ratio: bool = False) -> tuple[IntArray, IntArray]:
        """Return grid step and index in `tempi` of each tempo before the end."""
        tempos = losses.score.tempos[: len(losses.score.tempos) * bool(self.tempi)]
        step, inside = losses.inside(tempos["tick"], "tempi")
        return step, nearest_bin(tempos["bpm"][inside], self.tempi, by_ratio)

    def decode(self, tokens: IntArray) -> Score:
        """Return a track for each part, also without notes, with keys, tempi, chords and metres.

        Time signatures are omitted where they are the default of MIDI files, 4/4.
        """
        tokens = self.until_end(tokens)
        ticks = self.times(tokens) * (TICKS_PER_BEAT // self.steps_per_beat)
        rank = {name: tokens - ids.start for name, ids in self.families.items()}
        bar, key, tempo, chord, part, pitch, drum = (
            within(tokens, self.families[name])
            for name in ("Bar", "Key", "Tempo", "Chord", "Part", "Pitch", "Drum")
        )

        def pairs(chosen: NDArray[np.bool_], name: str) -> Iterator[tuple[int, int]]:
            return zip(ticks[chosen].tolist(), rank[name][chosen].tolist(), strict=True)

        keys = [KeySignature(tick, FIFTHS[index]) for tick, index in pairs(key, "Key")]
        markers = [Marker(tick, CHORDS[index]) for tick, index in pairs(chord, "Chord")]
        metres = self.metres.time_signatures(ticks[bar], rank["Bar"][bar])
        tempos = np.empty(int(tempo.sum()), TEMPO)
        tempos["tick"], tempos["bpm"] = ticks[tempo], np.array(self.tempi)[rank["Tempo"][tempo]]

        # Whether each token, and the next one or two, are of the rest of a note.
        velocity, duration = (
            np.append(within(tokens, self.families[name]), [False] * 2)
            for name in ("Velocity", "Duration")
        )
        if self.velocities:
            pitch, drum = pitch & velocity[1:-1], drum & velocity[1:-1]
        num_more = 1 + bool(self.velocities)
        at = np.flatnonzero(pitch & duration[num_more:][: len(tokens)] | drum)
        is_drum = drum[at]
        notes = np.empty(len(at), NOTE)
        notes["onset"] = ticks[at]
        drums, pitches = rank["Drum"][at] + self.drums.start, rank["Pitch"][at] + self.pitches.start
        notes["pitch"] = np.where(is_drum, drums, pitches)
        notes["duration"] = TICKS_PER_BEAT // self.steps_per_beat
        notes["velocity"] = DEFAULT_VELOCITY
        notes["duration"][~is_drum] = self.durations[rank["Duration"][at[~is_drum] + num_more]]
        if self.velocities:
            notes["velocity"] = np.array(self.velocities)[rank["Velocity"][at + 1]]
        part_of = latest(0, part, rank["Part"])[at]
        tracks = [
            Track(part.name, part.program, part.is_drum, notes[part_of == i])
            for i, part in enumerate(self.instruments)
        ]
        return Score(TICKS_PER_BEAT, tracks, tempos, metres, markers, key_signatures=keys)


def arranged(events: Sequence[tuple[Any, ...]], num_keys: int) -> IntArray:
    """Return the ids of events, in ascending order of the events' keys. -> [L].

    Args:
        events: kinds of events; of each the keys, then one to three ids, -1 for none.
    """
    columns = (np.broadcast_arrays(*event, -1, -1)[: num_keys + 3] for event in events)
    table = np.concatenate([np.stack(each, axis=1) for each in columns])
    tokens = table[np.lexsort(table[:, :num_keys].T[::-1]), num_keys:].ravel()
    return tokens[tokens >= 0]
