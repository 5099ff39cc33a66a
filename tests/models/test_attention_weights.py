"""Attention matrices of whole models, and T and M of known ones."""

from functools import partial

import numpy as np
import pytest
import torch

from musicgen.attention import ELU, FAVOR, LinearAttention, SoftmaxAttention
from musicgen.metrics.attention_invariance import invariance_rows
from musicgen.models.inspection import identical_token_weights
from musicgen.position import ALiBi, NoPosition, RoPE, SineSPE
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
    # Copies of one token have one query and key in all layers: only the position's factor differs.
    rates = 2.0 ** -np.array([4, 8])
    if position is NoPosition:
        rates = -net.layers[1].attention.log_decay.detach().numpy()
    lags = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))
    for layer in found.numpy():
        np.testing.assert_allclose(layer, np.tril(np.exp(-rates[:, None, None] * lags)), rtol=1e-5)
        rows = [(row["T"], row["M"]) for row in invariance_rows(layer, N)]
        assert rows == [(pytest.approx(0, abs=1e-9), 0)] * 9


def test_t_of_an_exact_encoding_is_zero_though_tokens_have_logits_of_their_own():
    net = small(RoPE, SoftmaxAttention, **SIZES, init_std=0.5).double()
    (found,) = identical_token_weights(net, range(VOCAB), LENGTH, NOISE, layers=[0]).numpy()
    assert [row["T"] for row in invariance_rows(found, N)] == pytest.approx([0] * 9, abs=1e-9)


def test_the_mean_is_over_tokens_with_noise_of_their_own():
    favor = partial(LinearAttention, feature_map=FAVOR)
    net = small(partial(SineSPE, num_realizations=6), favor, **SIZES)
    ids, layers = [2, 7], [1, 2]
    found = identical_token_weights(net, ids, LENGTH, NOISE, layers=layers)
    expected = 0
    for token in ids:
        tokens = torch.full((1, LENGTH), token)
        each = net.attentions(tokens, layers=layers, noise=NOISE.fold(token))
        each = each / each.diagonal(dim1=-2, dim2=-1)[..., None]
        expected = expected + (each / each.amax((-2, -1), keepdim=True))[:, 0] / len(ids)
    torch.testing.assert_close(found, expected)
