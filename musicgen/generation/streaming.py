"""Streaming: the notes of a continuation as the model writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from musicgen.generation.prompts import Prompt, with_frame
from musicgen.generation.sampler import Sampler
from musicgen.midi import Score


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
    tokenizer, tokens = sampler.tokenizer, prompt.tokens.tolist()
    written_at_onset = "Duration" in tokenizer.families

    def finished(after: float, until: float) -> list[Note]:
        score = with_frame(tokenizer.decode(np.array(tokens)), prompt.score)
        score = score.clip(prompt.end_tick, score.end + 1)
        found = []
        for track in score.tracks:
            at = track.notes["onset"] + (0 if written_at_onset else track.notes["duration"])
            for onset, duration, pitch, velocity in track.notes[
                (at > after) & (at <= until)
            ].tolist():
                start, end = _seconds(score, onset), _seconds(score, onset + duration)
                sound = pitch, velocity, onset, duration, start, end - start
                found.append(Note(track.name, track.program, track.is_drum, *sound))
        return found

    step = prompt.score.ticks_per_beat // tokenizer.steps_per_beat
    before, now = -1.0, 0
    for token, time in sampler.stream(prompt):
        tokens.append(token)
        tick = (time - prompt.end_time) * step
        if tick > now:
            if notes := finished(before, now):
                yield notes
            before = now
        now = tick
    if notes := finished(before, np.inf):
        yield notes


def _seconds(score: Score, tick: int) -> float:
    """Return when a tick is played; 120 bpm apply before the first tempo, as in MIDI files."""
    seconds, start, bpm = 0.0, 0, 120.0
    for following, next_bpm in score.tempos.tolist():
        if following > tick:
            break
        seconds += (following - start) * 60 / (bpm * score.ticks_per_beat)
        start, bpm = following, next_bpm
    return seconds + (tick - start) * 60 / (bpm * score.ticks_per_beat)
