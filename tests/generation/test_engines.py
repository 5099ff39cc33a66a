"""Decoding engines compute the model's own steps, compiled or not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from torch._dynamo.utils import counters

from musicgen.attention import SoftmaxAttention
from musicgen.errors import ParameterError, UserError
from musicgen.generation.engines import (
    Engine,
    PackedCpuEngine,
    cuda_graph,
    make_engine,
    packed_cpu,
)
from musicgen.models import check_compatible
from musicgen.models.short_conv import ShortConvolution
from musicgen.random import NoiseKey

CONF = Path(__file__).parents[2] / "conf"
POSITIONS = sorted(path.stem for path in (CONF / "position").glob("*.yaml"))
# favor_decay is favor with learned decay, which is tested with favor.
ATTENTIONS = sorted({path.stem for path in (CONF / "attention").glob("*.yaml")} - {"favor_decay"})
VOCAB, PROMPT = 30, 20
NOISE = NoiseKey((3,))
SMALL = ("model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.ff_dim=32")
VARIANTS = {
    "siren": ("model.position.training_length=20",),
    "conv_spe": ("model.position.filter_length=9", "model.position.num_realizations=16"),
    "sine_spe": ("model.position.num_realizations=16",),
    "exact": ("position=sine_spe", "model.position.num_realizations=null"),
}
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler here"
)

OPTIONS = (
    "model.short_conv=4",
    "model.output_gate=true",
    "model.qk_norm=true",
    "model.tie_embeddings=true",
)
TOKEN_DECAY = "model.attention.decay=token"


def build(config, position: str, attention: str, *overrides: str):
    choice = () if position == "exact" else (f"position={position}",)
    choice = (*choice, f"attention={attention}", *overrides)
    cfg = config("train", *choice, *SMALL, "model.init_std=0.3", *VARIANTS.get(position, ()))
    try:
        check_compatible(instantiate(cfg.model.position), instantiate(cfg.model.attention))
    except UserError as refused:
        pytest.skip(str(refused))
    torch.manual_seed(0)
    model = instantiate(cfg.model, vocab_size=VOCAB).eval()
    for module in model.modules():
        if isinstance(module, ShortConvolution):
            torch.nn.init.normal_(module.weight, std=0.3)  # not 0, as at first
    return model


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
    ("position", "attention", "overrides"),
    [(p, attention, ()) for p in (*POSITIONS, "exact") for attention in ATTENTIONS]
    + [(p, "softmax", ("span=gaussian", "model.span.training_length=20")) for p in POSITIONS]
    + [
        ("rope", "softmax", OPTIONS),
        *(("rope", a, (*OPTIONS, TOKEN_DECAY)) for a in ("favor", "elu")),
    ],
)
@torch.inference_mode()
def test_steps_equal_one_parallel_pass_in_any_batch(config, position, attention, overrides):
    model = build(config, position, attention, *overrides)
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


def compare_with_eager(config, position: str, attention: str, *overrides: str) -> None:
    torch.compiler.reset()
    model = build(config, position, attention, *overrides)
    warnings: list[str] = []
    compiled = make_engine(model, NOISE, compile=True, warn=warnings.append)
    assert isinstance(compiled, PackedCpuEngine)
    eager = make_engine(model, NOISE, compile=False)
    for rows in (5, 1):
        steps = decode(compiled, rows)
        torch.testing.assert_close(steps, decode(eager, rows), rtol=1e-4, atol=1e-5)
        assert torch.equal(decode(compiled, rows), steps)
    assert not warnings


@needs_compiler
def test_one_graph_serves_all_layers_and_positions(config):
    counters.clear()
    compare_with_eager(config, "none", "favor")
    assert counters["stats"]["unique_graphs"] <= 3  # a single row has one of its own


@needs_compiler
@pytest.mark.slow
def test_compiled_options_equal_eager(config):
    compare_with_eager(config, "none", "favor", *OPTIONS, TOKEN_DECAY)


@torch.inference_mode()
@pytest.mark.parametrize("overrides", [(), ("model.short_conv=4", TOKEN_DECAY)])
def test_buffers_of_a_cuda_graph_hold_every_part_of_a_state(config, overrides):
    model = build(config, "none", "favor", *overrides)
    _, state = model.forward_with_state(tokens(3, 9))
    _, other = model.forward_with_state(tokens(2, 12).flip(1))
    cuda_graph._copy(other, state)
    following = tokens(3, 1)
    expected, _ = model.forward_with_state(following[:2], state=other)
    found, _ = model.forward_with_state(following, state=state)
    assert torch.equal(found[:2], expected)


@needs_compiler
@pytest.mark.slow
def test_compiled_spe_equals_eager(config):
    compare_with_eager(config, "sine_spe", "favor")


@pytest.mark.parametrize(
    ("position", "attention", "overrides"),
    [(position, "favor", ()) for position in (*POSITIONS, "exact")]
    + [("exact", "elu", ()), ("none", "relu", ()), ("none", "elu", ())]
    + [("rope", attention, (*OPTIONS, TOKEN_DECAY)) for attention in ("favor", "elu")],
)
def test_every_pair_is_traced_as_one_graph(config, monkeypatch, position, attention, overrides):
    """The traced graphs, with their guards, compute the same; inductor is left out."""
    trace = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **kwargs: trace(f, backend="eager", **kwargs))
    compare_with_eager(config, position, attention, *overrides)


def test_a_failing_compiler_is_reported_once_and_changes_nothing(config, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no compiler\nwith a long story")

    monkeypatch.setattr(packed_cpu, "compile_layers", fail)
    model = build(config, "sine_spe", "favor")
    warnings: list[str] = []
    engine = make_engine(model, NOISE, compile=True, warn=warnings.append)
    eager = make_engine(model, NOISE, compile=False)
    torch.testing.assert_close(decode(engine, 3), decode(eager, 3), rtol=0, atol=0)
    decode(engine, 1)
    assert warnings == ["decoding runs uncompiled: RuntimeError: no compiler"]


def test_without_onednn_matrices_stay_as_they_are(config, monkeypatch):
    model = build(config, "sine_spe", "favor")
    packed = decode(make_engine(model, NOISE, compile=False), 3)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    engine = make_engine(model, NOISE, compile=False)
    assert torch.equal(decode(engine, 3), decode(Engine(model, NOISE), 3))
    torch.testing.assert_close(decode(engine, 3), packed, rtol=1e-4, atol=1e-5)


def test_auto_compiles_after_enough_steps(config, monkeypatch):
    calls = []
    monkeypatch.setattr("musicgen.generation.engines.LAYER_STEPS_TO_COMPILE", 2 * 20)
    monkeypatch.setattr(packed_cpu, "compile_layers", lambda model: calls.append(1) or model)
    engine = make_engine(build(config, "none", "favor"), NOISE)
    decode(engine, 2, count=20)
    assert not calls
    decode(engine, 2, count=24)
    assert len(calls) == 1


def test_softmax_stays_uncompiled_and_warns_if_compiling_was_asked_for(config):
    model = build(config, "none", "softmax")
    assert isinstance(model.layers[0].attention, SoftmaxAttention)
    warnings: list[str] = []
    make_engine(model, NOISE, warn=warnings.append)
    assert not warnings
    decode(make_engine(model, NOISE, compile=True, warn=warnings.append), 2)
    assert warnings == ["compile=True has no effect on softmax attention: its state grows"]


def test_only_auto_true_and_false_are_settings(config):
    with pytest.raises(ParameterError, match=r"^compile=maybe: expected auto, true or false$"):
        make_engine(build(config, "none", "favor"), NOISE, compile="maybe")
