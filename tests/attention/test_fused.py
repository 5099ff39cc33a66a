"""The fused kernel on a CPU, by Triton's interpreter: `make test-triton`.

The interpreter is chosen when Triton is imported, so these tests have a process of their own.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from musicgen.attention import AttentionMask, LinearState, causal_linear_attention
from musicgen.models import Transformer
from musicgen.position import LayerCode, Sinusoidal
from tests.attention.inputs import random_mask
from tests.attention.test_backends import assert_agrees, problem, some_state, with_decay_by_token
from tests.attention.test_stabilise import oracle
from tests.conftest import ROOT
from tests.contracts.pairs import (
    HEAD,
    NOISE,
    TOKEN,
    TRAINING_LENGTH,
    Pair,
    assert_all_learn,
    build,
    changed,
    decode,
    pair,
    tokens,
)
from tests.models.test_one_graph import step_kernels

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None,
    reason="needs Triton and TRITON_INTERPRET=1: make test-triton",
)

# Each site of a code and kind of decay, and a map whose features are computed outside of the kernel.
PAIRS = [pair("none", "favor", HEAD), pair("sine_spe", "favor", TOKEN), pair("conv_spe", "favor")]
PAIRS += [pair("rope", "favor", TOKEN), pair("none", "elu", HEAD), pair("none", "relu")]
of_pairs = pytest.mark.parametrize("each", PAIRS, ids=str)


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch):
    """Mend what Triton's interpreter gets wrong, and what is slow."""
    from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

    dot = InterpreterBuilder.create_dot

    def dot_of_numbers(builder, a, b, *args):  # it multiplies the bits of bf16 as integers
        for operand in (a, b):
            if operand.data.dtype == np.uint16:
                operand.data = (operand.data.astype(np.uint32) << 16).view(np.float32)
        return dot(builder, a, b, *args)

    def call(function, *args, **options):  # it prepares each function again at each call
        return function.rewrite()(*args, **options)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot_of_numbers)
    monkeypatch.setattr(InterpretedFunction, "__call__", call)


def test_the_kernels_compile_for_a_gpu(tmp_path):
    script = ROOT / "tests/attention/compile_kernels.py"
    env = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    env["PYTHONPATH"] = os.pathsep.join((str(ROOT), env.get("PYTHONPATH", "")))
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6


def plain(each: Pair) -> Transformer:
    return build(each._replace(settings=(*each.settings, ("num_layers", 1)))).train()


def fused(each: Pair) -> Transformer:
    model = plain(each)
    for layer in model.layers:
        layer.attention.backend = "triton"
    return model


@pytest.mark.parametrize("length", [1, 63, 64])
@pytest.mark.parametrize(
    ("log_features", "decay"), [(True, "none"), (True, "head"), (True, "token"), (False, "head")]
)
def test_the_kernel_agrees_with_the_recurrence(length, log_features, decay):
    given = problem(length, log_features)
    given = with_decay_by_token(given) if decay == "token" else given
    mask = random_mask(length) if length == 63 else None
    options = {"log_features": log_features, "decaying": decay != "none", "backend": "triton"}
    assert_agrees(given, 1e-4, **options, key_mask=mask, state=some_state(log_features))


@pytest.mark.parametrize(
    ("log_features", "decay"), [(True, None), (True, "head"), (True, "token"), (False, "head")]
)
def test_gradients_of_the_sums_reach_all_inputs(log_features, decay):
    found = []
    for backend in ("auto", "triton"):
        torch.manual_seed(0)
        given = {n: x.detach().double() for n, x in problem(40).items()}
        given |= {n: given[n].log() for n in "qk" if log_features}
        given = with_decay_by_token(given) if decay == "token" else given
        if decay is None:
            del given["log_decay"]
        before = some_state(log_features)
        sums = [x.double().requires_grad_() for x in before[:2]]
        leaves = [*sums, *(x.requires_grad_() for x in given.values())]
        scale = before.log_scale.double() if log_features else None
        options = {"log_features": log_features, "eps": 0.5, "backend": backend}
        options |= {"state": LinearState(*sums, scale), "return_state": True}
        out, after = causal_linear_attention(**given, **options)
        if log_features:  # whose scale differs between backends
            after = after.scaled(after.log_scale.exp())
        loss = sum(x.sin().sum() for x in (out, after.kv, after.k))
        found.append([out, after.kv, after.k, *torch.autograd.grad(loss, leaves)])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, atol=1e-9, rtol=1e-9)


@of_pairs
def test_a_model_has_the_outputs_and_gradients_of_the_plain_product(each):
    ids, results = tokens(TRAINING_LENGTH), []
    mask = torch.arange(TRAINING_LENGTH).expand(2, -1) < torch.tensor([[TRAINING_LENGTH], [33]])
    for model in (fused(each), plain(each)):
        logits = model(ids, key_mask=mask, noise=NOISE)[mask]
        grads = torch.autograd.grad(logits.square().mean(), list(model.parameters()))
        results.append([logits, *grads])
    for found, expected in zip(*results, strict=True):
        size = max(1.0, float(expected.detach().abs().max()))
        torch.testing.assert_close(found, expected, atol=1e-4 * size, rtol=0)


@of_pairs
@torch.no_grad()
def test_no_token_sees_a_later_one_and_calls_in_parts_equal_one(each):
    model, ids = fused(each), tokens(70)
    whole = model(ids, noise=NOISE)
    again = model(changed(ids), noise=NOISE)
    torch.testing.assert_close(again[:, :25], whole[:, :25], atol=1e-5, rtol=0)
    assert (again[:, 25:] - whole[:, 25:]).abs().max() > 1e-2
    first, state = model.forward_with_state(ids[:, :33], noise=NOISE)
    second, state = model.forward_with_state(ids[:, 33:68], noise=NOISE, state=state)
    last = decode(model.eval(), ids[:, 68:], state)
    torch.testing.assert_close(torch.cat((first, second, last), 1), whole, atol=1e-4, rtol=0)


def test_gradients_reach_every_parameter():
    assert_all_learn(fused(PAIRS[1]), tokens(TRAINING_LENGTH))


def test_bf16_stays_near_fp32():
    ids, losses = tokens(TRAINING_LENGTH), []
    for enabled in (False, True):
        model = fused(PAIRS[1])
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits = model(ids, noise=NOISE)
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_a_training_step_is_one_graph():
    model, ids = fused(PAIRS[1]), tokens(TRAINING_LENGTH)
    noise = model.draw(NOISE, ids)
    found = torch.compile(model, fullgraph=True, backend="eager")(ids, noise=noise)
    torch.testing.assert_close(found, model(ids, noise=noise), atol=1e-5, rtol=1e-4)
    found.sum().backward()
    torch.compiler.reset()


def test_a_layer_starts_half_as_many_kernels(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    counts = []
    for backend in ("auto", "triton"):
        one, two = (step_kernels(Sinusoidal, n, 64, 1, backend).counts.total() for n in (1, 2))
        counts.append(two - one)
    assert counts[1] <= 0.6 * counts[0]


@pytest.mark.parametrize("deviation", [1, 30])
def test_outputs_and_gradients_have_bounds_at_any_logits(deviation):
    attention = fused(PAIRS[0]).layers[0].attention
    q, k = deviation**0.5 * torch.randn(2, 2, TRAINING_LENGTH, 2, 8)
    v = torch.randn(2, TRAINING_LENGTH, 2, 8)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    seen = torch.ones(2, TRAINING_LENGTH, dtype=torch.bool)
    seen[0, :5], seen[1] = False, False
    for mask in (None, seen):
        out, _ = attention(q, k, v, LayerCode(), AttentionMask(True, mask))
        assert out.abs().max() <= v.abs().max() * 1.001
        grads = torch.autograd.grad(out.square().sum(), leaves)
        assert all(grad.isfinite().all() for grad in grads)
    assert (out[1] == 0).all()  # no key
    assert (out[0, :5] == 0).all()


@torch.no_grad()
@pytest.mark.parametrize("slope", [1.5, -1.5])
@pytest.mark.parametrize("decay", [None, -0.5])
def test_exponents_may_leave_the_range_of_fp32(slope, decay):
    q, k, v = torch.randn(3, 1, 150, 2, 8)
    k += slope * torch.arange(150)[:, None, None]
    rates = None if decay is None else torch.full((2,), decay)
    options = {"log_features": True, "log_decay": rates, "backend": "triton"}
    found, _ = causal_linear_attention(q, k, v, **options)
    torch.testing.assert_close(found.double(), oracle(q, k, v, rates), atol=1e-4, rtol=0)
