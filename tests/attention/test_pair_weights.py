"""Matrices of attention against exponentials computed by hand; every pair: tests/contracts."""

import math
from functools import partial

import pytest
import torch

from musicgen.attention import ELU, FAVOR, AttentionMask, LinearAttention, SoftmaxAttention
from musicgen.attention.pair_weights import pair_weights
from musicgen.errors import ParameterError
from musicgen.position import ALiBi, LayerCode, RoPE, Site
from musicgen.random import NoiseKey

L, H, K = 12, 2, 4
CAUSAL = AttentionMask(True)


def queries_and_keys():
    return torch.randn(2, 1, L, H, K, dtype=torch.float64)


def linear(feature_map, **options) -> LinearAttention:
    return LinearAttention(K, K**-0.5, H, feature_map=feature_map, **options).double().eval()


def unscaled(found):
    weights, log_scale = found
    return weights * log_scale.exp()[..., None, None]


def exponentials(q, k):
    """exp(q·k / √K) of the pairs that a causal mask leaves."""
    return (torch.einsum("bmhk,bnhk->bhmn", q, k) / math.sqrt(K)).exp().tril()


@pytest.mark.parametrize("form", ["features", "exponential"])
def test_softmax_is_exponentials(form):
    q, k = queries_and_keys()
    found = pair_weights(SoftmaxAttention(K, K**-0.5, H), q, k, LayerCode(), CAUSAL, form)
    torch.testing.assert_close(unscaled(found), exponentials(q, k))


def test_an_unknown_form_is_refused():
    q, k = queries_and_keys()
    with pytest.raises(ParameterError, match=r"^form=exponentials: expected one of features,"):
        pair_weights(SoftmaxAttention(K, K**-0.5, H), q, k, LayerCode(), CAUSAL, "exponentials")


def test_alibi_multiplies_them_by_a_power_of_the_lag():
    q, k = queries_and_keys()
    alibi = ALiBi(1, H, K, H * K)
    code = alibi(torch.arange(L)[None, :, None], noise=NoiseKey((0,)))[0][0]
    found = pair_weights(SoftmaxAttention(K, K**-0.5, H), q, k, code, CAUSAL, "features")
    lags = torch.arange(L)[:, None] - torch.arange(L)
    slopes = torch.tensor([2.0**-4, 2.0**-8])[:, None, None]
    expected = exponentials(q, k) * (-slopes * lags).exp()
    torch.testing.assert_close(unscaled(found), expected)


def test_favor_estimates_exponentials():
    q, k = queries_and_keys() / 2
    favor = linear(partial(FAVOR, num_features=40_000))
    estimate, exact = (
        unscaled(pair_weights(favor, q, k, LayerCode(), CAUSAL, form))
        for form in ("features", "exponential")
    )
    torch.testing.assert_close(exact, exponentials(q, k))
    torch.testing.assert_close(estimate, exact, rtol=0.1, atol=0.02)


def test_elu_features_with_decay():
    q, k = queries_and_keys()
    attention = linear(ELU, decay="head")
    with torch.no_grad():
        attention.decay[:] = torch.tensor([0.5, 0.1]).log()
    found = unscaled(pair_weights(attention, q, k, LayerCode(), CAUSAL, "features"))
    phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    lags = torch.arange(L)[:, None] - torch.arange(L)
    decay = torch.tensor([0.5, 0.1])[:, None, None] * lags
    expected = torch.einsum("bmhk,bnhk->bhmn", phi_q, phi_k) * (-decay).exp()
    torch.testing.assert_close(found, expected.tril(), rtol=1e-6, atol=1e-9)


def test_large_logits_do_not_overflow():
    q, k = 100 * queries_and_keys()
    for form in ("features", "exponential"):
        for attention in (linear(FAVOR), SoftmaxAttention(K, K**-0.5, H)):
            weights, log_scale = pair_weights(attention, q, k, LayerCode(), CAUSAL, form)
            assert weights.isfinite().all()
            assert (log_scale.abs() > 1000).all()


def test_what_estimates_no_exponential_is_refused():
    q, k = queries_and_keys()
    with pytest.raises(ParameterError, match=r"form=exponential.*FAVOR"):
        pair_weights(linear(ELU), q, k, LayerCode(), CAUSAL, "exponential")
    favor = linear(partial(FAVOR, num_features=8), site=Site.FEATURE)
    rope = RoPE(1, H, 8, H * K, site="feature")
    code = rope(torch.arange(L)[None, :, None], noise=NoiseKey((0,)))[0][0]
    with pytest.raises(ParameterError, match=r"form=exponential.*FAVOR"):
        pair_weights(favor, q, k, code, CAUSAL, "exponential")
