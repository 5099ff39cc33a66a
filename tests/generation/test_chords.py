"""Continuations and new pieces along given chords."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from musicgen.errors import UserError
from musicgen.generation.model import MusicModel
from musicgen.generation.prompts import last_chord_key
from musicgen.metrics.key import Key
from musicgen.midi import TEMPO, Marker, Score, TimeSignature, Track, notes_from
from musicgen.tokenization import REMI, Chorale, Groove2Groove
from musicgen.tokenization.chords.progression import parse_chord
from musicgen.tokenization.chords.symbols import chord_index
from tests.generation.test_continuation import small_model

BAR = 3 * 480
NOTES = notes_from([(beat * 480, 480, 60 + beat % 2, 64) for beat in range(3, 18)])
MARKERS = {1: "D_m", 2: "G_7_B", 2.5: "C_M7", 4: "F_M"}  # by bar
WALTZ = Score(
    480,
    [Track(notes=NOTES)],
    np.array([(0, 97.0)], TEMPO),
    [TimeSignature(0, 3, 4)],
    [Marker(round(bar * BAR), text) for bar, text in MARKERS.items()],
)
"""Five bars with notes after an empty one."""

REMI_OF_FEW = REMI(  # whose bars are short
    time_signatures=("3/4", "4/4"),
    positions_per_beat=2,
    pitch_range=(60, 63),
    velocity_bins=(64, 64, 1),
)


def model(tokenizer=REMI_OF_FEW, chords="auto") -> MusicModel:
    torch.manual_seed(0)
    content = SimpleNamespace(config={"loader": {"length": 64, "chords": chords}}, sampling=None)
    return MusicModel(small_model(tokenizer), tokenizer, content, Path("model.ckpt"))


def changes(score, bar=BAR):
    """Bars (from 0 on) at which the chord changes, and to which."""
    return {marker.tick / bar: chord_index(marker.text) for marker in score.markers}


def chords(**symbols):
    return {float(bar): parse_chord(symbol) for bar, symbol in symbols.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"num_samples": 2, "temperature": 0.9},
        {"temperature": 0},
        {"best_of": 2, "best_of_bars": 1},
        {"ending": "close"},
        {"hold_tempo": False, "tempo": 80},
        {"max_bar_repeats": 1},
    ],
)
def test_continuations_have_the_chords_that_were_asked(options):
    for piece in model().generate(WALTZ, prompt_bars=2, bars=3, chords="Bb | Em7 F", **options):
        found = {bar: chord for bar, chord in changes(piece.score).items() if bar >= 2}
        assert found == chords(**{"2": "Bb", "3": "Em7", "3.5": "F", "4": "Bb"})
    for piece in model().generate(bars=4, chords="C C G7 N.C.", **options):
        assert changes(piece.score, 1920) == chords(**{"0": "C", "2": "G7", "3": "N.C."})


def test_a_chord_in_force_is_not_written_again():
    (piece,) = model().generate(WALTZ, prompt_bars=1, bars=3, chords="Dm Dm G")
    assert changes(piece.score) == chords(**{"0": "Dm", "3": "G"})


def test_streams_have_the_notes_of_generate():
    options = {"bars": 2, "chords": "C | F G", "seed": 3}
    (piece,) = model().generate(WALTZ, prompt_bars=1, **options)
    streamed = [n for notes in model().stream(WALTZ, prompt_bars=1, **options) for n in notes]
    assert sorted(n.pitch for n in streamed) == sorted(piece.new_score.tracks[0].notes["pitch"])


def test_a_new_piece_along_the_chords_of_another():
    """From its first bar with notes on, in its tempo and metre and as long."""
    (piece,) = model().generate(WALTZ, keep="chords")
    found = changes(piece.score)
    assert found == chords(**{"0": "Dm", "1": "G7", "1.5": "Cmaj7", "3": "F"})
    assert piece.score.tempos.tolist() == [(0, 97.0)]
    assert piece.score.metre_at(0)[1:] == (3, 4)
    bars = np.isin(piece.tokens, piece.prompt.tokens[:1]).sum()
    assert bars == 5
    assert piece.prompt.score.num_notes == 0
    assert not piece.prompt.notice
    (piece,) = model(REMI()).generate(WALTZ, keep="chords")
    assert piece.prompt.notice == "prompt 0: 3/4 read as 4/4"


def test_chords_of_a_piece_behind_its_first_bars_begin_again():
    (piece,) = model().generate(WALTZ, keep="chords", prompt_bars=2, bars=8, transpose=2)
    first = chords(**{"0": "Em", "1": "A7", "1.5": "Dmaj7", "3": "G"})
    again = {5 + bar: chord for bar, chord in first.items()}
    assert changes(piece.score) == first | again
    assert piece.prompt.score.tracks[0].notes["pitch"].tolist() == [63, 62, 63, 62, 63, 62]


def test_the_last_chord_is_where_a_piece_rests():
    prompts = [model().prompt(None, request=model().request(chords=c)) for c in ("Am G7", "C Am")]
    assert [last_chord_key(prompt) for prompt in prompts] == [Key(7, True), Key(9, False)]
    assert last_chord_key(model().prompt(None)) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chords": "C X"}, "chords=X: expected chords such as"),
        ({"chords": "C", "length_factor": 2}, "chords=C: expected bars, not length_factor"),
        ({"keep": "chords", "length_factor": 2}, "keep=chords: expected bars, not length_factor"),
        ({"chords": "C", "keep": "chords"}, "chords=C: expected no keep beside it"),
        ({"chords": "C", "fill": "2"}, "chords=C: expected to be left out beside keep or fill"),
        ({"keep": "chords", "fill": "2"}, "keep=chords: expected no fill beside it"),
        ({"keep": "chords", "prompt_bars": 9}, "keep=chords: the prompt is the whole piece"),
    ],
)
def test_requests_that_contradict_themselves(options, message):
    with pytest.raises(UserError, match=message):
        model().generate(WALTZ, **options)


@pytest.mark.parametrize("tokenizer", [Groove2Groove(), Chorale(), REMI(chords=False)])
@pytest.mark.parametrize("options", [{"chords": "C"}, {"keep": "chords"}])
def test_models_without_chords_name_one_that_has_them(tokenizer, options):
    with pytest.raises(UserError, match="need a model with tokens of chords"):
        model(tokenizer).generate(WALTZ, **options)


def test_chords_of_a_piece_without_any_or_of_no_piece():
    with pytest.raises(UserError, match="prompt 0: keep=chords: no chords are known of it"):
        model(chords="none").generate(WALTZ, keep="chords")
    with pytest.raises(UserError, match="give one as the prompt"):
        model().generate(keep="chords")
