"""ALiBi's logits, as Press et al. (2022) write them."""

import torch

from musicgen.attention import AttentionMask, SoftmaxAttention
from musicgen.position import ALiBi
from musicgen.random import NoiseKey


def test_logits_equal_the_papers():
    """§3: softmax(q_i Kᵀ + m · [−(i − 1), …, −1, 0]), m a geometric sequence from 2^(−8/H)."""
    heads, width, length = 4, 3, 70
    encoding = ALiBi(2, heads, width, heads * width)
    assert encoding.slopes().tolist() == [1 / 4, 1 / 16, 1 / 64, 1 / 256]
    q, k, v = torch.randn(3, 2, length, heads, width)
    codes, _ = encoding(torch.arange(length)[None, :, None], noise=NoiseKey((0,)))
    out, _ = SoftmaxAttention(width, width**-0.5, heads)(
        q, k, v, codes[1], AttentionMask(causal=True)
    )
    for h, m in enumerate([2**-2, 2**-4, 2**-6, 2**-8]):
        for i in (0, 1, 33, 69):
            bias = m * torch.arange(-i, 1)
            logits = torch.einsum("bk,bjk->bj", q[:, i, h], k[:, : i + 1, h]) / width**0.5 + bias
            expected = torch.einsum("bj,bjv->bv", logits.softmax(-1), v[:, : i + 1, h])
            torch.testing.assert_close(out[:, i, h], expected, atol=1e-5, rtol=0)


def test_biases_of_lags_in_two_dimensions_add_up():
    encoding = ALiBi(1, 2, 3, 6, coordinates=2)
    biases = encoding.logit_bias(torch.tensor([[0, 0], [3, -2], [-1, 0]]))
    expected = [[[0, -5 / 16, -1 / 16]], [[0, -5 / 256, -1 / 256]]]
    torch.testing.assert_close(biases, torch.tensor(expected))
