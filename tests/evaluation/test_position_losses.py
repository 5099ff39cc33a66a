import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from musicgen.errors import UserError
from musicgen.evaluation.position_loss import Pieces, losses_by_unit, position_losses
from musicgen.random import NoiseKey
from musicgen.tokenization import REMI
from musicgen.tokenization.coordinates import Coordinates
from tests.checkpoints.small_model import FAVOR, MODEL, SPE, small_model
from tests.data.builders import melody


@pytest.fixture
def tokens():
    return np.random.default_rng(0).integers(0, 20, 65)


def test_a_draw_is_one_pass_with_its_key(tokens):
    model = small_model(position=SPE).model
    key = NoiseKey((3, 1))
    losses = position_losses(model, tokens, key, num_draws=3)
    assert losses.shape == (3, 64)
    ids = torch.from_numpy(tokens)
    for draw, loss in enumerate(losses):
        log_p = model(ids[None, :-1], noise=key.fold(draw))[0].log_softmax(-1)
        expected = -log_p[torch.arange(64), ids[1:]].detach()
        np.testing.assert_allclose(loss, expected, atol=1e-5)
    assert np.array_equal(losses, position_losses(model, tokens, key, num_draws=3))
    assert np.ptp(losses.mean(1)) > 1e-3
    other = position_losses(model, tokens, NoiseKey((3, 2)))
    assert (other[:, 1:] != losses[0, 1:]).all()  # the first token sees no other


@pytest.mark.parametrize("position", [MODEL["position"], SPE | {"num_realizations": None}])
def test_encodings_without_noise_have_one_draw(tokens, position):
    model = small_model(position=position).model
    assert position_losses(model, tokens, NoiseKey((0,)), num_draws=5).shape == (1, 64)


def test_many_realizations_approach_the_exact_limit(tokens):
    """Under softmax attention nothing but the noise changes with R."""
    softmax = {"_target_": "musicgen.attention.SoftmaxAttention", "_partial_": True}
    music = small_model(position=SPE, attention=softmax, dim=16)
    (limit,) = position_losses(music.with_realizations(None).model, tokens, NoiseKey((0,)))
    errors = []
    for number in (8, 512, 32768):
        changed = music.with_realizations(number).model
        assert not changed.training
        losses = position_losses(changed, tokens, NoiseKey((0,)), num_draws=4)
        errors.append(math.sqrt(np.square(losses - limit).mean()))
    assert errors[0] > 3 * errors[1] > 9 * errors[2] > 0
    assert music.with_realizations(4).model is music.model


@pytest.mark.parametrize("num_features", [None, 32])
def test_random_features_keep_their_number_and_are_drawn_by_seed(tokens, num_features):
    favor = MODEL["attention"] | {"feature_map": FAVOR | {"num_features": num_features}}
    music = small_model(position=SPE, attention=favor)
    model = music.model
    for number in (2, 64, None):
        torch.manual_seed(7)
        changed = music.with_realizations(number).model
        first = changed.layers[0].attention
        assert first.feature_dim == model.layers[0].attention.feature_dim
        assert first.feature_map.omega.shape[0] == changed.position.encoded_dim
        assert not torch.equal(
            first.feature_map.omega, changed.layers[1].attention.feature_map.omega
        )
        torch.manual_seed(8)
        again = music.with_realizations(number).model
        assert torch.equal(again.layers[0].attention.feature_map.omega, first.feature_map.omega)
        for name, weight in model.named_parameters():
            assert torch.equal(dict(changed.named_parameters())[name], weight), name
        assert np.isfinite(position_losses(changed, tokens, NoiseKey((0,)))).all()


def test_numbers_of_realizations_that_an_encoding_cannot_have_are_refused():
    conv = small_model(position=SPE | {"_target_": "musicgen.position.ConvSPE"})
    for music, number in ((small_model(), 4), (conv, None)):
        with pytest.raises(UserError, match=f"^num_realizations={number}: only SPE has"):
            music.with_realizations(number)
    with pytest.raises(UserError, match="num_realizations=0: expected"):
        conv.with_realizations(0)


def test_a_bar_that_the_length_cuts_is_left_out():
    class Cache(list):
        bar_lengths = (16,)

    tokenizer = REMI()
    piece = tokenizer.encode(melody(0, num_notes=16))  # four bars, and an end token
    data = SimpleNamespace(tokenizer=tokenizer, cache=Cache([piece]))
    third = int((Coordinates(tokenizer).of(piece, ["bar"]) < 2).sum())
    for length, tokens, bars in ((len(piece), len(piece) - 2, 4), (third + 5, third - 1, 2)):
        losses = [np.ones((1, min(length, len(piece) - 1)))]
        ((kept,), count) = losses_by_unit(losses, Pieces(data, [0], length), "bar")
        assert (kept.shape, count) == ((1, tokens), [bars])
