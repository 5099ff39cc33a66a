"""Tracks become the parts of an ensemble by name, program and order."""

import re

import numpy as np
import pytest
import yaml

from musicgen.errors import UserError
from musicgen.midi import Score, Track, loads, notes_from, write
from musicgen.package_data import CONF
from musicgen.tokenization import Songs
from tests.generation.builders import music_model
from tests.tokenizers import frozen_tokenizers

QUARTET = frozen_tokenizers()["quartet"]


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        ("Violin 1, Violin 2, Viola, Violoncello", [0, 1, 2, 3]),
        ("Cello, Viola, Violin II, Violin I", [3, 2, 1, 0]),
        ("violin, violin, viola, cello", [0, 1, 2, 3]),
        ("Violin, Violin 1, Alto, Violoncelle", [1, 0, 2, 3]),
        ("Violino primo, Violino secondo, Viola, Basso", [0, 1, 2, None]),
        ("1. Violine, 2. Violine, Bratsche, Vc.", [0, 1, 2, 3]),
        ("violinoA, violinoB, viola, cello", [0, 1, 2, 3]),
        ("Violin, Violin, Violin", [0, 1, 1]),
        ("Track 1, Track 2, Track 3, Track 4", [0, 1, 2, 3]),
        ("Track 1, Track 2, Track 3", [None, None, None]),
        ("Piano, Violin", [None, 0]),
    ],
)
def test_names_tell_the_parts_of_a_quartet(names, parts):
    assert QUARTET.find_tracks([Track(name) for name in names.split(", ")]) == parts


@pytest.mark.parametrize(
    ("programs", "parts"),
    [
        ([40, 40, 41, 42], [0, 1, 2, 3]),
        ([42, 41, 40, 40], [3, 2, 0, 1]),
        ([48, 48, 48, 48], [0, 1, 2, 3]),
        ([40, 45, 40, 45], [0, 0, 1, 1]),  # bowed and plucked
    ],
)
def test_programs_and_the_order_tell_the_parts(programs, parts):
    assert QUARTET.find_tracks([Track("", program) for program in programs]) == parts


def test_unisons_of_two_parts_stay_apart():
    notes = notes_from([(0, 480, 62, 64)])
    score = Score(480, [Track("Violin", 40, notes=notes), Track("Violin", 40, notes=notes)])
    decoded = QUARTET.decode(QUARTET.encode(score))
    assert [len(track.notes) for track in decoded.tracks] == [1, 1, 0, 0]


def test_new_notes_go_to_the_track_of_their_part(tmp_path):
    tracks = [
        Track("violin", 40, notes=notes_from([(480 * i, 480, pitch, 64) for i in range(8)]))
        for pitch in (76, 67)
    ]
    write(Score(480, tracks), tmp_path / "violins.mid")
    model = music_model(QUARTET)
    (piece,) = model.generate(tmp_path / "violins.mid", prompt_bars=1, bars=4, seed=0)
    written = loads(piece.midi_file().data)
    new = [track.notes[track.notes["onset"] >= 4 * 480] for track in written.tracks]
    decoded = [track.notes for track in piece.new_on_grid.tracks]
    assert len(new) == 2
    for part, notes in enumerate(new):
        assert len(notes)
        assert sorted(notes["pitch"]) == sorted(decoded[part]["pitch"])


def test_the_documented_ensemble_is_a_tokenizer():
    text = (CONF.parent / "tokenizers/README.md").read_text(encoding="utf-8")
    parts = yaml.safe_load(re.search(r"```yaml\n(defaults.*?)```", text, re.DOTALL)[1])["parts"]
    tokenizer = Songs(**QUARTET.settings() | {"parts": parts})
    names = ["Flauto", "English Horn", "Klarinette", "Corno", "Fagott"]
    found = tokenizer.find_tracks([Track(name) for name in names])
    assert np.array_equal(found, range(5))


def test_a_tune_of_an_ensemble_is_accompanied_by_all_other_parts():
    notes = notes_from([(480 * i, 480, 70, 64) for i in range(8)])
    score = Score(480, [Track("Melody", notes=notes)])
    (piece,) = music_model(QUARTET).generate(score, keep="violin 1")
    assert piece.prompt.targets == [1, 2, 3]
    assert np.array_equal(piece.score.tracks[0].notes["pitch"], notes["pitch"])


def test_no_note_below_the_lowest_string_is_written_though_files_may_have_some():
    notes = notes_from([(480 * i, 480, 50, 64) for i in range(4)])
    score = Score(480, [Track("Violin 1", 40, notes=notes), Track("Cello", 42, notes=notes)])
    pieces = music_model(QUARTET).generate(score, prompt_bars=1, bars=8, num_samples=4, seed=0)
    lowest = [part["lowest"] for part in QUARTET.parts]
    new = [track.notes["pitch"] for piece in pieces for track in piece.new_on_grid.tracks]
    assert sum(map(len, new)) > 20
    assert all(
        pitches.min(initial=127) >= low for pitches, low in zip(new, 4 * lowest, strict=True)
    )
    assert pieces[0].prompt.score.tracks[0].notes["pitch"].tolist() == [50] * 4


def test_a_piece_without_parts_of_the_ensemble_is_refused_with_their_names():
    piano = Score(480, [Track("Piano", notes=notes_from([(0, 480, 60, 64), (0, 480, 64, 64)]))])
    names = "violin 1, violin 2, viola, cello"
    with pytest.raises(UserError, match=f"2 notes of other instruments than {names}"):
        music_model(QUARTET).generate(piano, bars=1)
    with pytest.raises(UserError, match=f"expected a piece with tracks of {names}"):
        music_model(QUARTET).generate(piano, keep="violin 1")
