"""Compiled steps, run in node, against the model in torch."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
import torch

from musicgen.errors import UserError
from musicgen.export.graph import step_graph
from musicgen.export.javascript import compile_step
from musicgen.export.page import pack_weights, with_half_weights
from musicgen.export.step import RecurrentStep
from musicgen.generation.sampling import SamplingParams, sample
from tests.contracts.pairs import NOISE, build, tokens
from tests.export.javascript import needs_node, run_worker
from tests.export.test_onnx import EXPORTABLE, QUICK

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


@needs_node
@torch.no_grad()
@pytest.mark.parametrize("each", TESTED, ids=str)
def test_a_step_computes_the_logits_of_the_model(each, tmp_path):
    model = with_half_weights(build(each))
    recurrent = RecurrentStep(model, NOISE)
    state = {name: tensor.numpy() for name, tensor in recurrent.template.tensors().items()}
    step = compile_step(step_graph(recurrent), state)
    ids = tokens(LENGTH, batch=1)
    positions = torch.arange(LENGTH)[:, None].expand(-1, model.num_position_columns)
    data = {
        "buffers": step.buffers,
        "bytes": list(step.data),
        "inputs": step.inputs,
        "tokens": ids[0].tolist(),
        "positions": positions.tolist(),
    }
    found = np.array(run_worker(tmp_path, data, RUN % step.source))
    expected, _ = model.forward_with_state(ids, positions=positions[None], noise=NOISE)
    np.testing.assert_allclose(found, expected[0], atol=2e-4)


def test_an_unknown_operation_is_refused_by_name():
    step = RecurrentStep(build(QUICK[0]), NOISE)
    graph = step_graph(step)
    state = {name: tensor.numpy() for name, tensor in step.template.tensors().items()}
    node = next(node for node in graph.graph.node if node.op_type == "Exp")
    node.op_type = "Sinh"
    with pytest.raises(UserError, match=r"^a page cannot run this model: .* operation Sinh$"):
        compile_step(graph, state)


@needs_node
@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 4, "min_p": 0.1}, {"typical_p": 0.6}],
)
def test_tokens_are_drawn_alike(settings, tmp_path):
    rng, params = np.random.default_rng(0), SamplingParams(**settings)
    logits = np.log(rng.dirichlet(np.full(12, 0.5), 200))
    allowed, uniform = rng.random((200, 12)) < 0.7, rng.random(200)
    allowed[:, 0] = True
    data = {
        "logits": logits.tolist(),
        "allowed": allowed.astype(int).tolist(),
        "uniform": uniform.tolist(),
        "params": dataclasses.asdict(params),
    }
    body = """
        return data.logits.map((row, i) =>
          sampleToken(row, data.allowed[i], data.params, data.uniform[i]));
    """
    rows = {"allowed": torch.from_numpy(allowed), "uniform": torch.from_numpy(uniform)}
    expected = sample(torch.from_numpy(logits), params, **rows)
    assert run_worker(tmp_path, data, body) == expected.tolist()


@needs_node
def test_weights_are_unpacked_bit_for_bit(tmp_path):
    halves = np.arange(1 << 16, dtype=np.uint16)  # all numbers of half precision
    noise = np.random.default_rng(0).integers(0, 256, 1001, dtype=np.uint8)
    parts = [halves.tobytes(), noise.tobytes(), b""]
    body = """
        return Promise.all(data.map(unpackWeights)).then((all) => all.map((each) => [...new Uint8Array(each)]));
    """
    found = run_worker(tmp_path, [*map(pack_weights, parts)], body, ["weights"])
    assert [bytes(each)[: len(part)] for each, part in zip(found, parts, strict=True)] == parts
    assert [len(each) for each in found] == [1 << 17, 1002, 0]
