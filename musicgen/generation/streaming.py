"""Streaming: the notes of a continuation as the model writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from musicgen.errors import UserError
from musicgen.generation.prompts import Prompt
from musicgen.generation.sampler import Sampler
from musicgen.tokenization.base import TICKS_PER_BEAT, Tokenizer

DEFAULT_BPM = 120.0  # of MIDI files without a tempo


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


def stream_notes(sampler: Sampler, prompt: Prompt, sample: int = 0) -> Iterator[list[Note]]:
    """Yield the notes that are finished at one musical time, as soon as that has passed.

    A note of REMI is finished with its duration, one of Groove2Groove with its note-off.
    """
    tokenizer = sampler.tokenizer
    bpm = float(prompt.score.tempos["bpm"][-1]) if len(prompt.score.tempos) else DEFAULT_BPM
    reader = NoteReader(tokenizer, prompt.end_time, bpm)
    for _ in reader.read(prompt.tokens.tolist(), tokenizer.times(prompt.tokens).tolist()):
        pass  # only what sounds at its end matters
    now = prompt.end_time
    finished: list[Note] = []
    for token, time in sampler.stream(prompt, sample):
        if time > now and finished:
            yield finished
            finished = []
        now = time
        finished += reader.read([token], [time])
    finished += reader.close(now)
    if finished:
        yield finished


class NoteReader:
    """Reads finished notes, and tempi, from tokens at a time; constant cost a token.

    Args:
        start_time: musical time of the tick and the second 0; notes that begin before are left out.
        bpm: the tempo then.
    """

    def __init__(self, tokenizer: Tokenizer, start_time: int, bpm: float) -> None:
        self.tokenizer, self.start_time = tokenizer, start_time
        self.families = tokenizer.families
        if not {"NoteOff", "Duration"} & {*self.families}:
            raise UserError(f"tokenizer {tokenizer.name}: its notes cannot be streamed")
        self._tempi = [(0, 0.0, bpm)]  # tick and second from which each is in force
        self._begun: list[int] = []  # tokens of a note with a duration
        self._sounding: dict[int, int] = {}  # onset by the token of its note-on

    def read(self, tokens: Iterable[int], times: Iterable[int]) -> Iterator[Note]:
        """Yield the notes that tokens at these musical times finish."""
        families, none = self.families, range(0)
        ons, offs = families.get("NoteOn", none), families.get("NoteOff", none)
        for token, time in zip(tokens, times, strict=True):
            if token in ons:
                self._sounding[token] = time
            elif token in offs:
                yield from self._ended(token - offs.start + ons.start, time)
            elif token in families.get("Tempo", none):
                tick = self._tick(time)
                bpm = float(self.tokenizer.decode(np.array([token])).tempos["bpm"][0])
                if tick >= 0:
                    self._tempi.append((tick, self._seconds(tick), bpm))
            elif token in families.get("Pitch", none):
                self._begun = [token]
            elif token in families.get("Velocity", none):
                self._begun.append(token)
            elif token in families.get("Duration", none):
                yield from self._note([*self._begun, token], time, None)

    def close(self, time: int) -> Iterator[Note]:
        """Yield the notes that still sound, as ended at a musical time: see `decode`."""
        for on in list(self._sounding):
            yield from self._ended(on, time)

    def _ended(self, on: int, time: int) -> Iterator[Note]:
        onset = self._sounding.pop(on)
        yield from self._note([on], onset, max(time, onset + 1))

    def _note(self, tokens: list[int], time: int, end: int | None) -> Iterator[Note]:
        onset = self._tick(time)
        if onset < 0:
            return
        (track,) = (t for t in self.tokenizer.decode(np.array(tokens)).tracks if len(t.notes))
        note = track.notes[0]
        duration = int(note["duration"]) if end is None else self._tick(end) - onset
        seconds = self._seconds(onset)
        yield Note(
            *(track.name, track.program, track.is_drum),
            *(int(note["pitch"]), int(note["velocity"]), onset, duration),
            *(seconds, self._seconds(onset + duration) - seconds),
        )

    def _tick(self, time: int) -> int:
        return (time - self.start_time) * (TICKS_PER_BEAT // self.tokenizer.steps_per_beat)

    def _seconds(self, tick: int) -> float:
        start, second, bpm = next(each for each in reversed(self._tempi) if each[0] <= tick)
        return second + (tick - start) * 60 / (bpm * TICKS_PER_BEAT)
