"""Decay by token and head against a recurrence and a softmax over pairs, both in fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.attention import (
    ELU,
    FAVOR,
    AttentionMask,
    LinearAttention,
    LinearState,
    causal_linear_attention,
)
from musicgen.attention.linear.product import linear_attention_step
from musicgen.attention.linear.stabilise import stabilise
from musicgen.position import LayerCode, PermuteFormer, Site
from musicgen.random import NoiseKey

BATCH, HEADS, WIDTH, VALUES = 2, 3, 10, 7


def decays(kind: str, length: int) -> Tensor:
    """Logarithms: small ones, none but of some tokens, or of every size up to e^9."""
    noise = torch.rand(BATCH, length, HEADS, dtype=torch.float64)
    if kind == "mild":
        return -0.2 * noise
    if kind == "sparse":
        return torch.where(noise < 0.05, -1e4, 0.0).double()
    return -(12 * noise - 3).exp()


def features(length: int) -> list[Tensor]:
    q, k = torch.rand(2, BATCH, length, HEADS, WIDTH, dtype=torch.float64) + 0.1
    return [q, k, torch.randn(BATCH, length, HEADS, VALUES, dtype=torch.float64)]


def exponents(kind: str, length: int) -> list[Tensor]:
    """Logarithms of features: in the hundreds, rising, falling, or near 0 but for one token."""
    q, k = torch.randn(2, BATCH, length, HEADS, WIDTH, dtype=torch.float64)
    slopes = {"rising": 3.0, "falling": -3.0}
    if kind == "wild":
        q, k = 100 * q, 100 * k
    elif kind in slopes:
        k = k + slopes[kind] * torch.arange(length)[:, None, None]
    else:
        k[:, length // 3, 1] += 500
    return [q, k, torch.randn(BATCH, length, HEADS, VALUES, dtype=torch.float64)]


def recurrence(q, k, v, rates, mask, kv, k_sum) -> list[Tensor]:
    """S_n = γ_n S_{n−1} + k_n v_nᵀ and its normaliser, token by token."""
    out = []
    for n in range(q.shape[1]):
        keys = k[:, n] * mask[:, n, None, None]
        gamma = rates[:, n].exp()[..., None]
        kv = gamma[..., None] * kv + keys[..., None] * v[:, n, :, None]
        k_sum = gamma * k_sum + keys
        numerator = torch.einsum("bhe,bhev->bhv", q[:, n], kv)
        out.append(numerator / (q[:, n] * k_sum).sum(-1, keepdim=True))
    return [torch.stack(out, dim=1), kv, k_sum]


def softmax_over_pairs(q, k, v, rates, mask=None) -> Tensor:
    """Σ_f exp(q_f + k_f) and the decays as logarithms: no product can overflow."""
    q, k, v, rates = (x.double() for x in (q, k, v, rates))
    logits = (q[:, :, None] + k[:, None]).logsumexp(-1).permute(0, 3, 1, 2)  # [B, H, N, M]
    sums = rates.cumsum(1).transpose(1, 2)
    logits = logits + sums[..., :, None] - sums[..., None, :]
    n = torch.arange(q.shape[1])
    hidden = (n > n[:, None])[None, None]
    if mask is not None:
        hidden = hidden | ~mask[:, None, None]
    weights = logits.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0)
    return torch.einsum("bhnm,bmhv->bnhv", weights, v)


@pytest.mark.parametrize("length", [1, 63, 1000])
@pytest.mark.parametrize("kind", ["mild", "sparse", "wide"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_outputs_states_and_gradients_are_those_of_the_recurrence(length, kind, masked, backend):
    if length == 1000 and (backend == "naive" or masked):
        pytest.skip("slow")
    q, k, v = features(length)
    mask = torch.rand(BATCH, length) > (0.3 if masked else -1)
    rates = decays(kind, length) * mask[..., None]  # 0 / 0 where all has decayed but no key follows
    kv = torch.randn(BATCH, HEADS, WIDTH, VALUES, dtype=torch.float64)
    k_sum = torch.rand(BATCH, HEADS, WIDTH, dtype=torch.float64) + 0.1
    mask[:, 0] = True
    leaves = [x.requires_grad_() for x in (q, k, v, rates, kv, k_sum)]
    expected = recurrence(q, k, v, rates, mask, kv, k_sum)
    out, last = causal_linear_attention(
        q,
        k,
        v,
        log_decay=rates,
        key_mask=mask if masked else None,
        state=LinearState(kv, k_sum),
        return_state=True,
        eps=1e-30,
        backend=backend,
    )
    weights = torch.randn_like(out)
    wanted, found = (
        [*results, *torch.autograd.grad((results[0] * weights).sum(), leaves)]
        for results in (expected, [out, last.kv, last.k])
    )
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("features_of", ["wild", "rising", "falling", "calm"])
@pytest.mark.parametrize("kind", ["mild", "sparse", "wide"])
@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_logarithms_of_features_of_any_size(features_of, kind, backend):
    q, k, v = exponents(features_of, 150)
    rates, mask = decays(kind, 150), torch.rand(BATCH, 150) > 0.2
    leaves = [x.requires_grad_() for x in (q, k, v, rates)]
    options = {"log_features": True, "key_mask": mask, "backend": backend}
    out, _ = causal_linear_attention(q, k, v, log_decay=rates, **options)
    weights = torch.randn_like(out)
    wanted, found = (
        [x, *torch.autograd.grad((x * weights).sum(), leaves)]
        for x in (softmax_over_pairs(q, k, v, rates, mask), out)
    )
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("features_of", ["wild", "rising", "falling", "calm"])
@pytest.mark.parametrize("kind", ["mild", "sparse", "wide"])
def test_single_precision_neither_overflows_nor_vanishes(features_of, kind):
    tensors = [*exponents(features_of, 400), decays(kind, 400)]
    single = [x.float().requires_grad_() for x in tensors]
    out, _ = causal_linear_attention(*single[:3], log_features=True, log_decay=single[3])
    exact = [x.detach().double().requires_grad_() for x in single]
    expected = softmax_over_pairs(*exact)
    torch.testing.assert_close(out.double(), expected, atol=1e-3, rtol=0)
    weights = torch.randn_like(out)
    found = torch.autograd.grad((out * weights).sum(), single)
    wanted = torch.autograd.grad((expected * weights).sum(), exact)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x.double(), y, atol=5e-3, rtol=5e-3)


@torch.no_grad()
@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_a_huge_decay_leaves_the_small_ones_behind_it_exact(backend):
    q, k, v = features(60)
    rates = decays("mild", 60)
    rates[:, 5] = -1e6
    zeros = torch.zeros(BATCH, HEADS, WIDTH, VALUES), torch.zeros(BATCH, HEADS, WIDTH)
    expected = recurrence(q, k, v, rates, torch.ones(BATCH, 60), *zeros)[0]
    single = [x.float() for x in (q, k, v)]
    out, _ = causal_linear_attention(*single, log_decay=rates.float(), backend=backend)
    torch.testing.assert_close(out.double(), expected, atol=3e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("features_of", ["wild", "rising", "falling", "calm"])
@pytest.mark.parametrize("kind", ["mild", "sparse", "wide"])
def test_prefill_in_parts_and_steps_are_the_parallel_form(features_of, kind):
    tensors = [*exponents(features_of, 150), decays(kind, 150)]
    outputs, state = [], None
    for part in (slice(0, 70), slice(70, 135)):
        q, k, v, rates = (x[:, part] for x in tensors)
        out, state = causal_linear_attention(
            q, k, v, log_features=True, log_decay=rates, state=state, return_state=True
        )
        outputs.append(out)
    for n in range(135, 150):
        q, k, v, rates = (x[:, n : n + 1] for x in tensors)
        out, state = linear_attention_step(q, k, v, state, log_decay=rates)
        outputs.append(out)
    found, expected = torch.cat(outputs, dim=1), softmax_over_pairs(*tensors)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    assert state.k.max() < 1e15


def test_strong_decay_of_moderate_features_needs_no_rescale_points():
    q, k, _ = (3 * x for x in exponents("calm", 500))
    k[:, 500 // 3] = 0
    assert stabilise(q, k, None, decays("wide", 500), None, False)[2] == {}


@pytest.mark.parametrize("feature_map", [ELU, FAVOR])
def test_zeros_begin_as_the_decay_by_head(feature_map):
    q, k, v = (x.float() for x in features(40))
    by_token, by_head = (
        LinearAttention(WIDTH, 0.3, HEADS, feature_map=feature_map, decay=decay)
        for decay in ("token", "head")
    )
    by_token.feature_map.load_state_dict(by_head.feature_map.state_dict())
    arguments = q, k, v, LayerCode(), AttentionMask(True)
    out, _ = by_token(*arguments, token_decay=torch.zeros(BATCH, 40, HEADS))
    torch.testing.assert_close(out, by_head(*arguments)[0])


@torch.no_grad()
def test_masked_tokens_do_not_decay_what_is_before_them():
    q, k, v = (x.float() for x in features(30))
    attention = LinearAttention(WIDTH, 0.3, HEADS, feature_map=ELU, decay="token")
    numbers = 3 * torch.randn(BATCH, 30, HEADS)
    kept = [*range(11), *range(14, 30)]
    mask = torch.zeros(BATCH, 30).bool()
    mask[:, kept] = True
    whole, _ = attention(q, k, v, LayerCode(), AttentionMask(True, mask), token_decay=numbers)
    shorter = (x[:, kept] for x in (q, k, v))
    out, _ = attention(*shorter, LayerCode(), AttentionMask(True), token_decay=numbers[:, kept])
    torch.testing.assert_close(whole[:, kept], out)


@torch.no_grad()
@pytest.mark.parametrize("site", [Site.QUERY_KEY, Site.FEATURE])
def test_the_decay_of_the_code_is_added(site):
    attention = LinearAttention(
        WIDTH, 0.3, HEADS, site=site, feature_map=ELU, decay="token"
    ).double()
    encoding = PermuteFormer(1, HEADS, WIDTH, HEADS * WIDTH).double()
    code = encoding(torch.arange(30)[None, :, None], noise=NoiseKey((1,)))[0][0]
    q, k, v = features(30)
    numbers = torch.randn(BATCH, 30, HEADS, dtype=torch.float64)
    phi_q, phi_k = q, k
    if site == Site.QUERY_KEY:
        phi_q, phi_k = code.encode(q, k)
    phi_q, phi_k = (F.elu(x) + 1 for x in (phi_q, phi_k))
    if site == Site.FEATURE:
        phi_q, phi_k = code.encode(phi_q, phi_k)
    rates = -F.softplus(numbers) * attention.decay.exp() + code.log_decay
    zeros = torch.zeros(BATCH, HEADS, WIDTH, VALUES), torch.zeros(BATCH, HEADS, WIDTH)
    expected = recurrence(phi_q, phi_k, v, rates, torch.ones(BATCH, 30), *zeros)[0]
    out, _ = attention(q, k, v, code, AttentionMask(True), token_decay=numbers)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-6)
