"""What a model sees of tokens, against its definition."""

import pytest
import torch
from hydra.utils import instantiate

from musicgen.attention import SoftmaxAttention
from musicgen.errors import UserError
from musicgen.models import Transformer
from musicgen.models.inputs import CycleEmbedding, LaggedEmbedding, Seen, with_recent
from musicgen.position import NoPosition


@pytest.mark.parametrize("lag", [2, 5])
def test_lagged_vectors_are_those_of_earlier_tokens(lag):
    tokens = torch.tensor([[3, 0, 7, 7, 8, 1, 2]])
    rows = [8] * lag + tokens[0].tolist()  # before the beginning, the last one: padding
    seen = Seen(tokens, torch.zeros(1, 7, 1), with_recent(tokens, None, None, 5))
    assert LaggedEmbedding(lag, 9, 4).read(seen).tolist() == [rows[:7]]


def test_padding_is_as_nothing():
    tokens, mask = torch.tensor([[3, 0, 7]]), torch.tensor([[True, False, True]])
    recent = with_recent(tokens, mask, None, 1)
    assert recent.tolist() == [[0, 4, 0, 8]]
    seen = Seen(tokens, torch.zeros(1, 3, 1), recent)
    assert LaggedEmbedding(1, 9, 4).read(seen).tolist() == [[8, 3, 8]]


@pytest.mark.parametrize("wrong", [{"lags": [0]}, {"lags": [4], "causal": False}])
def test_lags_that_cannot_be(wrong):
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "ff_dim": 8}
    with pytest.raises(UserError, match=r"^lags"):
        Transformer(9, **sizes, position=NoPosition, attention=SoftmaxAttention, **wrong)


def test_places_in_a_cycle_are_the_index_modulo_its_length():
    positions = torch.tensor([[[0, 9], [4, 9], [7, 9]]])  # the first column is the index
    seen = Seen(torch.zeros(1, 3), positions, None)
    assert CycleEmbedding(3, 5).read(seen).tolist() == [[0, 1, 1]]


@torch.no_grad()
def test_a_model_without_position_tells_the_phases_of_equal_tokens(config):
    overrides = ("position=none", "model.cycles=[4]", "model.init_std=0.3")
    model = instantiate(config("train", *overrides).model, vocab_size=9).eval()
    assert list(model.inputs) == ["embedding", "cycle_4"]
    logits = model(torch.zeros(1, 13, dtype=torch.long))[0]
    differences = (logits[:, None] - logits).abs().amax(-1)
    assert differences[4, 5:8].min() > 1e-3
    model.inputs["cycle_4"].weight.zero_()
    without = model(torch.zeros(1, 13, dtype=torch.long))[0]
    torch.testing.assert_close(without, without[:1].expand(13, -1))
