"""Attention matrices of whole models, and T and M of known ones."""

from functools import partial

import numpy as np
import pytest
import torch

from musicgen.attention import ELU, FAVOR, LinearAttention, SoftmaxAttention
from musicgen.metrics.attention_invariance import invariance_rows
from musicgen.models import Transformer
from musicgen.models.attention_weights import attention_weights, identical_token_weights
from musicgen.position import ALiBi, Learnable, NoPosition, SineSPE
from musicgen.random import NoiseKey

HEADS, LAYERS, N, LENGTH, VOCAB = 2, 3, 32, 40, 9
NOISE = NoiseKey((3,))
decayed = partial(LinearAttention, feature_map=ELU, decay="head")


def model(position, attention=SoftmaxAttention) -> Transformer:
    sizes = {"dim": 8, "num_layers": LAYERS, "num_heads": HEADS, "ff_dim": 16}
    return Transformer(VOCAB, **sizes, position=position, attention=attention, init_std=0.5).eval()


@pytest.mark.parametrize(
    ("position", "attention"), [(ALiBi, SoftmaxAttention), (NoPosition, decayed)]
)
def test_decaying_attention_has_t_and_m_of_zero(position, attention):
    net = model(position, attention).double()
    found = identical_token_weights(net, range(VOCAB), LENGTH, NOISE, layers=range(LAYERS))
    assert found.shape == (LAYERS, HEADS, LENGTH, LENGTH)
    # Copies of one token have one query and key in all layers: only the position's factor differs.
    if position is ALiBi:
        rates = 2.0 ** -np.array([4, 8])
    else:
        rates = -net.layers[1].attention.log_decay.detach().numpy()
    lags = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))
    for layer in found.numpy():
        for matrix, rate in zip(layer, rates, strict=True):
            expected = np.tril(np.exp(-rate * lags))
            expected /= expected.sum(-1, keepdims=True)
            # The normaliser's ε makes the first tokens' outputs a little smaller.
            np.testing.assert_allclose(matrix, expected, rtol=1e-5)
        rows = invariance_rows(layer, N)
        assert len(rows) == 9
        assert all(row["T"] == pytest.approx(0, abs=1e-6) and row["M"] == 0 for row in rows)


def test_a_learned_position_has_a_large_t():
    learnable = model(partial(Learnable, max_length=LENGTH)).double()
    found = identical_token_weights(learnable, [1, 2], LENGTH, NOISE, layers=[0])
    assert min(row["T"] for row in invariance_rows(found[0].numpy(), N)) > 0.1


def test_the_mean_is_over_tokens_with_noise_of_their_own():
    net = model(partial(SineSPE, num_realizations=6), partial(LinearAttention, feature_map=FAVOR))
    ids, layers = [2, 7], [1, 2]
    found = identical_token_weights(net, ids, LENGTH, NOISE, layers=layers)
    expected = 0
    for token in ids:
        tokens = torch.full((1, LENGTH), token)
        each = attention_weights(net, tokens, layers=layers, noise=NOISE.fold(token))
        expected = expected + each[:, 0] / len(ids)
    torch.testing.assert_close(found, expected)


def test_normalised_weights_of_a_piece():
    net = model(ALiBi)
    tokens = torch.arange(LENGTH)[None] % VOCAB
    before = net(tokens)
    matrices = attention_weights(net, tokens, layers=range(LAYERS))
    for weights in matrices:
        assert weights.shape == (1, HEADS, LENGTH, LENGTH)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, HEADS, LENGTH))
        assert (weights.triu(1) == 0).all()
    assert not any(module._forward_pre_hooks for module in net.modules())
    torch.testing.assert_close(net(tokens), before, atol=0, rtol=0)
