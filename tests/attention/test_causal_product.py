"""The chunked form against the naive one, and the naive one against a loop over tokens."""

import pytest
import torch

from musicgen.attention import LinearState, causal_linear_attention
from musicgen.attention.linear.product import bidirectional_linear_attention, linear_attention_step

DECAY = torch.tensor([-3.0, -0.2, -1e-3], dtype=torch.float64)


def inputs(length: int, dtype=torch.float64):
    q, k = torch.rand(2, 2, length, 3, 10, dtype=dtype) + 0.1
    v = torch.randn(2, length, 3, 7, dtype=dtype)
    return [x.requires_grad_() for x in (q, k, v)]


def masks(length: int):
    mask = torch.rand(2, length) > 0.3
    mask[:, 0] = True
    return [None, mask]


@pytest.mark.parametrize("decay", [torch.zeros(3, dtype=torch.float64), DECAY])
def test_naive_is_the_sum_over_tokens_so_far(decay):
    q, k, v = (x.detach() for x in inputs(9))
    log_decay = decay if decay.any() else None
    options = {"log_decay": log_decay, "backend": "naive", "return_state": True, "eps": 0.5}
    out, state = causal_linear_attention(q, k, v, **options)
    for b in range(2):
        for h in range(3):
            for n in range(9):
                fading = (decay[h] * (n - torch.arange(n + 1))).exp()
                weights = [float(q[b, n, h] @ k[b, m, h] * fading[m]) for m in range(n + 1)]
                total = sum(w * v[b, m, h] for m, w in enumerate(weights))
                torch.testing.assert_close(out[b, n, h], total / (sum(weights) + 0.5))
            faded = k[b, :, h] * fading[:, None]  # to the last token
            torch.testing.assert_close(state.kv[b, h], faded.T @ v[b, :, h])
            torch.testing.assert_close(state.k[b, h], faded.sum(0))


@pytest.mark.parametrize("length", [1, 63, 128, 1000])
@pytest.mark.parametrize("masked", [0, 1])
@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("decaying", [False, True])
def test_chunked_equals_naive_outputs_states_and_gradients(length, masked, continued, decaying):
    q, k, v = inputs(length)
    decay = DECAY.clone().requires_grad_() if decaying else None
    mask = masks(length)[masked]
    state = None
    if continued:
        _, state = causal_linear_attention(*(x.detach() for x in inputs(5)), return_state=True)
    weights = torch.randn_like(v)
    results = []
    for backend in ("naive", "chunked"):
        out, last = causal_linear_attention(
            q, k, v, log_decay=decay, key_mask=mask, state=state, return_state=True, backend=backend
        )
        wanted = (q, k, v, decay) if decaying else (q, k, v)
        grads = torch.autograd.grad((out * weights).sum(), wanted)
        results.append((out, last.kv, last.k, *grads))
    for naive, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, naive, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("length", [1, 63, 150])
@pytest.mark.parametrize("log_features", [False, True])
@pytest.mark.parametrize("decaying", [False, True])
def test_the_first_state_has_gradients(length, log_features, decaying):
    q, k, v = (x.detach() for x in inputs(length))
    if log_features:
        q, k = 5 * q.log(), 5 * k.log()
        k[:, 90:] += 100  # a rescale point
    kv = torch.randn(2, 3, 10, 7, dtype=torch.float64).requires_grad_()
    k_sum = (torch.rand(2, 3, 10, dtype=torch.float64) + 0.1).requires_grad_()
    log_scale = 3 * torch.randn(2, 3, 10, dtype=torch.float64) if log_features else None
    decay = DECAY if decaying else torch.zeros_like(DECAY)
    # The first state as one more key for each feature, whose logarithm is that of its sum.
    n = torch.arange(length)
    log_k, log_q = (k, q) if log_features else (k.log(), q.log())
    pairs = torch.einsum("bnhe,bmhe->bhnm", log_q.exp(), log_k.exp())
    pairs = pairs * (decay[:, None, None] * (n[:, None] - n)).exp() * (n <= n[:, None])
    before = log_q.exp() * (decay * (n[:, None] + 1)).exp()[..., None]
    if log_scale is not None:
        before = before * log_scale.exp()[:, None]
    numerator = torch.einsum("bhnm,bmhv->bnhv", pairs, v)
    numerator = numerator + torch.einsum("bnhe,bhev->bnhv", before, kv)
    divisor = pairs.sum(-1).transpose(1, 2) + torch.einsum("bnhe,bhe->bnh", before, k_sum)
    expected = numerator / divisor[..., None]
    weights = torch.randn_like(v)
    wanted = torch.autograd.grad((expected * weights).sum(), (kv, k_sum))
    for backend in ("naive", "chunked"):
        state = LinearState(kv, k_sum, log_scale)
        options = {"log_features": log_features, "log_decay": DECAY if decaying else None}
        out, _ = causal_linear_attention(
            q, k, v, **options, state=state, eps=1e-30, backend=backend
        )
        torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-10)
        found = torch.autograd.grad((out * weights).sum(), (kv, k_sum))
        for x, y in zip(found, wanted, strict=True):
            assert y.abs().max() > 1e-3
            torch.testing.assert_close(x, y, atol=1e-10, rtol=1e-8)


def test_single_precision_is_within_1e_4_of_the_largest_entry():
    q, k, v = (x.detach().float() for x in inputs(1000))
    exact, _ = causal_linear_attention(q.double(), k.double(), v.double(), backend="naive")
    fast, _ = causal_linear_attention(q, k, v, backend="chunked")
    assert fast.dtype == torch.float32
    assert (fast - exact).abs().max() < 1e-4 * exact.abs().max()


@pytest.mark.parametrize("decay", [None, DECAY])
def test_steps_continue_the_parallel_form(decay):
    q, k, v = (x.detach() for x in inputs(20))
    whole, end = causal_linear_attention(q, k, v, log_decay=decay, return_state=True)
    _, state = causal_linear_attention(
        q[:, :12], k[:, :12], v[:, :12], log_decay=decay, return_state=True
    )
    for n in range(12, 20):
        one = slice(n, n + 1)
        out, state = linear_attention_step(q[:, one], k[:, one], v[:, one], state, log_decay=decay)
        torch.testing.assert_close(out, whole[:, one])
    torch.testing.assert_close(state.kv, end.kv)


def test_bidirectional_form_sees_every_unmasked_key():
    q, k, v = (x.detach() for x in inputs(11))
    mask = masks(11)[1]
    weights = torch.einsum("bnhe,bmhe->bhnm", q, k) * mask[:, None, None]
    expected = torch.einsum("bhnm,bmhv->bnhv", weights / weights.sum(-1, keepdim=True), v)
    out = bidirectional_linear_attention(q, k, v, key_mask=mask, eps=0)
    torch.testing.assert_close(out, expected)


def test_second_derivatives_are_refused_instead_of_wrong():
    q, k, v = (torch.rand(1, 9, 2, 4, requires_grad=True) for _ in range(3))
    out, _ = causal_linear_attention(q, k, v, backend="chunked")
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_a_step_under_autocast_stays_in_fp32():
    q, k, v = (torch.rand(2, 20, 3, 8) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        _, state = causal_linear_attention(q[:, :19], k[:, :19], v[:, :19], return_state=True)
        last, _ = linear_attention_step(q[:, 19:], k[:, 19:], v[:, 19:], state)
    expected, _ = causal_linear_attention(q, k, v, backend="naive")
    torch.testing.assert_close(last, expected[:, 19:], atol=1e-5, rtol=0)
