"""Exported graphs, run by ONNX Runtime, against the model in torch."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from musicgen.errors import UserError
from musicgen.export.graph import NEW, step_graph
from musicgen.export.step import RINGS, RecurrentStep
from musicgen.tokenization.base import Tokenizer
from tests.checkpoints.small_model import small_model
from tests.contracts.pairs import MORE_HEADS, NOISE, PAIRS, TOKEN, build, pair, tokens

EXPORTABLE = [each for each in PAIRS if each.attention != "softmax" and each.position != "conv_spe"]
ROOT = Path(__file__).parents[2]
# An export takes seconds. One pair has a ring and all options, the other noise and decay by token.
QUICK = [pair("none", "favor", MORE_HEADS), pair("sine_spe", "favor", TOKEN)]
TESTED = EXPORTABLE if "PAIRS" in os.environ else QUICK


@torch.no_grad()
@pytest.mark.parametrize("each", TESTED, ids=str)
def test_a_graph_computes_the_logits_of_the_model(each):
    model = build(each)
    step = RecurrentStep(model, NOISE)
    session = onnxruntime.InferenceSession(step_graph(step).SerializeToString())
    ids, state = tokens(70, batch=3), None  # other rows than the graph was made with
    three = step.template.select(torch.zeros(3, dtype=torch.long))
    graph_state = {name: tensor.numpy() for name, tensor in three.tensors().items()}
    for n in range(ids.shape[1]):
        positions = torch.full((3, model.num_position_columns), n)
        expected, state = model.forward_with_state(
            ids[:, n : n + 1], positions=positions[:, None], noise=NOISE, state=state
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
        if n == 35 and "copied.lag_bias" in graph_state:  # which the sampler writes
            state.lag_bias.normal_()
            graph_state["copied.lag_bias"] = state.lag_bias.numpy().copy()
            state.copied.temperature.fill_(0.6)
            graph_state["copied.temperature"] = state.copied.temperature.numpy().copy()


@pytest.mark.parametrize(("position", "attention"), [("rope", "softmax"), ("conv_spe", "favor")])
def test_a_state_that_grows_is_refused_by_name(position, attention):
    culprit = "attention=softmax" if attention == "softmax" else "position=conv_spe"
    with pytest.raises(UserError, match=f"^{culprit} cannot be exported.*; export a model of"):
        RecurrentStep(build(pair(position, attention)), NOISE)


def test_the_readme_of_a_folder_decodes(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = small_model()
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
