"""Features of any size, given as logarithms, against a softmax over pairs of tokens in fp64."""

import pytest
import torch
from torch import Tensor

from musicgen.attention import LinearState, causal_linear_attention
from musicgen.attention.linear import linear_attention_step
from musicgen.attention.stabilise import stabilise
from tests.attention.inputs import BATCH, DECAY, HEADS, VALUES, WIDTH, decays, random_mask

KINDS = ["wild", "rising", "falling", "calm"]
# Without a decay, by head, and by token and head.
DECAYS = ["none", "head", "mild", "sparse", "wide"]


def inputs(kind: str, length: int, dtype=torch.float64) -> list[Tensor]:
    """Exponents in the hundreds: of every size at once, rising, falling, or calm but for one."""
    q, k = 100 * torch.randn(2, BATCH, length, HEADS, WIDTH, dtype=torch.float64)
    n = torch.arange(length)[:, None, None]
    if kind == "rising":
        k = k / 50 + 3 * n
    elif kind == "falling":
        k = k / 50 - 3 * n
    elif kind == "calm":
        q, k = q / 100, k / 100
        k[:, length // 3, 1] += 500
    v = torch.randn(BATCH, length, HEADS, VALUES, dtype=torch.float64)
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


def oracle(q, k, v, decay=None, mask=None, causal=True) -> Tensor:
    """Σ_f exp(q_f + k_f) as a logarithm, then a softmax over the keys: no product can overflow."""
    q, k, v = (x.double() for x in (q, k, v))
    logits = (q[:, :, None] + k[:, None]).logsumexp(-1).permute(0, 3, 1, 2)  # [B, H, N, M]
    if decay is not None:
        sums = decay.double().expand(q.shape[:3]).cumsum(1).transpose(1, 2)
        logits = logits + sums[..., :, None] - sums[..., None, :]
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None, None], -torch.inf)
    n = torch.arange(q.shape[1])
    if causal:
        logits = logits.masked_fill(n > n[:, None], -torch.inf)
    weights = logits.softmax(-1).nan_to_num(0)  # a query without keys: nothing
    return torch.einsum("bhnm,bmhv->bnhv", weights, v)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(
    ("dtype", "masked"), [(torch.float64, False), (torch.float64, True), (torch.float32, False)]
)
def test_outputs_and_gradients_equal_softmax_over_pairs(kind, decay, dtype, masked):
    tensors, rates = inputs(kind, 150, dtype), decays(decay, 150)
    tensors += [] if rates is None else [rates.to(dtype, copy=True).requires_grad_()]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    mask = random_mask(150) if masked else None
    if masked:
        mask[0, :5] = False  # queries without keys
    options = {"log_features": True, "log_decay": (*tensors, None)[3], "key_mask": mask}
    out, _ = causal_linear_attention(*tensors[:3], **options)
    expected = oracle(*exact[:3], (*exact, None)[3], mask)
    assert expected.abs().mean() > 0.1
    weights = torch.randn_like(expected)
    single = dtype == torch.float32
    bounds = {"atol": 1e-3, "rtol": 0} if single else {"atol": 1e-9, "rtol": 1e-9}
    torch.testing.assert_close(out.double(), expected, **bounds)
    found = torch.autograd.grad((out * weights.to(dtype)).sum(), tensors)
    wanted = torch.autograd.grad((expected * weights).sum(), exact)
    bounds = {"atol": 5e-3, "rtol": 5e-3} if single else bounds
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x.double(), y, **bounds)


def test_strong_decay_of_moderate_features_needs_no_second_scale():
    q, k, _ = (3 * x.detach() for x in inputs("calm", 500))
    k[:, 500 // 3] = 0
    assert stabilise(q, k, None, decays("wide", 500), None, False)[2].keys() == {0}


@torch.no_grad()
@pytest.mark.parametrize("part", [1, 10, 70])
def test_sums_that_decay_over_many_parts_stay_in_range_in_fp32(part):
    q, k, v = (x[:, :300] for x in inputs("calm", 900, torch.float32))
    k[:, 0] += 120  # all else is far below, and takes over as this decays
    decay = DECAY.new_full((HEADS,), -0.5)
    outputs, state = [], None
    for some in zip(*(x.split(part, dim=1) for x in (q, k, v)), strict=True):
        out, state = causal_linear_attention(
            *some, log_features=True, log_decay=decay, state=state, return_state=True
        )
        outputs.append(out.double())
    expected = oracle(q, k, v, decay)
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_a_huge_key_changes_nothing_before_it_nor_where_it_is_masked():
    q, k, v = inputs("calm", 100, torch.float32)
    larger = k.clone()
    larger[:, 70] += 1e4
    before, _ = causal_linear_attention(q, k, v, log_features=True)
    after, _ = causal_linear_attention(q, larger, v, log_features=True)
    torch.testing.assert_close(after[:, :70], before[:, :70], atol=1e-6, rtol=0)
    # It is the only key that the queries behind it see.
    torch.testing.assert_close(after[:, 70:], v[:, 70:71].expand(-1, 30, -1, -1), atol=1e-4, rtol=0)
    mask = torch.ones(BATCH, 100).bool()
    mask[:, 70] = False
    masked, state = causal_linear_attention(
        q, larger, v, log_features=True, key_mask=mask, return_state=True
    )
    expected, _ = causal_linear_attention(q, k, v, log_features=True, key_mask=mask)
    assert torch.equal(masked, expected)
    assert state.log_scale.max() < 1e3


@torch.no_grad()
@pytest.mark.parametrize("decay", [None, DECAY])
def test_rows_that_have_seen_no_key_start_later(decay):
    q, k, v = inputs("wild", 30)
    mask = torch.ones(BATCH, 30).bool()
    mask[0, :12] = False
    parts = (x.split([10, 20], dim=1) for x in (q, k, v, mask))
    (*before, seen), (*after, more) = zip(*parts, strict=True)
    options = {"log_features": True, "log_decay": decay}
    first, state = causal_linear_attention(*before, **options, key_mask=seen, return_state=True)
    assert (first[0] == 0).all()
    rest, _ = causal_linear_attention(*after, **options, key_mask=more, state=state)
    found = torch.cat((first, rest), dim=1)
    torch.testing.assert_close(found, oracle(q, k, v, decay, mask), atol=1e-9, rtol=1e-9)
    one = (x[:, 10:11] for x in (q, k, v))
    out, _ = linear_attention_step(*one, LinearState(*(x[:1] for x in state)), log_decay=decay)
    torch.testing.assert_close(out[0], v[0, 10:11])


@pytest.mark.parametrize("rho", [4.5, 6.0])
@pytest.mark.parametrize("kind", ["wild", "falling", "calm"])
def test_decay_of_a_range_beyond_fp32_in_one_token(rho, kind):
    decay = -torch.tensor([rho, 0.0, -4.0]).exp().double()
    q, k, v = inputs(kind, 80, torch.float32)
    v.data[:, :, :, 0] = 1
    rate = decay.float().requires_grad_()
    options = {"log_features": True, "log_decay": rate}
    out, _ = causal_linear_attention(q, k, v, **options)
    expected = oracle(q, k, v, decay)
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=0)
    weights = torch.randn_like(v)
    grads = torch.autograd.grad((out * weights).sum(), (q, k, v, rate))
    rate = decay.clone().requires_grad_()
    loss = (oracle(q, k, v, rate) * weights).sum()
    for found, right in zip(grads, torch.autograd.grad(loss, (q, k, v, rate)), strict=True):
        torch.testing.assert_close(found.double(), right.double(), atol=1e-3, rtol=1e-3)
    # In two parts, the second from the state of the first.
    first, state = causal_linear_attention(
        q[:, :33], k[:, :33], v[:, :33], **options, return_state=True
    )
    rest, _ = causal_linear_attention(q[:, 33:], k[:, 33:], v[:, 33:], **options, state=state)
    torch.testing.assert_close(torch.cat((first, rest), 1).double(), expected, atol=1e-4, rtol=0)
