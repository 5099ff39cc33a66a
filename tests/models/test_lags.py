"""Embeddings of the tokens at fixed distances: against their definition."""

import pytest
import torch

from musicgen.attention import SoftmaxAttention
from musicgen.errors import UserError
from musicgen.models import Transformer
from musicgen.models.lags import LaggedEmbedding, with_recent
from musicgen.position import NoPosition


def test_the_vectors_are_those_of_earlier_tokens():
    lagged = LaggedEmbedding([2, 5], 9, 4)
    tokens = torch.tensor([[3, 0, 7, 7, 8, 1, 2]])
    added = lagged(with_recent(tokens, None, None, 5), 7)
    rows = [8] * 5 + tokens[0].tolist()  # before the beginning, the last one: padding
    for n in range(7):
        expected = lagged.tables[0].weight[rows[5 + n - 2]] + lagged.tables[1].weight[rows[n]]
        torch.testing.assert_close(added[0, n], expected)


def test_padding_is_as_nothing():
    lagged = LaggedEmbedding([1], 9, 4)
    mask = torch.tensor([[True, False, True]])
    seen = with_recent(torch.tensor([[3, 0, 7]]), mask, None, 1)
    assert seen.tolist() == [[0, 4, 0, 8]]
    torch.testing.assert_close(lagged(seen, 3)[0, 2], lagged.tables[0].weight[8])


@pytest.mark.parametrize("wrong", [{"lags": [0]}, {"lags": [4], "causal": False}])
def test_lags_that_cannot_be(wrong):
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "ff_dim": 8}
    with pytest.raises(UserError, match=r"^lags"):
        Transformer(9, **sizes, position=NoPosition, attention=SoftmaxAttention, **wrong)
