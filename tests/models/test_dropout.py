"""Dropout: what it keeps, by how much it scales, and what it leaves to torch."""

import pytest
import torch

from musicgen.models.dropout import Dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_drops_each_element_by_itself_with_the_probability(p, dtype):
    x = torch.ones(401, 1001, dtype=dtype, requires_grad=True)
    y = Dropout(p)(x)
    assert y.dtype == dtype
    kept = y.detach() != 0
    scale = torch.full((int(kept.sum()),), 1 / (1 - p), dtype=dtype)
    torch.testing.assert_close(
        y.detach()[kept], scale, rtol=1e-2 if dtype.itemsize < 4 else 1e-4, atol=0
    )
    deviation = (p * (1 - p)) ** 0.5
    assert abs(kept.float().mean() - (1 - p)) < 5 * deviation / x.numel() ** 0.5
    # Rows, columns and neighbours alike.
    assert (kept.float().mean(0) - (1 - p)).abs().max() < 6 * deviation / 401**0.5
    assert (kept.float().mean(1) - (1 - p)).abs().max() < 6 * deviation / 1001**0.5
    both = (kept[:, 1:] & kept[:, :-1]).float().mean()
    assert abs(both - (1 - p) ** 2) < 5 / x.numel() ** 0.5
    y.backward(torch.full_like(y, 3))
    torch.testing.assert_close(x.grad, 3 * y.detach())


def test_same_seed_same_mask_and_another_the_next_time():
    drop, x = Dropout(0.3), torch.ones(7, 11, 3)
    torch.manual_seed(5)
    first, second = drop(x), drop(x)
    torch.manual_seed(5)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first, second)


def test_nothing_everything_and_evaluation():
    for x in (torch.randn(5, 5), torch.ones(0, 4)):
        for p in (0.0, 1.0):
            assert torch.equal(Dropout(p)(x), x * (1 - p))
        assert torch.equal(Dropout(0.5).eval()(x), x)
