"""Weights of one model in another: tokens are matched by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hydra.utils import instantiate

from musicgen.checkpoints import CONTENT_KEY, CheckpointContent, load_initial
from musicgen.errors import UserError
from tests.checkpoints.test_checkpoint import MODEL

OLD, NEW = ["Bar", "Pitch_60", "Pitch_62"], ["Pitch_62", "Tempo_90", "Bar"]


def content(tokens: list[str]) -> CheckpointContent:
    return CheckpointContent(MODEL, {}, tokens, vocabulary_hash=" ".join(tokens), config={})


def checkpoint(tokens: list[str]):
    """A checkpoint as plain data."""
    model = instantiate(MODEL, vocab_size=len(tokens) + 1)  # PAD
    torch.nn.init.normal_(model.head.bias)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return {"state_dict": weights, CONTENT_KEY: content(tokens).to_plain()}


def test_rows_are_matched_by_name_and_new_ones_stay_initialised():
    saved = checkpoint(OLD)
    model = instantiate(MODEL, vocab_size=len(NEW) + 1)
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert load_initial(saved, content(NEW), model) == (
        "another vocabulary: 2 tokens keep their weights by name; "
        "1 new, initialised at random (Tempo_90); 1 left out (Pitch_60)"
    )
    after = model.state_dict()
    for name, tensor in after.items():
        old = saved["state_dict"][f"model.{name}"]
        if name in ("embedding.weight", "head.weight", "head.bias"):
            # Pitch_62, Tempo_90, Bar, PAD
            assert torch.equal(tensor, torch.stack([old[2], initial[name][1], old[0], old[3]]))
        else:
            assert torch.equal(tensor, old), name


def test_the_same_vocabulary_is_loaded_silently():
    saved = checkpoint(OLD)
    model = instantiate(MODEL, vocab_size=len(OLD) + 1)
    assert load_initial(saved, content(OLD), model) is None
    assert torch.equal(model.head.weight, saved["state_dict"]["model.head.weight"])


def test_other_models_and_damaged_weights_are_refused():
    model = instantiate(MODEL, vocab_size=len(NEW) + 1)
    other = replace(content(NEW), model={**MODEL, "num_layers": 2})
    with pytest.raises(UserError, match=r"its model has model.num_layers=1 \(not 2\)"):
        load_initial(checkpoint(OLD), other, model)
    damaged = checkpoint(OLD)
    damaged["state_dict"]["model.head.weight"] = torch.zeros(2, 8)
    with pytest.raises(UserError, match="its weights do not fit its vocabulary"):
        load_initial(damaged, content(NEW), model)
