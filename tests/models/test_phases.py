"""Embeddings of the place in cycles of the token index."""

import torch
from hydra.utils import instantiate

from musicgen.models.phases import PhaseEmbedding


def test_the_vectors_are_those_of_the_index_modulo_each_cycle():
    phases = PhaseEmbedding([2, 3], 5)
    two, three = (table.weight for table in phases.tables)
    positions = torch.tensor([[[0, 9], [4, 9], [7, 9]]])  # the first column is the index
    x = torch.randn(2, 3, 5)
    added = torch.stack([two[0] + three[0], two[0] + three[1], two[1] + three[1]])
    torch.testing.assert_close(phases(x, positions), x + added)


def test_without_cycles_there_are_no_parameters_and_old_weights_load(config):
    model = instantiate(config("train").model, vocab_size=9)
    assert not any("phases" in name for name in model.state_dict())
    x = torch.randn(1, 2, 128)
    assert torch.equal(model.phases(x, torch.zeros(1, 2, 1)), x)


@torch.no_grad()
def test_a_model_without_position_tells_the_phases_of_equal_tokens(config):
    overrides = ("position=none", "model.cycles=[4]", "model.init_std=0.3")
    model = instantiate(config("train", *overrides).model, vocab_size=9).eval()
    logits = model(torch.zeros(1, 13, dtype=torch.long))[0]
    differences = (logits[:, None] - logits).abs().amax(-1)
    assert differences[4, 5:8].min() > 1e-3
    model.phases.tables[0].weight.zero_()
    without = model(torch.zeros(1, 13, dtype=torch.long))[0]
    torch.testing.assert_close(without, without[:1].expand(13, -1))
