"""A GPU computes what a CPU does: outputs, gradients, and decoding by a CUDA graph."""

import copy

import pytest
import torch
from torch import Tensor

from musicgen.generation.engines import make_engine
from musicgen.models import Transformer
from musicgen.random import NoiseKey
from tests.contracts.pairs import DISTINCT, NOISE, TRAINING_LENGTH, build, tokens

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

PREFILL = 30
# Their positions are read on the CPU in each step, or their state grows.
WITHOUT_GRAPH = ("learnable", "conv_spe")


@pytest.fixture(autouse=True)
def _cpu_by_default(monkeypatch):
    """Build and draw noise on the CPU: a device's own numbers differ."""
    draw = NoiseKey.normal
    monkeypatch.setattr(
        NoiseKey, "normal", lambda key, *shape, device: draw(key, *shape, device="cpu").to(device)
    )
    with torch.device("cpu"):
        yield


def gradients(model: Transformer, ids: Tensor, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return logits and gradients; `dtype`: of autocast."""
    model.zero_grad()
    with torch.autocast(ids.device.type, dtype, enabled=dtype is not None):
        logits = model(ids, noise=NOISE)
    torch.nn.functional.cross_entropy(logits.float().mT, ids.roll(-1, 1)).backward()
    grads = torch.cat([p.grad.flatten() for p in model.parameters()])
    return [logits.detach().float().cpu(), grads.cpu()]


@torch.inference_mode()
def decoded(model: Transformer, ids: Tensor) -> Tensor:
    engine = make_engine(model, NOISE, warn=pytest.fail)
    positions = torch.arange(TRAINING_LENGTH, device=ids.device)[None, :, None]
    positions = positions.expand(len(ids), -1, model.num_position_columns)
    _, state = engine.prefill(ids[:, :PREFILL], positions[:, :PREFILL])
    out = []
    for n in range(PREFILL, TRAINING_LENGTH):
        logits, state = engine.step(ids[:, n], positions[:, n], state)
        out.append(logits.clone())
    return torch.stack(out).cpu()


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("of", DISTINCT, ids=str)
def test_a_gpu_computes_what_a_cpu_does(of):
    model, ids = build(of), tokens(TRAINING_LENGTH)
    on_gpu, more = copy.deepcopy(model).cuda(), ids.cuda()
    exact, found = gradients(model, ids), gradients(on_gpu, more)
    assert max(map(error, found, exact)) < 1e-3
    logits, grads = map(error, gradients(on_gpu, more, torch.bfloat16), exact)
    assert logits < 0.02
    assert grads < 0.25
    if of.attention == "softmax" or of.position not in WITHOUT_GRAPH:
        assert error(decoded(on_gpu, more), decoded(model, ids)) < 1e-3
