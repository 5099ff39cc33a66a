"""Exported graphs, run by ONNX Runtime from their manifest alone, against the model in torch."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.export.graph import NEW, step_graph
from musicgen.export.step import RINGS, RecurrentStep
from musicgen.export.weights import store_weights
from musicgen.generation.model import MusicModel
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


class Program:
    """What a program in another language would do: it reads a folder, and knows no torch."""

    def __init__(self, folder: Path) -> None:
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.session = onnxruntime.InferenceSession(folder / "model.onnx")

    def logits(self, ids: list[int], positions: list[list[int]]) -> NDArray[np.float32]:
        """Return the logits after each of some tokens from the beginning on, [L, V]."""
        state = {
            each["name"]: np.broadcast_to(
                np.array(each["initial"], each["dtype"]), (1, *each["shape"][1:])
            ).copy()
            for each in self.manifest["inputs"]
            if "initial" in each
        }
        found = []
        for token, position in zip(ids, positions, strict=True):
            fed = {"tokens": np.array([token]), "positions": np.array([position]), **state}
            for each in self.manifest["inputs"]:
                if "written" in each:
                    axis, source = each["written"]["axis"], each["written"]["from"]
                    slots = state[each["name"]].swapaxes(1, axis)
                    slots[:, int(state["length"][0]) % slots.shape[1]] = fed[source]
            out = self.session.run([each["name"] for each in self.manifest["outputs"]], fed)
            for each, value in zip(self.manifest["outputs"], out, strict=True):
                if "becomes" in each:
                    state[each["becomes"]] = value
            found.append(out[0][0])
        return np.stack(found)


IDS = np.arange(83, 120)  # pitches, none of which is the same as another to a copy head


@pytest.fixture(scope="module")
def model() -> MusicModel:
    torch.manual_seed(0)
    found = small_model()
    found.model.add_copy_head({"window": 17, "max_lag": 5, "coordinate": "index"})
    return found


@pytest.fixture(scope="module")
def expected(model) -> NDArray[np.float32]:
    positions = torch.from_numpy(model.positions(IDS))
    return model.model(torch.from_numpy(IDS)[None], positions=positions[None])[0].detach().numpy()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("onnx")
    model.save_onnx(folder)
    return folder


def test_a_folder_says_all_that_a_program_needs(model, expected, folder):
    program = Program(folder)
    logits = program.logits(IDS.tolist(), model.positions(IDS).tolist())
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    manifest, vocabulary = program.manifest, model.tokenizer.vocabulary
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert str(ROOT).encode() not in (folder / "model.onnx").read_bytes()
    assert manifest["vocabulary_size"] == len(vocabulary)
    assert manifest["coordinates"] == ["index"]
    start, stop = manifest["families"]["Pitch"]
    assert [vocabulary.token(i) for i in (start, stop - 1)] == ["Pitch_21", "Pitch_108"]
    assert manifest["grammar"]["followers"]["Pitch"] == ["Velocity"]
    assert manifest["sampling"]["temperature"] == 0.9


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("int8", 1e-2)])
def test_weights_in_fewer_bits_give_nearly_the_same_logits(
    model, expected, folder, tmp_path, dtype, tolerance
):
    graph = onnx.load(folder / "model.onnx")
    store_weights(graph, dtype)
    onnx.save(graph, tmp_path / "model.onnx")
    (tmp_path / "manifest.json").write_text((folder / "manifest.json").read_text())
    logits = Program(tmp_path).logits(IDS.tolist(), model.positions(IDS).tolist())
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    assert 0 < error < tolerance
    sizes = [(each / "model.onnx").stat().st_size for each in (folder, tmp_path)]
    saved = 2 if dtype == "float16" else 3  # bytes of each weight of the embedding and the head
    num_weights = 2 * model.model.embedding.weight.numel()
    assert sizes[0] - sizes[1] > 0.8 * saved * num_weights


def test_weights_beyond_the_range_of_fp16_are_refused(folder):
    graph = onnx.load(folder / "model.onnx")
    name = next(each.name for each in graph.graph.initializer if "embedding" in each.name)
    for each in graph.graph.initializer:
        if each.name == name:
            weights = 1e6 * onnx.numpy_helper.to_array(each)
            each.CopyFrom(onnx.numpy_helper.from_array(weights, name))
    with pytest.raises(UserError, match=f"{name} has weights beyond the range of float16"):
        store_weights(graph, "float16")
