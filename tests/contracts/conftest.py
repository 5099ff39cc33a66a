"""The contracts on another device: pytest tests/contracts --device cuda."""

import pytest
import torch


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="of the models: cpu, cuda, mps")


@pytest.fixture(autouse=True)
def _on_device(request):
    device = request.config.getoption("--device", "cpu")
    if device == "cpu":  # where the models are anyway; torch would intercept every call
        yield
        return
    torch.manual_seed(0)
    with torch.device(device):
        yield
