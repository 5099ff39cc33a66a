"""What prompts hold of pieces, and what is counted as lost."""

from __future__ import annotations

import numpy as np
import pytest

from musicgen.composer import compose_pop
from musicgen.generation.prompts import make_prompt
from musicgen.midi import TEMPO, Score, TimeSignature, Track, notes_from
from musicgen.tokenization import METRES, REMI, Chorale, Groove2Groove

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


def band(num_bars: int) -> Score:
    """Piano and drums in quarters; 3/4 from the third bar on."""
    rows = [(beat * BEAT, BEAT // 2, 60 + beat % 12, 64) for beat in range(4 * num_bars)]
    tracks = [Track("Piano", notes=notes_from(rows)), Track("Drums", 0, True, notes_from(rows))]
    return Score(BEAT, tracks, time_signatures=[TimeSignature(8 * BEAT, 3, 4)])


def test_losses_are_counted_in_the_bars_used():
    prompt = make_prompt(REMI(chords=False), band(9), "song", 2)
    assert prompt.notice == "song: 8 notes of drums dropped"
    assert (prompt.summary.notes_kept, prompt.summary.notes_read) == (8, 16)
    assert "3/4 read as 4/4" in make_prompt(REMI(chords=False), band(9), "song", 3).notice


def test_bars_are_in_the_metre_of_the_first_note():
    """A time signature after the beginning does not apply to it; one in a count-in does."""
    score = band(9)
    for tokenizer in (REMI(time_signatures=METRES), Groove2Groove()):
        assert tokenizer.bar_length(score) == 4 * tokenizer.steps_per_beat
        later = score.clip(8 * BEAT, score.end)
        later.time_signatures = [TimeSignature(0, 4, 4), TimeSignature(4, 3, 4)]
        for track in later.tracks:
            track.notes["onset"] += 4
        assert tokenizer.bar_length(later) == 3 * tokenizer.steps_per_beat


def test_a_bar_that_the_grid_cannot_hold_keeps_its_metre():
    """7/32 are 10.5 steps of a grid of twelfths, and 10 are in no metre."""
    score = band(9)
    score.time_signatures = [TimeSignature(0, 7, 32)]
    prompt = make_prompt(Groove2Groove(), score, "song", 4, data=b"")
    assert prompt.bar_length == 10
    assert prompt.metre is None
    assert prompt.score.time_signatures == score.time_signatures


def test_a_prompt_keeps_its_tempi_if_tokens_have_none():
    score = band(4)
    score.ticks_per_beat = 240  # so that a bar has two notes
    score.tempos = np.array([(0, 90.0), (2 * 240, 99.0), (30 * 240, 60.0)], dtype=TEMPO)
    prompt = make_prompt(Groove2Groove(), score, "song", 1)
    assert prompt.score.tempos.tolist() == [(0, 90.0), (960, 99.0)]


@pytest.mark.parametrize("tempo_at", [0, 960, 11 * BEAT, 12 * BEAT])
@pytest.mark.parametrize(
    "tokenizer",
    [REMI(), REMI(time_signatures=METRES), REMI(chords=False), Groove2Groove(), Chorale()],
)
def test_a_piece_is_encoded_once_and_begins_as_without_the_silence(
    tokenizer, tempo_at, monkeypatch
):
    score = compose_pop(1, 1)
    score.tempos["tick"] = np.maximum(score.tempos["tick"], tempo_at)
    for track in score.tracks:
        track.notes["onset"] += 3 * 4 * BEAT  # chords begin before
    grid = tokenizer.decode(tokenizer.encode(score))
    expected = tokenizer.encode(grid.clip(3 * 4 * BEAT, grid.end + 1))
    encode, calls = type(tokenizer).encode_with_losses, []

    def counted(self, score):
        calls.append(score)
        return encode(self, score)

    monkeypatch.setattr(type(tokenizer), "encode_with_losses", counted)
    prompt = make_prompt(tokenizer, score, "song", 2)
    assert len(calls) == 1
    assert len(prompt.tokens) > 10
    assert prompt.tokens.tolist() == expected[: len(prompt.tokens)].tolist()
