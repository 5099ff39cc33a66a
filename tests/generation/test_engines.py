"""Decoding engines compute the model's own steps, compiled or not."""

import shutil
from pathlib import Path
from typing import NamedTuple

import onnx
import pytest
import torch

import musicgen
from musicgen.errors import UserError
from musicgen.export import cached
from musicgen.export.step import RecurrentStep
from musicgen.files import write_bytes
from musicgen.generation import engines
from musicgen.generation.engines import Engine, make_engine
from musicgen.models import Transformer
from musicgen.models.layer import Layer
from musicgen.random import NoiseKey
from tests.contracts.pairs import COPY, NOISE, TOKEN, VOCAB, build, pair

PROMPT = 20


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(2))


@torch.inference_mode()
def decode(engine: Engine, rows: int, count: int = 24) -> torch.Tensor:
    """Logits [count, rows, V] after tokens that differ by row; rows end one by one."""
    ids, positions = tokens(count, 16), torch.arange(PROMPT + count)[:, None]
    _, state = engine.prefill(tokens(1, PROMPT), positions[None, :PROMPT])
    state, out = state.select(torch.zeros(rows, dtype=int)), []
    for n in range(count):
        logits, state = engine.step(ids[n, :rows], positions[PROMPT + n].expand(rows, -1), state)
        out.append(torch.zeros(len(out[0]) if out else rows, VOCAB))
        out[-1][:rows] = logits
        if n % 4 == 3 and rows > 1:
            rows -= 1
            state = state.select(torch.arange(rows))
    return torch.stack(out)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(cached, "CACHE", tmp_path)
    return tmp_path


class MadeGraph(NamedTuple):
    """A cache folder with the graph that an engine made, and what the engine decoded with it."""

    folder: Path
    logits: torch.Tensor


def copying(activation: str = "relu") -> Transformer:
    """Build a model with noise and a copy head, whose ring is overwritten after 40 tokens."""
    settings = {"copy.window": 40, "copy.max_lag": 50, "num_layers": 1, "activation": activation}
    return build(pair("sine_spe", "elu", COPY, settings))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> MadeGraph:
    """The graph of `copying()`; making it takes ten seconds."""
    folder = tmp_path_factory.mktemp("graphs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached, "CACHE", folder)
        patch.setattr(engines, "NUM_SLOTS", 8)
        return MadeGraph(folder, decode(make_engine(copying(), NOISE, engine="onnx"), 5))


def test_onnx_equals_eager_and_keeps_its_graph(made, monkeypatch):
    monkeypatch.setattr(engines, "NUM_SLOTS", 8)  # the ring grows after 32 tokens
    model = copying()
    torch.testing.assert_close(made.logits, decode(Engine(model, NOISE), 5), rtol=1e-4, atol=1e-5)
    assert len([*made.folder.rglob("*.onnx")]) == 1
    # Other weights and other noise take the same graph.
    monkeypatch.setattr(cached, "CACHE", made.folder)
    monkeypatch.setattr(engines, "make_graph", None)
    torch.nn.init.normal_(model.head.weight)
    other = NoiseKey((8,))
    steps = decode(make_engine(model, other, engine="onnx"), 3)
    torch.testing.assert_close(steps, decode(Engine(model, other), 3), rtol=1e-4, atol=1e-5)
    # A step writes the settings of its batch, and not those that other batches begin with.
    engine, settings = make_engine(model, other, engine="onnx"), model.copy_head.settings(1)
    with torch.inference_mode():
        _, state = engine.prefill(tokens(1, PROMPT), torch.arange(PROMPT)[None, :, None])
        for temperature in (0.5, 0.25):
            settings = settings._replace(temperature=torch.tensor([[temperature]]))
            _, state = engine.step(tokens(1), torch.tensor([[PROMPT]]), state, settings)
            assert state.arrays["copy.temperature"] == temperature
    assert engine.graph_step.settings["copy.temperature"] == 1


@pytest.mark.parametrize("name", musicgen.list_models())
def test_the_models_of_the_package_have_their_graphs(cache, name):
    """If this fails, they compute something else now: python -m musicgen.export.cached."""
    music = musicgen.load(name)
    model, ids = music.model, torch.arange(2, 40)[None]
    positions = torch.from_numpy(music.positions(ids[0].numpy()))[None]
    engine = make_engine(model, NOISE)
    with torch.inference_mode():
        expected = model(ids, positions=positions, noise=NOISE)[0]
        _, state = engine.prefill(ids[:, :8], positions[:, :8])
        for n in range(8, 38):
            logits, state = engine.step(ids[:, n], positions[:, n], state)
            torch.testing.assert_close(logits[0], expected[n], rtol=1e-4, atol=1e-4)
    assert isinstance(state, engines.BoundState)


def test_no_other_graphs_come_with_the_package():
    models = [musicgen.load(name).model for name in musicgen.list_models()]
    own = {cached.find_graph(RecurrentStep(model, NOISE))[0] for model in models}
    assert {path.read_bytes() for path in cached.SHIPPED.iterdir()} == own


def test_a_renamed_attribute_loses_no_graph(monkeypatch):
    model = musicgen.load("songs-small").model
    for layer in model.layers:
        layer.renamed = vars(layer).pop("norm_first")
    monkeypatch.setattr(Layer, "norm_first", property(lambda x: x.renamed), raising=False)
    assert cached.find_graph(RecurrentStep(model, NOISE)) is not None


def test_a_graph_of_a_model_that_computes_something_else_is_not_taken(made, cache):
    shutil.copytree(made.folder, cache, dirs_exist_ok=True)
    relu, gelu = (RecurrentStep(copying(activation), NOISE) for activation in ("relu", "gelu"))
    assert cached.signature(relu) == cached.signature(gelu)
    (first,) = cache.rglob("*.onnx")
    graph = first.read_bytes()
    assert cached.find_graph(relu)[0] == graph
    assert cached.find_graph(gelu) is None
    other = onnx.load_from_string(graph)  # the graph with the other activation, which is quicker
    (activation,) = (node for node in other.graph.node if node.op_type == "Relu")
    activation.op_type = "Gelu"
    write_bytes(first.with_stem(f"{first.stem}0"), other.SerializeToString())
    assert cached.find_graph(gelu)[0] == other.SerializeToString()
    assert cached.find_graph(relu)[0] == graph


def test_auto_makes_a_graph_after_enough_steps_and_reports_a_failure_once(cache, monkeypatch):
    def fail(step):
        raise RuntimeError("no exporter\nwith a long story")

    monkeypatch.setattr(engines, "make_graph", fail)
    monkeypatch.setattr(engines, "NUM_STEPS_TO_EXPORT", 20)
    model, warnings = build(pair("rope", "favor")), []
    engine = make_engine(model, NOISE, warn=warnings.append)
    decode(engine, 2, count=20)
    assert not warnings
    torch.testing.assert_close(decode(engine, 3), decode(Engine(model, NOISE), 3), rtol=0, atol=0)
    assert warnings == ["decoding runs without ONNX Runtime: RuntimeError: no exporter"]
    with pytest.raises(RuntimeError):
        decode(make_engine(model, NOISE, engine="onnx"), 2)
    name = f"{cached.signature(RecurrentStep(model, NOISE))}-damaged.onnx"
    write_bytes(cache / musicgen.__version__ / name, b"no graph")
    steps = decode(make_engine(model, NOISE, warn=warnings.append), 3, count=9)
    torch.testing.assert_close(steps, decode(Engine(model, NOISE), 3, count=9), rtol=0, atol=0)
    assert len(warnings) == 2


def test_what_onnx_cannot_decode_is_refused_and_auto_takes_torch():
    model = build(pair("rope", "softmax"))
    assert type(make_engine(model, NOISE)) is Engine
    with pytest.raises(UserError, match="attention=softmax"):
        make_engine(model, NOISE, engine="onnx")
    with pytest.raises(UserError, match="engine=onnx: expected auto"):
        make_engine(build(pair("rope", "favor")).double(), NOISE, engine="onnx")


@torch.inference_mode()
@pytest.mark.parametrize("settings", [{}, {"short_conv": 4, **TOKEN}, COPY])
def test_buffers_of_a_cuda_graph_hold_every_part_of_a_state(settings):
    model = build(pair("none", "favor", settings))
    _, state = model.forward_with_state(tokens(3, 9))
    _, other = model.forward_with_state(tokens(2, 12).flip(1))
    engines._copy(other, state)
    following = tokens(3, 1)
    # Of as many rows, as rounding depends on their number.
    expected, _ = model.forward_with_state(following, state=other.select(torch.tensor([0, 1, 0])))
    found, _ = model.forward_with_state(following, state=state)
    assert torch.equal(found[:2], expected[:2])
