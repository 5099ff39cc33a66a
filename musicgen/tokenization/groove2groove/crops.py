"""Training crops of Groove2Groove, from which tracks are dropped and bars are cut out."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.tokenization.augmentation import Augmentation, Rng
from musicgen.tokenization.codec import Codec
from musicgen.tokenization.crops import Crops
from musicgen.tokenization.groove2groove.events import (
    NUM_KEYS,
    STEPS_PER_BEAT,
    NoteEvents,
    VoiceNotes,
)
from musicgen.tokenization.vocabulary import IntArray, within

Change = Callable[[VoiceNotes, int], tuple[VoiceNotes, int]]
"""Returns other notes of notes, and the last tick of these of the last tick of those."""


class GrooveCrops(Crops):
    """Crops of events, whose times count from the first bar of the crop."""

    def __init__(self, events: NoteEvents) -> None:
        self.events = events

    def starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        shifts = np.flatnonzero(within(tokens, self.events.families["TimeShift"]))
        ons = np.flatnonzero(tokens < self.events.num_voices)
        if not len(ons):
            return np.empty((0, 2), np.int64)
        times = self.events.shift_times(tokens[shifts])
        last_onset = int(self.events.times(tokens)[ons[-1]])
        bars = bar_length * np.arange(1, last_onset // bar_length + 1)
        # The first shift into a bar counts from the beat before it. The first bar needs no shift.
        entry = np.searchsorted(times, bars)
        before = np.concatenate([[0], times])[entry]
        beat = before - before % STEPS_PER_BEAT
        return np.insert(np.stack([shifts[entry], beat - bars], axis=1), 0, 0, axis=0)

    def crop(self, tokens: IntArray, starts: IntArray, length: int) -> IntArray:
        if not len(starts):
            return super().crop(tokens, starts, length)
        return self.changed_crop(tokens, starts, length)

    def changed_crop(
        self, tokens: IntArray, starts: IntArray, length: int, change: Change | None = None
    ) -> IntArray:
        """Return the crop from a bar on, of notes that may be changed. [<= length]"""
        start, offset = starts[0].tolist()
        stop, window = start, np.empty(0, np.int64)
        while len(window) < length and stop < len(tokens):
            # Half as many tokens again usually make up for what a change removes.
            stop = start + max(2 * (stop - start), length * 3 // 2)
            segment = tokens[start:stop].astype(np.int64)
            is_complete = stop >= len(tokens)
            window = self._encode_again(segment, offset, is_complete, change)
        return window[:length]

    def _encode_again(
        self, segment: IntArray, offset: int, is_complete: bool, change: Change | None
    ) -> IntArray:
        """Encode a segment from time 0, without the offs of notes that began before it.

        An incomplete segment is cut before its last time, at which events may be missing.
        """
        times = self.events.times(segment) + offset
        last = int(times[-1])
        notes = self.events.notes(segment, times, last)
        if change is not None:
            notes, last = change(notes, last)
        return self.events.tokens(notes, before=None if is_complete else last)


class GrooveAugmentation(Augmentation):
    """Random crops with fewer tracks and bars.

    Args:
        drop_track_probability: of dropping each track of a crop; one always stays.
        skip_bar_probability: of cutting each bar but the first out of a crop.
    """

    def __init__(
        self,
        codec: Codec,
        crops: GrooveCrops,
        max_transposition: int,
        drop_track_probability: float,
        skip_bar_probability: float,
    ) -> None:
        super().__init__(codec, crops, max_transposition)
        self.groove_crops, self.num_tracks = crops, crops.events.num_voices // NUM_KEYS
        self.drop_track_probability = drop_track_probability
        self.skip_bar_probability = skip_bar_probability

    def changed_crop(
        self, tokens: IntArray, starts: IntArray, length: int, bar_length: int, rng: Rng
    ) -> IntArray:
        # Tracks first: the same ones are dropped from whichever bar the crop begins at.
        draws = rng.random(self.num_tracks)
        # One more bar for notes that sound after the last onset.
        is_skipped = rng.random(len(starts) + 1) < self.skip_bar_probability
        is_skipped[0] = False
        dropout = _Dropout(draws, self.drop_track_probability, is_skipped, bar_length)
        return self.groove_crops.changed_crop(tokens, starts, length, dropout.apply)


class _Dropout(NamedTuple):
    """Random changes of a crop: tracks that are dropped, and bars that are cut out.

    Attributes:
        draws: a track whose draw is below `drop_probability` is dropped. [num_tracks]
        is_skipped: which bars are cut out, unless they contain all notes. [num_bars]
        bar_length: in grid steps.
    """

    draws: NDArray[np.float64]
    drop_probability: float
    is_skipped: NDArray[np.bool_]
    bar_length: int

    def apply(self, notes: VoiceNotes, last: int) -> tuple[VoiceNotes, int]:
        length, bar_of_onset = self.bar_length, notes.onset // self.bar_length
        # Later bars are as the last one; if no onset would stay, all bars do.
        bars = np.arange(last // length + 1)
        is_skipped = self.is_skipped[np.minimum(bars, len(self.is_skipped) - 1)]
        is_skipped = is_skipped & ~is_skipped[bar_of_onset].all()
        keep = ~is_skipped[bar_of_onset]
        keep &= ~self._dropped_tracks(notes.instrument[keep])[notes.instrument]
        begins = np.append(0, np.cumsum(~is_skipped)) * length

        def shift(time: IntArray) -> IntArray:
            """Return times after the cuts; those within a skipped bar are that of the cut."""
            bar = time // length
            return begins[bar] + np.where(is_skipped[bar], 0, time % length)

        kept = VoiceNotes(*(column[keep] for column in notes))
        kept = kept._replace(onset=shift(kept.onset), release=shift(kept.release))
        return kept, int(shift(np.array(last)))

    def _dropped_tracks(self, tracks: IntArray) -> NDArray[np.bool_]:
        """Return which tracks are dropped, by the tracks of the notes [N]. [num_tracks]"""
        is_dropped = self.draws < self.drop_probability
        is_present = np.bincount(tracks, minlength=len(self.draws)) > 0
        if is_dropped[is_present].all():  # the track with the highest draw stays
            is_dropped[np.argmax(np.where(is_present, self.draws, -1.0))] = False
        return is_dropped
