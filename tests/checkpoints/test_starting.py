"""Weights of one model in another: tokens are matched by name."""

from dataclasses import replace

import pytest
import torch
from hydra.utils import instantiate

from musicgen.checkpoints import CheckpointContent, load_initial
from musicgen.errors import UserError
from tests.checkpoints.small_model import MODEL, as_checkpoint

OLD, NEW = ["Bar", "Pitch_60", "Pitch_62"], ["Pitch_62", "Bar", "Tempo_90"]


def content(tokens: list[str]) -> CheckpointContent:
    return CheckpointContent(MODEL, {}, tokens, vocabulary_hash=" ".join(tokens), config={})


def checkpoint(tokens: list[str], **options):
    """A checkpoint as plain data."""
    model = instantiate(MODEL, vocab_size=len(tokens) + 1, **options)  # PAD
    torch.nn.init.normal_(model.head.bias)
    return as_checkpoint(model, replace(content(tokens), model=MODEL | options))


def start(tokens: list[str], before=None, **options):
    """Start a model of tokens from a checkpoint of OLD and the options before.

    Returns the note, the model, its initial weights, and those of the checkpoint.
    """
    saved = checkpoint(OLD, **options if before is None else before)
    model = instantiate(MODEL, vocab_size=len(tokens) + 1, **options)
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    note = load_initial(saved, replace(content(tokens), model=MODEL | options), model)
    old = {name.removeprefix("model."): tensor for name, tensor in saved["state_dict"].items()}
    return note, model, initial, old


BY_TOKEN = {"inputs.embedding.weight", "head.weight", "head.bias", "copy_head.embedding.weight"}
COPY = {"copy": {"heads": 2, "coordinate": "index"}}


@pytest.mark.parametrize("options", [{}, {"tie_embeddings": True}, COPY])
def test_rows_are_matched_by_name_and_new_ones_stay_initialised(options):
    note, model, initial, old = start(NEW, **options)
    assert note == "1 token initialised (Tempo_90); 1 token left out (Pitch_60)"
    for name, tensor in model.state_dict().items():
        expected = old[name]
        if name in BY_TOKEN:  # Pitch_62, Bar, Tempo_90, PAD
            rows = old[name][2], old[name][0], initial[name][2], old[name][3]
            expected = torch.stack(rows)
        assert torch.equal(tensor, expected), name
    assert (model.head.weight is model.embedding.weight) == ("tie_embeddings" in options)


@pytest.mark.parametrize("before", [{}, {"copy": {"max_lag": 4, "coordinate": "index"}}])
def test_a_copy_head_that_a_checkpoint_lacks_is_new(before):
    note, model, initial, old = start(OLD, before, **COPY)
    assert note == "a new copy head"
    for name, tensor in model.state_dict().items():
        expected = initial[name] if name.startswith("copy_head.") else old[name]
        assert torch.equal(tensor, expected), name
    note, model, initial, _ = start(NEW, before, **COPY)
    assert note.startswith(
        "1 token initialised (Tempo_90); 1 token left out (Pitch_60); a new copy head"
    )
    assert torch.equal(model.copy_head.embedding.weight, initial["copy_head.embedding.weight"])


def test_an_embedding_of_keys_that_a_checkpoint_lacks_is_new():
    note, model, initial, old = start(OLD, {}, musical_key=True)
    assert note == "a new key embedding"
    for name, tensor in model.state_dict().items():
        expected = initial[name] if name == "inputs.key.weight" else old[name]
        assert torch.equal(tensor, expected), name


@pytest.mark.parametrize(("before", "note"), [({}, None), (COPY, "without its copy head")])
def test_the_same_vocabulary_is_loaded_silently_but_for_a_copy_head_that_is_left_out(before, note):
    said, model, _, old = start(OLD, before)
    assert said == note
    assert torch.equal(model.head.weight, old["head.weight"])


def test_other_models_and_damaged_weights_are_refused():
    model = instantiate(MODEL, vocab_size=len(NEW) + 1)
    other = replace(content(NEW), model={**MODEL, "num_layers": 3})
    with pytest.raises(UserError, match=r"its model has model.num_layers=2 \(not 3\)"):
        load_initial(checkpoint(OLD), other, model)
    damaged = checkpoint(OLD)
    damaged["state_dict"]["model.head.weight"] = torch.zeros(2, 8)
    with pytest.raises(UserError, match="its weights do not fit its vocabulary"):
        load_initial(damaged, content(NEW), model)
