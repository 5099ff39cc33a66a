"""The contracts on another device: pytest tests/contracts --device cuda."""

import pytest
import torch


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="of the models: cpu, cuda, mps")


@pytest.fixture(autouse=True)
def _on_device(request):
    with torch.device(request.config.getoption("--device", "cpu")):
        yield
