"""Prompts that were played: on their beats they sound as before, and go on at their pace."""

from dataclasses import replace

import numpy as np
import pytest

from musicgen.errors import ParameterError, UserError
from musicgen.generation.source import on_beats, pace_of
from musicgen.midi import TEMPO, Score, Track, loads, notes_from, write
from musicgen.plugins.beats import Beats, find_beats
from musicgen.plugins.beats.beat_map import file_onto_beats
from musicgen.tokenization import REMI
from tests.generation.builders import PromptFile, music_model

TICKS, BEAT_SECONDS, FIRST = 480, 0.7, 0.35


def recording(num_bars: int = 8) -> Score:
    """Bass and chords in quarters of .7 s, in a file of 120 quarters a minute."""
    rows = []
    for beat in range(4 * num_bars):
        onset = round((FIRST + beat * BEAT_SECONDS) * 2 * TICKS)
        for pitch in (36,) if beat % 4 == 0 else (60, 64, 67 + beat % 2):
            rows.append((onset, 300, pitch, 90 if beat % 4 == 0 else 60))
    return Score(TICKS, [Track("Piano", notes=notes_from(rows))])


def beats_file(tmp_path) -> str:
    path = tmp_path / "beats.txt"
    lines = (f"{FIRST + beat * BEAT_SECONDS:.3f} {beat % 4 + 1}\n" for beat in range(32))
    path.write_text("".join(lines))
    return str(path)


def test_a_played_prompt_is_read_on_given_beats(tmp_path):
    write(recording(), tmp_path / "take.mid")
    model = music_model(REMI(chords=False))
    prompt = model.prompt(tmp_path / "take.mid", prompt_bars=2, beats=beats_file(tmp_path))
    beat = prompt.score.ticks_per_beat
    assert np.unique(prompt.score.notes["onset"]).tolist() == [k * beat for k in range(8)]
    assert "beats as given: 86 a minute, 4/4, bars begin at 0.35 s" in prompt.notice
    np.testing.assert_allclose(prompt.source.tempo, 60 / BEAT_SECONDS, rtol=1e-3)


def test_the_continuation_begins_at_the_bar_line_of_the_music(tmp_path):
    write(recording(), tmp_path / "take.mid")
    model = music_model(REMI(chords=False))
    beats = beats_file(tmp_path)
    piece = model.generate(tmp_path / "take.mid", prompt_bars=2, bars=1, beats=beats)[0]
    written = loads(piece.midi_file().data)
    seconds = np.unique(written.seconds_at(written.notes["onset"]))
    expected = FIRST + np.arange(8) * BEAT_SECONDS
    np.testing.assert_allclose(seconds[:8] + expected[0] - seconds[0], expected, atol=1e-3)
    end = piece.prompt.end.file_tick
    np.testing.assert_allclose(
        written.seconds_at(end) + expected[0] - seconds[0], FIRST + 5.6, atol=2e-3
    )
    last = written.tempos[written.tempos["tick"] <= end][-1]
    assert last["tick"] == end
    np.testing.assert_allclose(last["bpm"], 60 / BEAT_SECONDS, rtol=1e-3)


def test_a_file_on_its_own_beats_stays_as_it_is():
    rows = [(beat * TICKS, TICKS, 60 + beat % 7, 80) for beat in range(40)]
    score = Score(TICKS, [Track(notes=notes_from(rows))])
    moved, data = on_beats(score, b"its file", "auto")
    assert moved is score
    assert data == b"its file"
    assert find_beats(score).source == "file"
    assert on_beats(recording(), None, "file")[0] == recording()


def test_the_pace_is_that_of_the_last_bars():
    score = recording()
    score.tempos = np.array([(0, 60), (16 * TICKS, 120)], TEMPO)
    lasts = replace(score, tracks=[Track(notes=notes_from([(0, 32 * TICKS, 60, 80)]))])
    assert pace_of(lasts, 4) == 60
    np.testing.assert_allclose(pace_of(lasts, 6), 80)
    assert pace_of(lasts, None) == 120


def test_the_time_signature_of_a_prompt_can_be_said(tmp_path):
    write(recording(), tmp_path / "take.mid")
    model = music_model(REMI(chords=False))
    prompt = model.prompt(tmp_path / "take.mid", prompt_bars=2, time_signature="2/4")
    assert " a minute, 2/4, bars begin at 0.35 s" in prompt.notice
    notated = Score(
        TICKS, [Track(notes=notes_from([(i * TICKS, TICKS, 60, 80) for i in range(24)]))]
    )
    waltz, _ = on_beats(notated, None, "auto", "3/4")
    assert waltz.time_signatures[0][1:] == (3, 4)
    assert on_beats(notated, None, "file", "4/4")[0] is notated
    for wrong in ("3", "1/4", "3/8", "4/4/4", "99/4"):
        with pytest.raises(ParameterError, match="time_signature"):
            on_beats(notated, None, "auto", wrong)
    with pytest.raises(ParameterError, match="or a prompt with it"):
        model.prompt(None, time_signature="3/4")
    with pytest.raises(UserError, match="most bars have 4 beats, not those of time_signature=3/4"):
        on_beats(recording(), None, beats_file(tmp_path), "3/4")


def test_a_played_prompt_keeps_its_times_in_the_file_of_the_continuation(tmp_path):
    model = music_model(REMI(chords=False))
    for lead in (0, 0.02, 0.35, 0.9, 2.6):
        score = recording().moved(lambda t, lead=lead: t + round((lead - FIRST) * 2 * TICKS))
        write(score, tmp_path / "take.mid")
        piece = model.generate(tmp_path / "take.mid", prompt_bars=2, bars=1)[0]
        written = loads(piece.midi_file().data)
        seconds = np.unique(written.seconds_at(written.notes["onset"]).round(3))
        np.testing.assert_allclose(seconds[:8], lead + BEAT_SECONDS * np.arange(8), atol=2e-3)


def test_a_file_on_its_beats_has_no_program_of_its_own() -> None:
    notes = [(480 * i, bytes([0x90 if i % 2 == 0 else 0x80, 60, 80])) for i in range(40)]
    data = PromptFile([notes, [(0, b"\xc0\x28")]]).data()  # the second track sets it
    beats = Beats(np.arange(1, 30) * 0.5, np.arange(0, 29, 4), (4, 4), "annotated")
    for each in (data, file_onto_beats(data, loads(data), beats)):
        assert loads(each).tracks[0].program == 0x28
