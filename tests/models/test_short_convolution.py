"""The short convolution on a CPU: against conv2d, which other devices use."""

import pytest
import torch

from musicgen.models import layer
from musicgen.models.layer import ShortConvolution


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("masked", [False, True])
def test_shifted_sum_is_the_convolution(length, masked, monkeypatch):
    torch.manual_seed(0)
    convolution = ShortConvolution(5, 4).double()
    torch.nn.init.normal_(convolution.weight)
    x = torch.randn(2, length, 5, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, length) < 0.7 if masked else None
    weights, results = torch.randn(2, length, 5), []
    for large in (True, False):
        monkeypatch.setattr(layer, "prefers_large_operations", lambda device, large=large: large)
        y, after = convolution(x, mask, True, None)
        inputs = x, convolution.weight
        results.append([y, after, *torch.autograd.grad((y * weights).sum(), inputs)])
    torch.testing.assert_close(*results)
