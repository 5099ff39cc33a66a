import math
from functools import partial

import numpy as np
import pytest
import torch

from musicgen.attention import AttentionMask, SoftmaxAttention
from musicgen.position import SIREN, TransformerXL
from musicgen.random import NoiseKey
from tests.models.builders import small

NOISE = NoiseKey((1,))


def test_siren_is_the_published_network():
    """Algorithm 5 of Alfons (2022), entry by entry in numpy."""
    siren = SIREN(
        2, 2, 3, 6, training_length=[9, 5], coordinates=2, depth=4, omega_first=7.0, omega=3.0
    )
    for bias in siren.biases:
        torch.nn.init.normal_(bias)
    lags = torch.tensor([[0, 0], [8, -4], [-3, 1]])
    for layer in range(2):
        weights = [w[layer].detach().double().numpy() for w in siren.weights]
        biases = [b[layer].detach().double().numpy() for b in siren.biases]
        x = lags.double().numpy() / [8, 4]
        h = np.sin(7 * (x @ weights[0].T + biases[0]))
        h = np.sin(3 * (h @ weights[1].T + biases[1]))
        h = np.sin(3 * (h @ weights[2].T + biases[2]))
        expected = h @ weights[3].T + biases[3]
        np.testing.assert_allclose(siren.encodings(lags, layer).detach(), expected, atol=1e-4)


def test_siren_starts_as_published():
    siren = SIREN(1, 4, 64, 256, training_length=[9, 5], coordinates=2)
    first, hidden, last = siren.weights
    assert first.shape == (1, 256, 2)
    assert 0.49 < float(first.detach().abs().max()) <= 0.5
    limit = math.sqrt(6 / 256) / 10
    assert 0.99 * limit < float(hidden.detach().abs().max()) <= limit
    assert float(last.detach().std()) == pytest.approx(math.sqrt(2 / 256), rel=0.02)
    assert all((bias == 0).all() for bias in siren.biases)
    # The model's own initialisation leaves it alone.
    model = small(partial(SIREN, training_length=9), dim=256, num_heads=4, init_std=0.001)
    assert float(model.position.weights[-1].detach().std()) > 0.05


def test_siren_tells_far_lags_apart_with_weights_in_bf16():
    siren = SIREN(1, 2, 4, 8, training_length=2048).bfloat16()
    p = siren.encodings(torch.tensor([-1001, -1000])[:, None], 0)
    assert not torch.equal(p[0], p[1])


def test_siren_clamps_lags_beyond_its_training_length():
    siren = SIREN(1, 2, 4, 8, training_length=20)
    lags = torch.tensor([19, 20, 400, -19, -35])[:, None]
    p = siren.encodings(lags, 0)
    assert torch.equal(p[0], p[1])
    assert torch.equal(p[0], p[2])
    assert torch.equal(p[3], p[4])
    assert (p[0] - p[3]).abs().max() > 0.1


def test_transformer_xl_is_sinusoids_and_a_linear_layer_with_bias():
    """Algorithm 3 of Alfons (2022), with signed lags, entry by entry."""
    dim = 6
    encoding = TransformerXL(2, 2, 3, dim)
    torch.nn.init.normal_(encoding.bias)
    lags = [-5, 0, 3]
    s = np.zeros((3, dim))
    for i, x in enumerate(lags):
        for j in range(dim):
            angle = x * math.exp(-(j - j % 2) * math.log(10000) / dim)
            s[i, j] = math.cos(angle) if j % 2 else math.sin(angle)
    weight, bias = encoding.weight[1].detach().numpy(), encoding.bias[1].detach().numpy()
    found = encoding.encodings(torch.tensor(lags)[:, None], 1).detach()
    np.testing.assert_allclose(found, s @ weight.T + bias, atol=1e-5)


def test_a_lag_is_computed_once_and_causally_only_the_past():
    siren = SIREN(1, 2, 4, 8, training_length=20)
    asked = []
    encodings = siren.encodings
    siren.encodings = lambda lags, layer: asked.append(lags) or encodings(lags, layer)
    q = torch.randn(3, 50, 2, 4)
    positions = torch.arange(50)[None, :, None] + 4
    for causal, expected in ((True, range(-49, 1)), (False, range(-49, 50))):
        asked.clear()
        codes, _ = siren(positions, noise=NOISE)
        SoftmaxAttention(4, 0.5, 2)(q, q, q, codes[0], AttentionMask(causal))
        assert [lags[:, 0].tolist() for lags in asked] == [list(expected)]
