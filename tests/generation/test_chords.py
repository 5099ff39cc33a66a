"""Continuations and new pieces along given chords."""

from __future__ import annotations

import numpy as np
import pytest

from musicgen.errors import UserError
from musicgen.generation.model import MusicModel
from musicgen.midi import TEMPO, Marker, Score, TimeSignature, Track, notes_from
from musicgen.tokenization import REMI, Chorale, Groove2Groove
from musicgen.tokenization.chords.progression import parse_chord
from musicgen.tokenization.chords.symbols import chord_index
from tests.generation.builders import music_model

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


def model(tokenizer=REMI_OF_FEW) -> MusicModel:
    return music_model(tokenizer, "auto")


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
        {"ending": "close"},
        {"hold_tempo": False, "tempo": 80},
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


@pytest.mark.parametrize("tokenizer", [Groove2Groove(), Chorale(), REMI(chords=False)])
def test_models_without_chords_name_one_that_has_them(tokenizer):
    with pytest.raises(UserError, match="need a model with tokens of chords"):
        model(tokenizer).generate(WALTZ, chords="C")
