"""Exported graphs, run by ONNX Runtime and, compiled, by node, against the model in torch."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import parser

import musicgen
from musicgen.errors import UserError
from musicgen.export import cached
from musicgen.export.step import NEW, RINGS, RecurrentStep, first_state, step_graph
from musicgen.plugins.page.compile import compile_step
from musicgen.plugins.page.document import with_half_weights
from musicgen.tokenization.base import Tokenizer
from tests.checkpoints.small_model import MODEL, small_model
from tests.contracts.pairs import MORE_HEADS, NOISE, PAIRS, TOKEN, build, pair, tokens
from tests.plugins.page.node import has_node, run_worker

EXPORTABLE = [each for each in PAIRS if each.attention != "softmax" and each.position != "conv_spe"]
ROOT = Path(__file__).parents[2]
# An export takes seconds. This pair has a ring, all options, noise, and decay by token.
ONE = {"num_layers": 1}
QUICK = [pair("sine_spe", "favor", MORE_HEADS, TOKEN, ONE)]
TESTED = EXPORTABLE if "PAIRS" in os.environ else QUICK
LENGTH = 70
RUN = """
    const arrays = data.buffers.map((buffer) => arrayOf(buffer, Uint8Array.from(data.bytes).buffer));
    const step = (%s)(arrays);
    return data.tokens.map((token, i) => {
      arrays[data.inputs.tokens][0] = token;
      arrays[data.inputs.positions].set(data.positions[i]);
      step();
      return [...arrays[data.inputs.logits]];
    });
"""


@torch.no_grad()
@pytest.mark.parametrize("each", TESTED, ids=str)
def test_a_step_computes_the_logits_of_the_model(each, tmp_path):
    model = with_half_weights(build(each))
    step = RecurrentStep(model, NOISE)
    graph = step_graph(step)
    check_graph(model, step, onnxruntime.InferenceSession(graph.SerializeToString()))
    if has_node:
        check_javascript(model, step, graph, tmp_path)


@torch.no_grad()
def test_a_model_of_the_package_takes_its_graph(monkeypatch):
    monkeypatch.setattr(cached, "step_graph", None)  # which makes one
    model = musicgen.load("songs-small").model
    step = RecurrentStep(model, NOISE)
    session = onnxruntime.InferenceSession(cached.full_graph(step).SerializeToString())
    check_graph(model, step, session)


def check_graph(model, step, session):
    ids = tokens(LENGTH, batch=3)  # another batch than the graph was made with
    thrice = torch.zeros(3, dtype=torch.long)
    three, state = step.template.select(thrice), first_state(model, NOISE).select(thrice)
    graph_state = {name: tensor.numpy() for name, tensor in three.tensors().items()}
    settings = None
    if model.copy_head is not None:
        settings = model.copy_head.settings(3)
        settings.lag_bias.normal_()
        settings.temperature.fill_(0.6)
        graph_state["copy.lag_bias"] = settings.lag_bias.numpy()
        graph_state["copy.temperature"] = settings.temperature.numpy()
    for n in range(ids.shape[1]):
        positions = torch.full((3, model.num_position_columns), n)
        positions[:, 2:] %= 25  # of keys and bars
        expected, state = model.forward_with_state(
            ids[:, n : n + 1],
            positions=positions[:, None],
            noise=NOISE,
            state=state,
            copy_settings=settings,
        )
        fed = {"tokens": ids[:, n].numpy(), "positions": positions.numpy(), **graph_state}
        taken = {entry.name: fed[entry.name] for entry in session.get_inputs()}
        for ring, (source, axis) in RINGS.items():
            if ring in fed:
                slots = fed[ring].swapaxes(1, axis)
                slots[:, n % slots.shape[1]] = fed[source]
        logits, *rest = session.run(None, taken)
        changed = [entry.name.removeprefix(NEW) for entry in session.get_outputs()[1:]]
        graph_state |= dict(zip(changed, rest, strict=True))
        np.testing.assert_allclose(logits, expected[:, 0], atol=2e-4)


def check_javascript(model, step, graph, folder):
    state = {name: tensor.numpy() for name, tensor in step.template.tensors().items()}
    settings = {name: tensor.numpy() for name, tensor in step.settings.items()}
    source, layout, weights = compile_step(graph, state, settings)
    ids = tokens(LENGTH, batch=1)
    positions = torch.arange(LENGTH)[:, None].expand(-1, model.num_position_columns)
    data = {
        "buffers": layout["buffers"],
        "bytes": list(weights),
        "inputs": layout["inputs"],
        "tokens": ids[0].tolist(),
        "positions": positions.tolist(),
    }
    found = np.array(run_worker(folder, data, RUN % source))
    expected, _ = model.forward_with_state(ids, positions=positions[None], noise=NOISE)
    np.testing.assert_allclose(found, expected[0], atol=2e-4)


def test_an_unknown_operation_is_refused_by_name():
    graph = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        step (int64[1] tokens, int64[1, 1] positions) => (float[1] logits)
        { x = Cast <to = 1> (tokens) logits = Sinh (x) }"""
    )
    with pytest.raises(UserError, match=r"^a page cannot run this model: .* operation Sinh$"):
        compile_step(graph, {}, {})


@pytest.mark.parametrize(("position", "attention"), [("rope", "softmax"), ("conv_spe", "favor")])
def test_a_state_that_grows_is_refused_by_name(position, attention):
    culprit = "attention=softmax" if attention == "softmax" else "position=conv_spe"
    with pytest.raises(UserError, match=f"^{culprit} cannot be exported.*; export a model of"):
        RecurrentStep(build(pair(position, attention)), NOISE)


def test_the_readme_of_a_folder_decodes(tmp_path, monkeypatch):
    torch.manual_seed(0)
    elu = {"_target_": "musicgen.attention.ELU", "_partial_": True}
    model = small_model(**ONE, attention=MODEL["attention"] | {"feature_map": elu})
    model.model.add_copy_head({"window": 17, "max_lag": 5, "coordinate": "index"})
    model.save_onnx(tmp_path)
    assert str(ROOT).encode() not in (tmp_path / "model.onnx").read_bytes()
    assert Tokenizer.load(tmp_path / "tokenizer.json").vocabulary == model.tokenizer.vocabulary
    _, code, _ = re.split("```(?:python)?\n", (tmp_path / "README.md").read_text())
    monkeypatch.chdir(tmp_path)
    program: dict[str, Any] = {}
    exec(code, program)
    ids = np.arange(83, 120)  # more than the copy head's ring holds
    positions = model.positions(ids)
    with torch.no_grad():
        rows = torch.from_numpy(ids)[None], torch.from_numpy(positions)[None]
        expected = model.model(rows[0], positions=rows[1])[0]
    logits = [program["step"](*each) for each in zip(ids, positions, strict=True)]
    np.testing.assert_allclose(np.stack(logits), expected, atol=1e-4)
