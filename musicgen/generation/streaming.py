"""Streaming: the notes of a continuation as the model writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from musicgen.generation.prompts import Prompt, decode
from musicgen.generation.sampler import Sampler
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.vocabulary import within


class Note(NamedTuple):
    """A finished note of a continuation, as in `Continuation.new_score`.

    Attributes:
        track: name of the instrument.
        onset, duration: in ticks of 1/480 quarter note, from the beginning of the continuation.
        seconds, duration_seconds: the same at the tempi written so far.
    """

    track: str
    program: int
    is_drum: bool
    pitch: int
    velocity: int
    onset: int
    duration: int
    seconds: float
    duration_seconds: float


def stream_notes(sampler: Sampler, prompt: Prompt) -> Iterator[list[Note]]:
    """Yield the notes that are finished at one musical time, as soon as that has passed.

    A note of REMI is finished with its duration, as it begins, one of other tokenizers at its end.
    """
    tokenizer, times = sampler.tokenizer, sampler.tokenizer.times(prompt.tokens)
    step = prompt.score.ticks_per_beat // tokenizer.steps_per_beat
    reader = _Reader(tokenizer, prompt)
    # With the last of the prompt, since a voice of Chorale may hold its pitch.
    tokens = prompt.tokens[times == times[-1]].tolist()
    now = int(times[-1] - prompt.end_time) * step
    for token, time in sampler.stream(prompt):
        tick = (time - prompt.end_time) * step
        if tick > now:
            if notes := reader.read(tokens, now):
                yield notes
            tokens, now = [], tick
        tokens.append(token)
    if notes := reader.read(tokens, now, last=True):
        yield notes


class _Reader:
    """Reads notes from the tokens of one musical time after the other, at the cost of those alone.

    Ticks count from the end of the prompt; notes that begin before are left out.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Prompt) -> None:
        self.tokenizer = tokenizer
        score = decode(tokenizer, prompt.tokens, prompt)
        self._tracks, self._ticks_per_beat = score.tracks, score.ticks_per_beat
        # Tick, second, and quarters a minute from there; MIDI files begin with 120.
        self._tempi = [(0, 0.0, 120.0)]
        self._add_tempi(score.clip(prompt.end_tick, score.end + 1).tempos.tolist())
        # Onset, velocity and end so far of each note that sounds, by track and pitch.
        self._sounding: dict[tuple[int, int], tuple[int, int, int]] = {}

    def read(self, tokens: list[int], tick: int, *, last: bool = False) -> list[Note]:
        """Return the notes that the tokens of a tick finish; all if it is the last."""
        ids, families = np.array(tokens), self.tokenizer.families
        score = self.tokenizer.decode(ids)
        self._add_tempi((tick, bpm) for _, bpm in score.tempos.tolist() if tick >= 0)
        begun = {
            (index, pitch): (tick, velocity, tick + duration)
            for index, track in enumerate(score.tracks)
            for _, duration, pitch, velocity in track.notes.tolist()
        }
        if "Duration" in families:
            return self._notes(begun.items())
        before = self._sounding
        if "NoteOff" in families:
            ons, offs = families["NoteOn"], families["NoteOff"]
            closed = self.tokenizer.decode(ids[within(ids, offs)] - offs.start + ons.start)
            keys = [(i, p) for i, t in enumerate(closed.tracks) for p in t.notes["pitch"].tolist()]
            ended = [(key, (*before.pop(key)[:2], tick)) for key in keys if key in before]
            self._sounding = before | begun
        else:  # a note lasts while its voice has its pitch
            ended = [(key, note) for key, note in before.items() if key not in begun]
            self._sounding = {
                key: (*before.get(key, note)[:2], note[2]) for key, note in begun.items()
            }
        if last:
            ended += [(key, (*n[:2], max(n[2], tick))) for key, n in self._sounding.items()]
        return self._notes(ended)

    def _notes(self, found: Iterable[tuple[tuple[int, int], tuple[int, int, int]]]) -> list[Note]:
        notes = []
        by_track = sorted((index, onset, pitch, *rest) for (index, pitch), (onset, *rest) in found)
        for index, onset, pitch, velocity, end in by_track:
            if onset >= 0:
                track, start = self._tracks[index], self._seconds(onset)
                sound = pitch, velocity, onset, end - onset, start, self._seconds(end) - start
                notes.append(Note(track.name, track.program, track.is_drum, *sound))
        return notes

    def _add_tempi(self, tempi: Iterable[tuple[int, float]]) -> None:
        for tick, bpm in tempi:
            self._tempi.append((tick, self._seconds(tick), bpm))

    def _seconds(self, tick: int) -> float:
        """Return when a tick is played, at the tempi so far."""
        start, seconds, bpm = next(each for each in reversed(self._tempi) if each[0] <= tick)
        return seconds + (tick - start) * 60 / (bpm * self._ticks_per_beat)
