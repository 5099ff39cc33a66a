import torch

from musicgen.attention import AttentionMask, SoftmaxAttention
from musicgen.position import LayerCode


def test_softmax_attention_is_the_formula_under_both_masks():
    q, k, v = torch.randn(3, 2, 9, 3, 4).unbind(0)
    mask = torch.rand(2, 9) > 0.3
    mask[:, 0] = True
    attention = SoftmaxAttention(4, 0.3, 3)
    logits = 0.3 * torch.einsum("bnhe,bmhe->bhnm", q, k)
    visible = mask[:, None, None, :]
    for causal in (False, True):
        both = visible & torch.ones(9, 9).bool().tril() if causal else visible
        weights = logits.masked_fill(~both, -torch.inf).softmax(-1)
        expected = torch.einsum("bhnm,bmhv->bnhv", weights, v)
        out, state = attention(q, k, v, LayerCode(), AttentionMask(causal, mask))
        assert state is None
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_state_grows_without_touching_the_one_it_came_from():
    q = torch.randn(1, 40, 2, 4)
    attention, code, mask = SoftmaxAttention(4, 0.5, 2), LayerCode(), AttentionMask(causal=True)
    _, first = attention(q[:, :3], q[:, :3], q[:, :3], code, mask, return_state=True)
    copy = first.k.clone()
    state = first
    for n in range(3, 40):
        one = q[:, n : n + 1]
        out, state = attention(one, one, one, code, mask, state=state, return_state=True)
    assert state.longest == 40
    assert state.k.shape[1] == 64
    assert torch.equal(first.k, copy)
    whole, _ = attention(q, q, q, code, mask)
    torch.testing.assert_close(out[:, 0], whole[:, -1])
