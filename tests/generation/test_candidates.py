"""Bars that are written anew are drawn by what follows them, too."""

import numpy as np
import pytest
import torch

from musicgen.generation.decoder import Decoder
from musicgen.generation.engines import Engine
from musicgen.generation.sampler import NUM_CANDIDATES, PRIOR, choose, log_weights
from musicgen.random import NoiseKey
from musicgen.tokenization.coordinates import Coordinates
from tests.generation.builders import music_model
from tests.generation.test_fill import GAPS
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
    model, found = engine.model, log_weights(engine, prompt, candidates)
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


def test_a_candidate_that_the_future_alone_makes_probable_weighs_less():
    model, score = music_model(GAPS), accompanied()
    pieces = model.generate(score, rewrite=2, num_samples=3, seed=2)
    prompt = pieces[0].prompt
    behind, first = prompt.kept.conditioning.following, GAPS.future_length(prompt.tokens)
    assert first > 0
    candidates = [piece.tokens[len(prompt.tokens) :] for piece in pieces]
    engine = Engine(model.model, NoiseKey((0,)))

    def log_p(tokens, number):
        names, end = model.model.coordinate_names, prompt.gap_end
        positions = Coordinates(GAPS).of(tokens, names, bar_length=prompt.bar_length, gap_end=end)
        inputs = torch.from_numpy(tokens)[None], torch.from_numpy(positions)[None]
        with torch.inference_mode():
            logits = model.model(inputs[0], positions=inputs[1], noise=engine.noise)
        terms = logits[0, :-1].double().log_softmax(1)[range(len(tokens) - 1), tokens[1:]]
        return float(terms[-number:].sum())

    for candidate, weight in zip(candidates, log_weights(engine, prompt, candidates), strict=True):
        past = np.concatenate([prompt.tokens[first:], candidate])
        drawn = log_p(np.concatenate([prompt.tokens, candidate]), len(candidate))
        expected = log_p(np.concatenate([past, behind]), len(behind))
        expected += PRIOR * (log_p(past, len(candidate)) - drawn)
        assert float(weight) == pytest.approx(expected, abs=1e-3)


def test_a_candidate_is_drawn_by_its_weight(rewritten):
    engine, prompt, candidates = rewritten
    expected = log_weights(engine, prompt, candidates).softmax(0).numpy()
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


def test_guidance_takes_no_second_model_where_nothing_is_kept(monkeypatch):
    model, sizes = music_model(SONGS), []
    step = Decoder.step
    monkeypatch.setattr(
        Decoder,
        "step",
        lambda self, tokens, *more: sizes.append(len(tokens)) or step(self, tokens, *more),
    )
    for keep in ("", "voice"):
        options = {"keep": keep} if keep else {}
        model.generate(accompanied(), rewrite="3-4", guidance=2, **options)
        sizes.append(0)
    assert [*dict.fromkeys(sizes)] == [1, 0, 2]
