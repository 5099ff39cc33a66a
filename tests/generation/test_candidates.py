"""Bars that are written anew are drawn by what follows them, too."""

import numpy as np
import pytest
import torch

from musicgen.generation.engines import Engine
from musicgen.generation.sampler import NUM_CANDIDATES, choose, log_likelihoods
from musicgen.random import NoiseKey
from musicgen.tokenization.coordinates import Coordinates
from tests.generation.builders import music_model
from tests.generation.test_keep import SONGS, accompanied


@pytest.fixture(scope="module")
def rewritten():
    """An engine, a prompt with bars behind what is rewritten, and candidates of several lengths."""
    model = music_model(SONGS)
    pieces = model.generate(accompanied(), rewrite=2, num_samples=5)
    prompt = pieces[0].prompt
    candidates = [piece.tokens[len(prompt.tokens) :] for piece in pieces]
    assert len({len(each) for each in candidates}) > 1
    return Engine(model.model, NoiseKey((0,))), prompt, candidates


def test_the_bars_behind_have_all_parts_in_the_order_of_the_prompt():
    model, score = music_model(SONGS), accompanied()
    (piece,) = model.generate(score, rewrite=2, keep="voice")
    tokens = map(SONGS.vocabulary.token, piece.prompt.kept.conditioning.following)
    assert [token for token in tokens if token.startswith(("Bar", "Part"))] == [
        *("Bar_2/4", "Part_Voice", "Part_Piano"),
        *("Bar_2/4", "Part_Piano"),
    ]
    (piece,) = model.generate(score, rewrite=1)  # without a bar before it
    assert len(piece.prompt.kept.conditioning.following)
    (piece,) = model.generate(score, rewrite="3-4")
    assert not len(piece.prompt.kept.conditioning.following)


def test_likelihoods_are_those_of_whole_pieces(rewritten):
    engine, prompt, candidates = rewritten
    behind = prompt.kept.conditioning.following
    model, found = engine.model, log_likelihoods(engine, prompt, candidates)
    for candidate, likelihood in zip(candidates, found, strict=True):
        tokens = np.concatenate([prompt.tokens, candidate, behind])
        coordinates = Coordinates(prompt.tokenizer)
        positions = coordinates.of(tokens, model.coordinate_names, bar_length=prompt.bar_length)
        with torch.inference_mode():
            logits = model(
                torch.from_numpy(tokens)[None],
                positions=torch.from_numpy(positions)[None],
                noise=engine.noise,
            )
        terms = logits[0, :-1].double().log_softmax(1)[range(len(tokens) - 1), tokens[1:]]
        assert likelihood == pytest.approx(float(terms[-len(behind) :].sum()), abs=1e-3)


def test_a_candidate_is_drawn_by_its_likelihood(rewritten):
    engine, prompt, candidates = rewritten
    expected = log_likelihoods(engine, prompt, candidates).softmax(0).numpy()
    draws = [choose(engine, prompt, candidates, NoiseKey((i,))) for i in range(200)]
    shares = np.bincount(draws, minlength=len(candidates)) / len(draws)
    assert np.abs(shares - expected).max() < 4 * np.sqrt(0.25 / len(draws))
    assert choose(engine, prompt, candidates[:1], NoiseKey((0,))) == 0


def test_candidates_are_generated_only_where_bars_follow(monkeypatch):
    model, steps = music_model(SONGS), []
    monkeypatch.setattr(
        "musicgen.generation.sampler.choose",
        lambda engine, prompt, candidates, key: steps.append(len(candidates)) or 0,
    )
    for bars in ("2-3", "3-4"):
        model.generate(accompanied(), rewrite=bars, num_samples=2)
    assert steps == [NUM_CANDIDATES, NUM_CANDIDATES, 1, 1]
    first = model.generate(accompanied(), rewrite="2-3", seed=3, batch_size=3)
    again = model.generate(accompanied(), rewrite="2-3", seed=3)
    assert [piece.tokens.tolist() for piece in first] == [piece.tokens.tolist() for piece in again]
