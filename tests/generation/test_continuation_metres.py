"""Prompts of pieces whose metre changes are cut at their own bars."""

from __future__ import annotations

import pytest

from musicgen.generation.continuation import make_prompt
from musicgen.midi import Score, TimeSignature, Track, notes_from
from musicgen.tokenization import METRES, REMI

BEAT = 480
METRE_CHANGES = [TimeSignature(0, 4, 4), TimeSignature(4 * BEAT, 3, 4)]


@pytest.mark.parametrize(
    ("num_bars", "end_beat", "last_bar"), [(1, 4, 16), (2, 7, 12), (None, 13, 12)]
)
def test_a_prompt_ends_where_its_bar_does(num_bars, end_beat, last_bar):
    notes = notes_from([(beat * BEAT, BEAT, 60 + beat, 64) for beat in range(13)])
    score = Score(BEAT, [Track("Piano", notes=notes)], time_signatures=METRE_CHANGES)
    prompt = make_prompt(REMI(time_signatures=METRES), score, "waltz", num_bars)
    assert prompt.end_time == 4 * end_beat
    assert prompt.end_tick == end_beat * prompt.score.ticks_per_beat
    assert prompt.bar_length == last_bar
    assert prompt.score.num_notes == end_beat
