"""The causal product: the gradient of its first state, and its precision."""

import pytest
import torch

from musicgen.attention import LinearState, causal_linear_attention
from musicgen.attention.linear.product import linear_attention_step
from tests.attention.inputs import DECAY


def inputs(length: int, dtype=torch.float64):
    q, k = torch.rand(2, 2, length, 3, 10, dtype=dtype) + 0.1
    v = torch.randn(2, length, 3, 7, dtype=dtype)
    return [x.requires_grad_() for x in (q, k, v)]


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
    state = LinearState(kv, k_sum, log_scale)
    options = {"log_features": log_features, "log_decay": DECAY if decaying else None}
    out, _ = causal_linear_attention(q, k, v, **options, state=state, eps=1e-30)
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-10)
    found = torch.autograd.grad((out * weights).sum(), (kv, k_sum))
    for x, y in zip(found, wanted, strict=True):
        assert y.abs().max() > 1e-3
        torch.testing.assert_close(x, y, atol=1e-10, rtol=1e-8)


def test_second_derivatives_are_refused_instead_of_wrong():
    q, k, v = (torch.rand(1, 9, 2, 4, requires_grad=True) for _ in range(3))
    out, _ = causal_linear_attention(q, k, v)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_a_step_under_autocast_stays_in_fp32():
    q, k, v = (torch.rand(2, 20, 3, 8) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        _, state = causal_linear_attention(q[:, :19], k[:, :19], v[:, :19], return_state=True)
        last, _ = linear_attention_step(q[:, 19:], k[:, 19:], v[:, 19:], state)
    expected, _ = causal_linear_attention(q, k, v)
    torch.testing.assert_close(last, expected[:, 19:], atol=1e-5, rtol=0)
