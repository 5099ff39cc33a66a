"""Decoding engines compute the model's own steps, compiled or not."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from hydra.utils import get_class
from torch._dynamo.utils import counters

from musicgen.generation.engines import (
    Engine,
    PackedCpuEngine,
    cuda_graph,
    make_engine,
    packed_cpu,
)
from tests.contracts import pairs
from tests.contracts.pairs import COPY, NOISE, OPTIONS, TOKEN, VOCAB, Pair, build, pair

PROMPT = 20


def choice(group: str, name: str):
    """The class of a choice of conf/."""
    return get_class(pairs.load(group, name)._target_)


FITTING = [(p, a) for p in pairs.POSITIONS for a in pairs.ATTENTIONS if pairs.site(p, a)]
PAIRS = [pair(p, a) for p, a in FITTING]
PAIRS += [pair(p, a, pairs.forms(p)[-1]) for p, a in FITTING if p in pairs.MORE]
FIXED = [each for each in PAIRS if choice("attention", each.attention).has_fixed_state]
GROWING = [each for each in PAIRS if each not in FIXED]
NOISY = [
    each
    for each in FIXED
    if choice("position", each.position).relative == "expected" and each.attention == "favor"
]
# Each attention with all options of the model.
WITH_OPTIONS = [
    pair(each.position, each.attention, OPTIONS, COPY, *([TOKEN] if each in FIXED else []))
    for each in {each.attention: each for each in PAIRS}.values()
]
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler here"
)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(2))


@torch.inference_mode()
def decode(engine: Engine, rows: int, count: int = 24) -> torch.Tensor:
    """Logits [count, rows, V] after tokens that differ by row; rows end one by one."""
    ids, positions = tokens(count, 16), torch.arange(PROMPT + count)[:, None]
    _, state = engine.prefill(tokens(1, PROMPT), positions[None, :PROMPT])
    state, out = state.select(torch.zeros(rows, dtype=int)), []
    for n in range(count):
        position = positions[PROMPT + n].expand(rows, -1)
        logits, state = engine.step(ids[n, :rows], position, state)
        out.append(torch.zeros(len(out[0]) if out else rows, VOCAB))
        out[-1][:rows] = logits
        if n % 4 == 3 and rows > 1:
            rows -= 1
            state = state.select(torch.arange(rows))
    return torch.stack(out)


@pytest.mark.parametrize(
    "case", [*PAIRS, *(pair(*each[:2], pairs.SPAN) for each in GROWING), *WITH_OPTIONS], ids=str
)
@torch.inference_mode()
def test_steps_equal_one_parallel_pass_in_any_batch(case):
    model = build(case)
    engine = make_engine(model, NOISE, compile=False)
    assert isinstance(engine, PackedCpuEngine)
    eager = Engine(model, NOISE)
    ids = torch.cat((tokens(1, PROMPT), tokens(24, 16)[:, :1].T), dim=1)
    expected = model(ids, noise=NOISE)[0, PROMPT:]
    for rows in (1, 5):
        steps = decode(engine, rows)
        torch.testing.assert_close(steps[:, 0], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(decode(eager, rows), steps, rtol=1e-4, atol=1e-5)
    assert torch.equal(decode(engine, rows), steps)


def compare_with_eager(case: Pair) -> None:
    torch.compiler.reset()
    model, warnings = build(case), []
    compiled = make_engine(model, NOISE, compile=True, warn=warnings.append)
    assert isinstance(compiled, PackedCpuEngine)
    eager = make_engine(model, NOISE, compile=False)
    for rows in (5, 1):
        steps = decode(compiled, rows)
        torch.testing.assert_close(steps, decode(eager, rows), rtol=1e-4, atol=1e-5)
        assert torch.equal(decode(compiled, rows), steps)
    assert not warnings


@needs_compiler
def test_one_graph_serves_all_layers_and_positions():
    counters.clear()
    compare_with_eager(NOISY[0])
    assert counters["stats"]["unique_graphs"] <= 3  # a single row has one of its own


@needs_compiler
@pytest.mark.slow
def test_compiled_options_equal_eager():
    compare_with_eager(next(each for each in WITH_OPTIONS if each.attention == "favor"))


@pytest.mark.parametrize(
    "case",
    dict.fromkeys(
        [
            *(each for each in FIXED if each.attention == "favor"),
            *{each.attention: each for each in FIXED}.values(),
            *(each for each in WITH_OPTIONS if each.decays),
        ]
    ),
    ids=str,
)
def test_every_pair_is_traced_as_one_graph(monkeypatch, case):
    """The traced graphs, with their guards, compute the same; inductor is left out."""
    trace = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **kwargs: trace(f, backend="eager", **kwargs))
    compare_with_eager(case)


@torch.inference_mode()
@pytest.mark.parametrize("settings", [{}, {"short_conv": 4, **TOKEN}, COPY])
def test_buffers_of_a_cuda_graph_hold_every_part_of_a_state(settings):
    model = build(pair(*FIXED[0][:2], settings))
    _, state = model.forward_with_state(tokens(3, 9))
    _, other = model.forward_with_state(tokens(2, 12).flip(1))
    cuda_graph._copy(other, state)
    following = tokens(3, 1)
    # Of as many rows, as rounding depends on their number.
    expected, _ = model.forward_with_state(following, state=other.select(torch.tensor([0, 1, 0])))
    found, _ = model.forward_with_state(following, state=state)
    assert torch.equal(found[:2], expected[:2])


def test_a_failing_compiler_is_reported_once_and_changes_nothing(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no compiler\nwith a long story")

    monkeypatch.setattr(packed_cpu, "compile_layers", fail)
    model, warnings = build(NOISY[0]), []
    engine = make_engine(model, NOISE, compile=True, warn=warnings.append)
    eager = make_engine(model, NOISE, compile=False)
    torch.testing.assert_close(decode(engine, 3), decode(eager, 3), rtol=0, atol=0)
    decode(engine, 1)
    assert warnings == ["decoding runs uncompiled: RuntimeError: no compiler"]


def test_without_onednn_matrices_stay_as_they_are(monkeypatch):
    model = build(NOISY[0])
    packed = decode(make_engine(model, NOISE, compile=False), 3)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    engine = make_engine(model, NOISE, compile=False)
    assert torch.equal(decode(engine, 3), decode(Engine(model, NOISE), 3))
    torch.testing.assert_close(decode(engine, 3), packed, rtol=1e-4, atol=1e-5)


def test_auto_compiles_after_enough_steps(monkeypatch):
    calls = []
    monkeypatch.setattr("musicgen.generation.engines.LAYER_STEPS_TO_COMPILE", 2 * 20)
    monkeypatch.setattr(
        packed_cpu, "compile_layers", lambda model: calls.append(1) or copy.copy(model)
    )
    engine = make_engine(build(FIXED[0]), NOISE)
    decode(engine, 2, count=20)
    assert not calls
    decode(engine, 2, count=24)
    assert len(calls) == 1


def test_a_growing_state_stays_uncompiled_and_warns_if_compiling_was_asked_for():
    model, warnings = build(GROWING[0]), []
    make_engine(model, NOISE, warn=warnings.append)
    assert not warnings
    decode(make_engine(model, NOISE, compile=True, warn=warnings.append), 2)
    assert warnings == ["compile=True has no effect on softmax attention: its state grows"]
