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
def test_decaying_toeplitz_attention_has_t_and_m_of_zero(position, attention):
    net = model(position, attention).double()
    found = identical_token_weights(net, range(VOCAB), LENGTH, NOISE)
    assert found.shape == (LAYERS, HEADS, LENGTH, LENGTH)
    # Copies of one token have one query and key in all layers: only the position's factor differs.
    if position is ALiBi:
        rates = 2.0 ** -np.array([4, 8])
    else:
        rates = -net.layers[1].attention.log_decay.detach().numpy()
    lags = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))
    for layer in found.numpy():
        for matrix, rate in zip(layer, rates, strict=True):
            expected = np.tril(np.exp(-rate * lags)) * matrix[0, 0]
            np.testing.assert_allclose(matrix, expected, rtol=1e-6)
        rows = invariance_rows(layer, N)
        assert len(rows) == HEADS * 9
        for row in rows:
            # Not 0: the normaliser's ε makes the first tokens' outputs a little smaller.
            assert row["translation_invariance"] == pytest.approx(0, abs=1e-6)
            assert row["monotonicity"] == 0


def test_without_a_position_t_is_undefined_and_with_a_learned_one_large():
    found = identical_token_weights(model(NoPosition).double(), [1, 2], LENGTH, NOISE)
    for row in invariance_rows(found[0].numpy(), N):
        assert np.isnan(row["translation_invariance"])
        assert row["monotonicity"] == 0
    learnable = model(partial(Learnable, max_length=LENGTH)).double()
    found = identical_token_weights(learnable, [1, 2], LENGTH, NOISE, layers=[0])
    assert min(row["translation_invariance"] for row in invariance_rows(found[0].numpy(), N)) > 0.1


def test_the_mean_is_over_tokens_with_noise_of_their_own():
    net = model(partial(SineSPE, num_realizations=6), partial(LinearAttention, feature_map=FAVOR))
    ids, layers = [2, 7], [1, 2]
    found = identical_token_weights(net, ids, LENGTH, NOISE, layers=layers)
    expected = [0, 0]
    for token in ids:
        tokens = torch.full((1, LENGTH), token)
        each = attention_weights(net, tokens, form="features", noise=NOISE.fold(token))
        for i, (weights, log_scale) in enumerate(list(each)[1:]):
            expected[i] = expected[i] + weights[0] * log_scale[0].exp()[:, None, None] / len(ids)
    for matrix, sums in zip(found, expected, strict=True):
        ratio = matrix.tril().sum((-1, -2)) / sums.sum((-1, -2))
        torch.testing.assert_close(matrix, sums * ratio[:, None, None], rtol=1e-4, atol=1e-6)


def test_normalised_weights_of_a_piece():
    net = model(ALiBi)
    tokens = torch.arange(LENGTH)[None] % VOCAB
    before = net(tokens)
    matrices = [weights for weights, _ in attention_weights(net, tokens)]
    assert len(matrices) == LAYERS
    for weights in matrices:
        assert weights.shape == (1, HEADS, LENGTH, LENGTH)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, HEADS, LENGTH))
        assert (weights.triu(1) == 0).all()
    assert not any(module._forward_pre_hooks for module in net.modules())
    torch.testing.assert_close(net(tokens), before, atol=0, rtol=0)
