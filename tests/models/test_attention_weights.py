"""Attention matrices of whole models, and T and M of known ones."""

from functools import partial

import numpy as np
import pytest
import torch

from musicgen.attention import ELU, FAVOR, LinearAttention, SoftmaxAttention
from musicgen.metrics.attention_invariance import invariance_rows
from musicgen.models.attention_weights import attention_weights, identical_token_weights
from musicgen.position import ALiBi, NoPosition, SineSPE
from musicgen.random import NoiseKey
from tests.models.builders import VOCAB, small

HEADS, LAYERS, N, LENGTH = 2, 3, 32, 40
NOISE = NoiseKey((3,))
SIZES = {"dim": 8, "num_layers": LAYERS, "num_heads": HEADS}
decayed = partial(LinearAttention, feature_map=ELU, decay="head")


@pytest.mark.parametrize(
    ("position", "attention"), [(ALiBi, SoftmaxAttention), (NoPosition, decayed)]
)
def test_decaying_attention_has_t_and_m_of_zero(position, attention):
    net = small(position, attention, **SIZES).double()
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


def test_the_mean_is_over_tokens_with_noise_of_their_own():
    favor = partial(LinearAttention, feature_map=FAVOR)
    net = small(partial(SineSPE, num_realizations=6), favor, **SIZES)
    ids, layers = [2, 7], [1, 2]
    found = identical_token_weights(net, ids, LENGTH, NOISE, layers=layers)
    expected = 0
    for token in ids:
        tokens = torch.full((1, LENGTH), token)
        each = attention_weights(net, tokens, layers=layers, noise=NOISE.fold(token))
        expected = expected + each[:, 0] / len(ids)
    torch.testing.assert_close(found, expected)
