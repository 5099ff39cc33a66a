"""The choice of the sampling temperature after training, with pieces in place of a model's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from musicgen.checkpoints import CONTENT_KEY
from musicgen.errors import UserError
from musicgen.evaluation import choose_temperature as command
from musicgen.evaluation.choose_temperature import Choice, choose_temperature
from musicgen.generation.model import load
from musicgen.midi import Score, Track, notes_from
from musicgen.tokenization import REMI, Groove2Groove
from musicgen.training.max_notes import max_notes_at_once
from tests.checkpoints.test_checkpoint import checkpoint, saved  # noqa: F401, a fixture

ROOT = Path(__file__).parents[2]
IN_SCALE, OUTSIDE = 60, 61


def piece(share: float, bars: int = 8) -> Score:
    """Eighths, of which a share is in C major; the prompt's bars are in it altogether."""
    num_notes, outside = 8 * bars, round((1 - share) * 4 * 8)
    pitches = [IN_SCALE + (0, 2, 4, 5, 7, 9, 11)[i % 7] for i in range(num_notes)]
    pitches[num_notes - outside :] = [OUTSIDE] * outside
    rows = [(240 * i, 240, pitch, 64) for i, pitch in enumerate(pitches)]
    return Score(480, [Track("Piano", notes=notes_from(rows))])


@pytest.fixture
def model(monkeypatch):
    """A model that leaves the scale the more the hotter it is: half of its notes at 1.0."""

    class Sampler:
        def __init__(self, model, tokenizer, temperature):
            self.share = 1 - temperature / 2

        def continuations(self, prompts):
            for prompt in prompts:
                music = piece(self.share).clip(prompt.end_tick, 10**9)
                yield SimpleNamespace(new_score=music, prompt=prompt)

    monkeypatch.setattr(command, "Sampler", Sampler)
    return SimpleNamespace(
        model=None, tokenizer=REMI(), request=lambda temperature, **_: temperature
    )


@pytest.mark.parametrize(("share", "expected"), [(0.7, 0.6), (0.5, 1.0), (0.6, 0.8), (0.0, 1.2)])
def test_the_temperature_nearest_to_the_real_pieces_is_chosen(model, share, expected):
    pairs = command.real_continuations(model, [piece(share)] * 3 + [Score()])
    assert len(pairs) == 3
    choice = choose_temperature(model, pairs)
    assert choice.temperature == expected
    assert choice.in_scale == pytest.approx(1 - expected / 2, abs=0.02)
    assert choice.in_scale_of_pieces == pytest.approx(share, abs=0.02)


def test_the_distance_is_in_standard_deviations_of_the_real_pieces():
    # The deviations are .1, 2, 0, which counts as .1, and .1.
    real = np.array([[0.9, 10, 3.0, 0.7], [0.7, 14, np.nan, 0.9]])
    generated = np.array([[0.6, 11, 3.1, 0.7], [0.6, 11, 3.3, np.nan]])
    assert command._distance(generated, real) == pytest.approx((2 + 0.5 + 2 + 1) / 4)


def test_no_real_continuation(model):
    assert command.real_continuations(model, [piece(1, bars=4)]) == []
    with pytest.raises(UserError, match="no validation piece"):
        choose_temperature(model, [])


def test_the_choice_is_stored_beside_the_checkpoints(checkpoint, tmp_path, monkeypatch, capsys):  # noqa: F811
    data, _ = checkpoint
    data[CONTENT_KEY]["sampling"] = {"max_notes": [1, 2]}
    for name in ("best", "last"):
        saved(data, tmp_path).rename(tmp_path / f"{name}.ckpt")
    before = (tmp_path / "best.ckpt").read_bytes()
    assert load(tmp_path / "best.ckpt").sampling().temperature == 0.7  # as configured
    encoded = SimpleNamespace(split=lambda name: [], cache={})
    monkeypatch.setattr(command, "open_training_data", lambda *_: encoded)
    choose = lambda *_: Choice(0.9, 0.8, 0.9)  # noqa: E731
    monkeypatch.setattr(command, "choose_temperature", choose)
    command.main([str(tmp_path / "best.ckpt"), "--device", "cpu"])
    assert "0.9, chosen on 0 validation pieces: 80% of its notes" in capsys.readouterr().err
    for name in ("best", "last"):
        model = load(tmp_path / f"{name}.ckpt")
        assert model.sampling().temperature == 0.9
        assert model.sampling().max_notes == [1, 2]
        assert model.sampling(temperature=0.5).temperature == 0.5
    assert (tmp_path / "best.ckpt").read_bytes() == before
    model.save_pretrained(tmp_path / "published")
    assert load(tmp_path / "published").sampling().temperature == 0.9


def test_the_notes_that_instruments_play_at_once_are_learned():
    """Of 10 trios of strings, one note of ten sounds with two more; basses play alone."""
    notes = [(beat * 480, 480, 60, 64) for beat in range(7)]
    chord = [(7 * 480, 480, pitch, 64) for pitch in (60, 64, 67)]
    tracks = [
        Track("Bass", 33, notes=notes_from([(0, 240, 40, 64), (240, 240, 41, 64)])),
        Track("Strings", 48, notes=notes_from(notes + chord)),
    ]
    tokenizer = Groove2Groove()
    tokens = tokenizer.encode(Score(480, tracks))
    by_hand = {"Bass": [1, 1], "Strings": [1] * 7 + [1, 2, 3]}
    for instrument, counts in zip(
        tokenizer.instruments, tokenizer.events.notes_at_once(tokens), strict=True
    ):
        assert counts.tolist() == by_hand.get(instrument.name, [])

    class Cache(dict):
        def pieces(self, split):
            return [0]

    assert max_notes_at_once(SimpleNamespace(cache=Cache({0: tokens})), tokenizer) == [
        1,
        1,
        1,
        1,
        3,
    ]


EXPERIMENTS = sorted(
    path.stem
    for kind in ("pop_piano", "groove")
    for path in (ROOT / "conf/experiment/spe2021").glob(f"{kind}_*.yaml")
)


@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if not e.endswith("_base")])
def test_published_experiments_keep_the_published_sampling(config, experiment):
    cfg = config("train", f"experiment=spe2021/{experiment}")
    sampling = cfg.sampling
    assert "groove" not in experiment or cfg.callbacks.max_notes is None
    temperature, top_p = (0.6, 1.0) if "groove" in experiment else (1.2, 0.9)
    published = {"temperature": temperature, "top_k": None, "top_p": top_p}
    assert sampling == published


def test_small_models_begin_with_a_low_temperature(config):
    for choice in ((), ("task=groove",)):
        sampling = config("train", *choice).sampling
        assert 0.6 <= sampling.temperature <= 0.8
