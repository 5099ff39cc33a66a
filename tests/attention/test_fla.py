"""Flash-linear-attention's kernels on a CPU, by Triton's interpreter: `make test-triton`.

The interpreter is chosen when Triton is imported, so these tests have a process of their own.
"""

import builtins
import os
from importlib.util import find_spec

import pytest

from musicgen.attention import backends
from tests.attention.test_backends import assert_agrees, problem, some_state, with_decay_by_token

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or find_spec("fla") is None,
    reason="needs flash-linear-attention and TRITON_INTERPRET=1: make test-triton",
)


class Index(int):
    """An index of a loop, which compiled kernels convert and the interpreter leaves a number."""

    def to(self, dtype):
        return self


@pytest.fixture
def interpreter(monkeypatch):
    """Let kernels run without a GPU: nothing is timed, and indices of loops convert."""
    from fla.ops.common import chunk_h
    from triton.runtime.autotuner import Autotuner

    def indices(*bounds):
        plain = (int(x.handle.data.item()) if hasattr(x, "handle") else int(x) for x in bounds)
        return map(Index, builtins.range(*plain))

    monkeypatch.setattr(Autotuner, "_bench", lambda *_, **__: [0.0, 0.0, 0.0])
    monkeypatch.setattr(chunk_h, "range", indices, raising=False)
    monkeypatch.setattr(backends, "_fla_refusal", lambda *_: None)
    monkeypatch.setattr(backends, "_fla_gradient_refusal", lambda *_: None)


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("length", [1, 63, 130])  # of one to three chunks
@pytest.mark.parametrize("log_features", [False, True])
@pytest.mark.parametrize("decay", ["none", "head", "token"])
def test_the_kernels_agree_with_the_definition(length, log_features, decay):
    inputs = problem(length, log_features)
    inputs = with_decay_by_token(inputs) if decay == "token" else inputs
    options = {"log_features": log_features, "decaying": decay != "none", "backend": "fla"}
    assert_agrees(inputs, 1e-4, **options, state=some_state(log_features))
