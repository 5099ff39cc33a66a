"""The causal product and its decays against a recurrence in fp64."""

from itertools import product

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
from musicgen.attention.causal_product import normaliser
from musicgen.attention.linear import linear_attention_step
from musicgen.position import LayerCode, PermuteFormer, Site
from musicgen.random import NoiseKey
from tests.attention.inputs import BATCH, HEADS, VALUES, WIDTH, decays, random_mask


def features(length: int) -> list[Tensor]:
    q, k = torch.rand(2, BATCH, length, HEADS, WIDTH, dtype=torch.float64) + 0.1
    return [q, k, torch.randn(BATCH, length, HEADS, VALUES, dtype=torch.float64)]


def recurrence(q, k, v, rates, mask, kv, k_sum, eps=0.0) -> list[Tensor]:
    """S_n = γ_n S_{n−1} + k_n v_nᵀ and its normaliser, token by token."""
    out = []
    for n in range(q.shape[1]):
        keys = k[:, n] * mask[:, n, None, None]
        gamma = rates[:, n].exp()[..., None]
        kv = gamma[..., None] * kv + keys[..., None] * v[:, n, :, None]
        k_sum = gamma * k_sum + keys
        numerator = torch.einsum("bhe,bhev->bhv", q[:, n], kv)
        out.append(numerator / ((q[:, n] * k_sum).sum(-1, keepdim=True) + eps))
    return [torch.stack(out, dim=1), kv, k_sum]


@pytest.mark.parametrize(
    ("log_features", "kind"),  # of logarithms, the recurrence vanishes under larger decays
    [*product([False, True], ["none", "head", "mild"]), (False, "sparse"), (False, "wide")],
)
@pytest.mark.parametrize(("length", "masked"), [*product([1, 63], [False, True]), (300, False)])
def test_outputs_states_and_gradients_are_those_of_the_recurrence(
    length, masked, log_features, kind
):
    q, k, v = features(length)
    kv = torch.randn(BATCH, HEADS, WIDTH, VALUES, dtype=torch.float64)
    k_sum = torch.rand(BATCH, HEADS, WIDTH, dtype=torch.float64) + 0.1
    log_scale, eps = torch.zeros_like(k_sum), 0.5
    if log_features:
        q, k, eps = 5 * q.log(), 5 * k.log(), 1e-30
        k[:, 90:] += 100  # a rescale point
        log_scale = 3 * torch.randn_like(k_sum)
    mask = random_mask(length) if masked else torch.ones(BATCH, length).bool()
    rates = decays(kind, length)
    leaves = [x.requires_grad_() for x in (q, k, v, kv, k_sum)]
    if rates is not None:
        rates = rates.clone().requires_grad_()
        leaves.append(rates)

    by_token = (v.new_zeros(1) if rates is None else rates).expand(BATCH, length, HEADS)
    mapped = (q.exp(), k.exp()) if log_features else (q, k)
    first = log_scale.exp()[..., None] * kv, log_scale.exp() * k_sum
    expected = recurrence(*mapped, v, by_token, mask, *first, eps=eps)
    state = LinearState(kv, k_sum, log_scale if log_features else None)
    options = {"log_features": log_features, "key_mask": mask if masked else None, "eps": eps}
    out, last = causal_linear_attention(
        q, k, v, log_decay=rates, **options, state=state, return_state=True
    )
    size = last.log_scale.exp() if log_features else torch.ones_like(last.k)
    weights = torch.randn_like(out)
    wanted, found = (
        [*results, *torch.autograd.grad((results[0] * weights).sum(), leaves)]
        for results in (expected, [out, size[..., None] * last.kv, size * last.k])
    )
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, atol=1e-10, rtol=1e-9)


@torch.no_grad()
def test_a_huge_decay_leaves_the_small_ones_behind_it_exact():
    q, k, v = features(60)
    rates = decays("mild", 60)
    rates[:, 5] = -1e6
    zeros = torch.zeros(BATCH, HEADS, WIDTH, VALUES), torch.zeros(BATCH, HEADS, WIDTH)
    expected = recurrence(q, k, v, rates, torch.ones(BATCH, 60), *zeros)[0]
    single = [x.float() for x in (q, k, v)]
    out, _ = causal_linear_attention(*single, log_decay=rates.float())
    torch.testing.assert_close(out.double(), expected, atol=3e-6, rtol=0)


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


def test_tiny_normalisers_have_finite_gradients():
    sums = torch.tensor([0.0, 1e-38, 0.5], requires_grad=True)
    (1 / normaliser(sums, None)).sum().backward()
    torch.testing.assert_close(sums.grad, torch.tensor([-1.0, -1.0, -4.0]))


def test_second_derivatives_are_those_of_the_recurrence():
    q, k, v = (x.requires_grad_() for x in features(9))
    zeros = torch.zeros(BATCH, HEADS, WIDTH, VALUES), torch.zeros(BATCH, HEADS, WIDTH)
    found, expected = (
        causal_linear_attention(q, k, v, eps=0)[0],
        recurrence(q, k, v, torch.zeros(BATCH, 9, HEADS), torch.ones(BATCH, 9), *zeros)[0],
    )
    results = []
    for out in (found, expected):
        (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        results.append(torch.autograd.grad(grad.square().sum(), (q, k, v)))
    torch.testing.assert_close(*results, atol=1e-8, rtol=1e-8)


def test_sums_over_tokens_do_not_overflow_in_fp16(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    q, k, v = (torch.rand(1, 1500, 1, 64) + 0.5 for _ in range(3))
    expected, _ = causal_linear_attention(q, k, v)
    with torch.autocast("cpu", torch.float16):
        out, _ = causal_linear_attention(q, k, v)
    torch.testing.assert_close(out.float(), expected, atol=1e-2, rtol=0)


def test_a_step_under_autocast_stays_in_fp32():
    q, k, v = (torch.rand(2, 20, 3, 8) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        _, state = causal_linear_attention(q[:, :19], k[:, :19], v[:, :19], return_state=True)
        last, _ = linear_attention_step(q[:, 19:], k[:, 19:], v[:, 19:], state)
    expected, _ = causal_linear_attention(q, k, v)
    torch.testing.assert_close(last, expected[:, 19:], atol=1e-5, rtol=0)
