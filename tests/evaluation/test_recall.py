"""Recall: which tokens belong to which bars, and what is planted."""

import numpy as np
import pytest
import torch

from musicgen.composer import compose_groove, compose_pop
from musicgen.errors import ParameterError
from musicgen.evaluation.recall import OPENING, piece_parts, plant
from musicgen.metrics.key import find_key
from musicgen.midi import TimeSignature, pitched_notes
from musicgen.tokenization import REMI, Groove2Groove

POP, GROOVE = compose_pop(0, 6), compose_groove(0, "funk", 0, 0)


def waltz():
    score = compose_pop(0, 6)
    score.time_signatures = [TimeSignature(0, 3, 4)]
    return score


@pytest.mark.parametrize(("tokenizer", "score"), [(REMI(), POP), (Groove2Groove(), GROOVE)])
def test_parts_of_a_piece_are_those_of_its_notes(tokenizer, score):
    piece = tokenizer.encode(score)
    length = tokenizer.bar_length(score)
    parts = piece_parts(piece, tokenizer, length, [4, 8])
    step = 480 // tokenizer.steps_per_beat
    notes = pitched_notes(tokenizer.decode(piece))
    bars = tokenizer.times(piece) // length
    sets = [set() for _ in range(bars.max() + 1)]
    for onset, pitch in zip(notes["onset"] // step, notes["pitch"], strict=True):
        sets[onset // length].add((onset % length, pitch))

    def like(m, n):
        shared, both = len(sets[m] & sets[n]), len(sets[m]) + len(sets[n])
        return m >= 0 and both > 0 and 2 * shared / both >= 0.8

    expected = {
        "all": lambda n: True,
        "new bars": lambda n: bool(sets[n]) and not any(like(m, n) for m in range(n)),
        "return 4": lambda n: like(n - 4, n),
        "return 8": lambda n: like(n - 8, n),
        "bars 1–4": lambda n: n < 4,
    }
    assert [name for name, _ in parts] == [*expected]
    for name, holds in expected.items():
        of_bar = np.array([holds(n) for n in range(len(sets))])
        assert of_bar.any()
        assert np.array_equal(parts[name, "token"], of_bar[bars[1:]]), name


@pytest.mark.parametrize(
    ("tokenizer", "score"), [(REMI(), POP), (REMI(time_signatures=("4/4", "3/4")), waltz())]
)
def test_a_planted_bar_and_its_copy(tokenizer, score):
    piece = tokenizer.encode(score)
    notes = pitched_notes(tokenizer.decode(piece))
    for seed in range(8):
        length = 1000
        tokens, parts = plant(piece, tokenizer, 6, length, np.random.default_rng(seed))
        assert len(tokens) <= length
        bars = tokenizer.coordinates(tokens, ("bar",))[:, 0]
        pitches = tokenizer.coordinates(tokens, ("pitch",))[1:, 0]
        flags = {name: flags for (name, _), flags in parts.items()}
        first, copy = flags["planted 6"], flags["copy 6"]
        (at,), (again,) = np.unique(bars[1:][first]), np.unique(bars[1:][copy])
        assert at >= OPENING
        assert again - at == 6 == bars[-1] - at
        assert np.array_equal(tokens[bars == at], tokens[bars == again])
        rest = tokens[(bars != at) & (bars != again)]
        assert np.array_equal(rest, piece[: len(rest)])
        # Its pitches, all of them, are of the key and not above or below the piece's.
        assert first.sum() == np.isin(tokens[bars == at], [*tokenizer.pitch_tokens()]).sum() > 0
        assert np.array_equal(pitches[first], pitches[copy])
        assert np.isin(pitches[first] % 12, find_key(notes).scale).all()
        assert notes["pitch"].min() <= pitches[first].min()
        assert pitches[first].max() <= notes["pitch"].max()
        alone = np.append(tokens[bars == at], tokenizer.vocabulary.id("EOS"))
        assert tokenizer.grammar().accepts(torch.from_numpy(alone)[None]).all()


def test_pieces_without_room_have_no_planted_bar():
    piece, tokenizer = REMI().encode(POP), REMI()
    rng = np.random.default_rng(0)
    assert plant(piece, tokenizer, 8, 300, rng) is None
    assert plant(piece, tokenizer, 500, 9000, rng) is None
    assert plant(tokenizer.encode(POP.clip(0, 0)), tokenizer, 1, 9000, rng) is None


@pytest.mark.parametrize("lags", [8, [0], ["x"]])
def test_lags_are_a_list_of_bars(measure, lags):
    with pytest.raises(ParameterError, match=r"metric\.recall\.lags"):
        measure("recall", lags=lags)
