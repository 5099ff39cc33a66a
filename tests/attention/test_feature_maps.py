import pytest
import torch

from musicgen.attention import ELU, FAVOR, ReLU
from musicgen.random import NoiseKey


def products(favor, q, k):
    """φ(q)·φ(k) of all pairs, without the factor of each query."""
    queries = favor.queries(q @ favor.directions)
    keys = favor.keys(k @ favor.directions, k.square().sum(-1, keepdim=True))
    return queries.exp() @ keys.exp().T


@torch.no_grad()
def test_favor_is_unbiased_before_its_scales_are_left_out():
    q, k = 0.5 * torch.randn(2, 8, 4)
    favor = FAVOR(4, 0.5, num_features=16_000)
    left_out = (-0.5 * q.square().sum(-1, keepdim=True) / 2).exp() / 16_000
    found = left_out * products(favor, q, k)
    torch.testing.assert_close(found, (q @ k.T / 2).exp(), atol=0, rtol=0.1)


def test_favor_columns_are_orthogonal_in_blocks_with_normal_lengths():
    omega = FAVOR(16, 0.25, num_features=2 * 40).omega
    assert omega.shape == (16, 40)
    for block in omega.split(16, dim=1):
        gram = block.T @ block
        torch.testing.assert_close(gram, gram.diagonal().diag(), atol=1e-4, rtol=0)
    many = FAVOR(16, 0.25, num_features=8000).omega
    # A chi distribution of 16 degrees: mean square 16, not one length for all.
    assert many.square().sum(0).mean().item() == pytest.approx(16, rel=0.05)
    assert many.norm(dim=0).std() > 0.5


def test_favor_redraw_is_a_function_of_its_key_and_omega_is_saved():
    favor = FAVOR(8, 0.3, num_features=16)
    assert "omega" in favor.state_dict()
    drawn = [favor.omega.clone()]
    for key in (1, 2, 1):
        favor.redraw(NoiseKey((key,)))
        drawn.append(favor.omega.clone())
    assert [torch.equal(omega, drawn[1]) for omega in drawn] == [False, True, False, True]


def test_favor_features_come_in_pairs():
    assert FAVOR(8, 8**-0.5).feature_dim == FAVOR(20, 8**-0.5).feature_dim == 16


def test_relu_and_elu_by_hand():
    x = torch.tensor([-1.0, 0.0, 2.0, 4.0])
    relu = ReLU(4, 4**-0.5)  # √logit_scale = 4^-¼
    expected = torch.tensor([0, 0, 2, 4]) * 4**-0.25 + 1e-3
    torch.testing.assert_close(relu.queries(x), expected)
    torch.testing.assert_close(relu.keys(x), expected)
    elu = ELU(4, 0.5)
    expected = torch.tensor([torch.tensor(-1.0).exp().item(), 1, 3, 5])
    torch.testing.assert_close(elu.queries(x), expected)
    torch.testing.assert_close(elu.keys(x), expected)
