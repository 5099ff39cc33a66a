"""Work that is compiled on a GPU, compiled on a CPU, equals plain torch, gradients included."""

import shutil
from functools import partial

import pytest
import torch

from musicgen.attention import FAVOR, LinearAttention
from musicgen.position import SineSPE
from musicgen.position.spe import sine_operators
from musicgen.position.spe.sine_operators import Fused
from musicgen.random import NoiseKey
from tests.models.builders import small

COMPILE = torch.compile
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler here"
)


def gradients(num_realizations: int | None, rows: int, gated: bool) -> list[torch.Tensor]:
    """Return the output of a small model and the gradients of its parameters."""
    position = partial(SineSPE, num_realizations=num_realizations, gated=gated)
    attention = partial(LinearAttention, feature_map=partial(FAVOR, num_features=16))
    model = small(position, attention, vocab_size=9, dim=16, num_heads=2).train()
    out = model(torch.randint(9, (rows, 37)), noise=NoiseKey((1,)))
    out.square().mean().backward()
    return [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@needs_compiler
@pytest.mark.parametrize(
    ("backend", "num_realizations", "rows", "gated"),
    [("aot_eager", None, 1, False), pytest.param("inductor", 8, 3, True, marks=pytest.mark.slow)],
)
def test_compiled_equals_plain(monkeypatch, backend, num_realizations, rows, gated):
    plain = gradients(num_realizations, rows, gated)
    compiled = []

    def compiling(function, **options):
        compiled.append(function.__name__)
        return COMPILE(function, backend=backend, **options)

    monkeypatch.setattr(torch, "compile", compiling)
    monkeypatch.setattr(Fused, "should_compile", staticmethod(lambda x: True))
    for name in ("expand", "contract"):
        monkeypatch.setattr(sine_operators, name, Fused(getattr(sine_operators, name).function))
    for found, expected in zip(gradients(num_realizations, rows, gated), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert sorted(compiled) == ["contract", "expand"]
    assert sine_operators.expand.can_compile
    assert sine_operators.contract.can_compile


def test_a_failing_compiler_warns_once_and_changes_nothing(monkeypatch):
    def fail(function, **options):
        raise RuntimeError("no compiler\nwith a long story")

    monkeypatch.setattr(torch, "compile", fail)
    monkeypatch.setattr(Fused, "should_compile", staticmethod(lambda x: True))
    double = Fused(lambda x: 2 * x)
    x = torch.rand(3)
    with pytest.warns(UserWarning, match="SPE runs uncompiled: RuntimeError: no compiler$"):
        assert torch.equal(double(x), 2 * x)
    assert torch.equal(double(x), 2 * x)  # a second warning would fail the test
