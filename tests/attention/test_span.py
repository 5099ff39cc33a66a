import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from musicgen.attention import AttentionMask, GaussianSpan, LayerSpan, SoftmaxAttention
from musicgen.attention.blockwise import BLOCK, AttentionPattern
from musicgen.position import SIREN, LayerCode, TransformerXL
from musicgen.random import NoiseKey
from tests.models.builders import small

NOISE = NoiseKey((1,))
HEADS, WIDTH = 2, 4
# σ of a window of w positions where N is the training length.
T = math.sqrt(-2 * math.log(0.1))


def sigma(window: float, length: int) -> float:
    return window / (length - 1) / T


def indices(length: int) -> Tensor:
    return torch.arange(length)[None, :, None]


def raster(height: int, width: int) -> Tensor:
    return torch.cartesian_prod(torch.arange(height), torch.arange(width))[None]


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    span: GaussianSpan | None,
    positions: Tensor,
    *,
    causal: bool,
    scale: float,
    key_mask: Tensor | None = None,
    position: torch.nn.Module | None = None,
) -> Tensor:
    """Full attention under a mask, pair by pair as the formulas have it: layer 0's output."""
    length = q.shape[1]
    lags = positions[:, None] - positions[:, :, None]  # [1|B, i, j, P]: key minus query
    logits = torch.einsum("bihk,bjhk->bhij", q, k)
    if position is not None:
        u, v_bias = position.content_bias[0], position.position_bias[0]
        p = position.encodings(lags[..., position.columns], 0)
        p = p.unflatten(-1, (HEADS, -1)).expand(len(q), -1, -1, -1, -1)  # [B, i, j, H, K]
        logits = logits + torch.einsum("bihk,bijhk->bhij", q, p)
        logits = logits + torch.einsum("hk,bjhk->bhj", u, k)[:, :, None]
        logits = logits + torch.einsum("hk,bijhk->bhij", v_bias, p)
    logits = logits * scale
    seen = torch.ones(length, length).bool()
    if causal:
        seen = seen.tril()
    seen = seen[None]
    if span is not None:
        x = lags[..., : len(span.sigma)] / span.normaliser
        log_gauss = -0.5 * (x**2 / span.sigma**2).sum(-1)[:, None]
        logits = logits * log_gauss.exp() if span.mode == "multiply" else logits + log_gauss
        if span.threshold is not None:
            half = (span.sigma * T * span.normaliser - 1e-3).ceil()
            seen = seen & (lags[..., : len(half)].abs() <= half).all(-1)
    if key_mask is not None:
        seen = seen & key_mask[:, None, :]
    weights = logits.masked_fill(~seen[:, None], -1e30).softmax(-1)
    return torch.einsum("bhij,bjhk->bihk", weights, v)


def compare(span, positions, *, position=None, causal, batch=2, key_mask=None):
    """Outputs and every gradient of ours against the dense form's."""
    length = positions.shape[1]
    modules = [m for m in (span, position) if m is not None]
    if position is not None:
        for bias in (position.content_bias, position.position_bias):
            torch.nn.init.normal_(bias)
    attention = SoftmaxAttention(WIDTH, 0.7, HEADS)
    found = []
    q, k, v, grad = torch.randn(4, batch, length, HEADS, WIDTH).unbind(0)
    if key_mask is not None:
        grad = grad * key_mask[:, :, None, None]
    for ours in (True, False):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        for module in modules:
            module.zero_grad()
        if ours:
            code = LayerCode() if position is None else position(positions, noise=NOISE)[0][0]
            layer_span = None if span is None else span(positions)
            out, _ = attention(*leaves, code, AttentionMask(causal, key_mask, layer_span))
        else:
            out = dense(
                *leaves, span, positions, causal=causal, scale=0.7, key_mask=key_mask,
                position=position
            )  # fmt: skip
        out.backward(grad)
        if key_mask is not None:
            out = out * key_mask[:, :, None, None]
        gradients = {n: p.grad for m in modules for n, p in m.named_parameters()}
        gradients |= {name: x.grad for name, x in zip("qkv", leaves, strict=True)}
        found.append({"out": out} | gradients)
    for name, theirs in found[1].items():
        ours, size = found[0][name], theirs.detach().abs().max()
        # One weight is 1 whatever its logit; and what shifts a query's logits alike does nothing.
        assert size > 0.01 or length == 1 or "bias" in name, name
        torch.testing.assert_close(ours, theirs, atol=5e-5 * max(1.0, float(size)), rtol=0)


def padding(length: int, *rows: int) -> Tensor:
    """Return the mask [B, L] of rows of so many tokens."""
    return torch.arange(length) < torch.tensor(rows)[:, None]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mode", ["multiply", "log"])
@pytest.mark.parametrize("length", [1, 63, 1000])
def test_span_is_full_attention_under_a_mask(length, mode, causal):
    span = GaussianSpan(training_length=500, mode=mode, sigma=sigma(36.5, 500))
    compare(span, indices(length) + 7, causal=causal, batch=1)


@pytest.mark.parametrize("causal", [True, False])
def test_masks_and_other_positions(causal):
    mask = torch.rand(2, 9) > 0.3
    mask[:, 0] = True
    for some in (None, mask):
        compare(None, indices(9), causal=causal, key_mask=some)
    for threshold in (0.1, None):
        span = GaussianSpan(training_length=300, threshold=threshold, sigma=sigma(20, 300))
        compare(span, indices(300), causal=causal, key_mask=padding(300, 180, 300))
    # Not consecutive, and of other rows.
    time = torch.randint(0, 3, (2, 200)).cumsum(1) + torch.tensor([[0], [1000]])
    span = GaussianSpan(training_length=200, sigma=sigma(15, 200))
    compare(span, time[..., None], causal=causal)
    size = (21, 17)
    for window in ((3, 2), (2, 100)):
        span = GaussianSpan(training_length=size)
        span.sigma.data = torch.tensor([sigma(w, n) for w, n in zip(window, size, strict=True)])
        span.update_window()
        assert span.window == window
        compare(span, raster(*size), causal=causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("build", [TransformerXL, partial(SIREN, training_length=100)])
def test_relative_encodings_are_the_four_terms(build, causal):
    position = build(1, HEADS, WIDTH, HEADS * WIDTH)
    for length in (2, 63, 150):
        compare(None, indices(length) + 3, position=position, causal=causal)
    compare(None, indices(50), position=position, causal=causal, key_mask=padding(50, 50, 30))
    time = torch.randint(0, 3, (2, 150)).cumsum(1)[..., None]
    compare(None, time, position=position, causal=causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mode", ["multiply", "log"])
def test_relative_encoding_under_a_span(mode, causal):
    for build in (TransformerXL, partial(SIREN, training_length=100)):
        position = build(1, HEADS, WIDTH, HEADS * WIDTH)
        span = GaussianSpan(training_length=400, mode=mode, sigma=sigma(30, 400))
        compare(span, indices(400), position=position, causal=causal, batch=1)
    size = (15, 12)
    span = GaussianSpan(training_length=size, mode=mode, sigma=0.1)
    siren = SIREN(1, HEADS, WIDTH, 8, training_length=size, coordinates=2)
    for both in (None, span):
        compare(both, raster(*size), position=siren, causal=causal)
    # One in one dimension, the other in two.
    compare(span, raster(*size), position=TransformerXL(1, HEADS, WIDTH, 8), causal=causal)


def test_only_what_lies_in_the_window_is_computed():
    """Pairs formed, against pairs seen: a band in one dimension, boxes in two."""

    def formed(positions, window, causal):
        last = torch.arange(positions.shape[1])[None] if causal else None
        span = LayerSpan(positions, torch.ones(len(window)), window, multiply=False)
        pattern = AttentionPattern(positions, positions, last, None, span, len(window), True)
        everything = torch.arange(positions.shape[1])
        return sum(len(everything[q]) * len(everything[k]) for q, k in pattern.blocks())

    length = 4096
    for window in (128, 512, 2048):
        assert formed(indices(length), (window,), True) <= length * (window + BLOCK)
        assert formed(indices(length), (window,), False) <= length * (2 * window + BLOCK)
    image = raster(64, 64)
    side = 11  # of a block of about 128
    assert formed(image, (5, 5), False) <= length * (11 + side - 1) ** 2
    assert formed(image, (5, 63), False) <= length * (11 + side - 1) * 64
    # Musical time: three tokens at each step.
    assert formed(indices(length) // 3, (40,), True) <= length * 3 * (41 + 128)


def test_gaussian_and_window_by_hand():
    span = GaussianSpan(training_length=[11, 5], sigma=0.3)
    # |x| ≤ 0.3 √(−2 ln 0.1) = 0.6438: 6.4 of 10 and 2.6 of 4 positions, rounded up.
    assert span.window == (7, 3)
    bound = span(torch.zeros(1, 1, 2).long())
    lags = torch.tensor([[0, 0], [5, 0], [-5, 2]]).float()
    weights = torch.exp(-(lags.square() @ bound.decay))
    expected = [1, np.exp(-0.5 * (0.5 / 0.3) ** 2), np.exp(-0.5 * (0.25 + 0.25) / 0.09)]
    np.testing.assert_allclose(weights.detach(), expected, rtol=1e-5)
    assert GaussianSpan(training_length=11, threshold=None).window is None


def test_window_follows_sigma_when_updated_and_when_loaded():
    span = GaussianSpan(training_length=101, sigma=sigma(10, 101))
    assert span.window == (10,)
    span.sigma.data.mul_(2.05)
    assert span.window == (10,)
    span.update_window()
    assert span.window == (21,)
    other = GaussianSpan(training_length=7)
    other.load_state_dict(span.state_dict())
    assert other.window == (21,)
    assert float(other.normaliser) == 100


def test_sigma_of_zero_has_finite_gradients():
    span = GaussianSpan(training_length=40)
    span.sigma.data.zero_()
    span.update_window()
    q, k, v = torch.randn(3, 1, 40, HEADS, WIDTH).unbind(0)
    attention = SoftmaxAttention(WIDTH, 0.7, HEADS)
    mask = AttentionMask(causal=True, span=span(indices(40)))
    out, _ = attention(q, k, v, LayerCode(), mask)
    torch.testing.assert_close(out, v)
    out.sum().backward()
    assert span.sigma.grad.isfinite().all()


@torch.no_grad()
def test_cache_is_trimmed_to_the_window_and_equals_the_parallel_form():
    span = partial(GaussianSpan, training_length=60, sigma=sigma(10, 60))
    sizes = {"dim": 8, "num_heads": 2, "ff_dim": 8, "init_std": 0.5}
    model = small(TransformerXL, vocab_size=20, span=span, **sizes)
    ids = torch.randint(20, (2, 300))
    outputs, state = [], None
    # Many at once, before single ones and in between.
    for part in ids.split([70, *[1] * 181, 44, *[1] * 5], dim=1):
        out, state = model.forward_with_state(part, noise=NOISE, state=state)
        outputs.append(out)
        if len(outputs) in range(2, 183):
            assert state.layers[0][0].k.shape[1] <= 32
    assert state.layers[0][0].k.shape[1] <= 128
    parallel = model(ids, noise=NOISE)
    torch.testing.assert_close(torch.cat(outputs, 1), parallel, atol=1e-4, rtol=0)
