"""Intervals to earlier notes: against their definition, and against transposition."""

import pytest
import torch

from musicgen.attention import SoftmaxAttention
from musicgen.errors import UserError
from musicgen.export.cached import architecture
from musicgen.models import Transformer
from musicgen.models.intervals import NO_PITCH, Intervals
from musicgen.models.lags import with_recent
from musicgen.position import NoPosition

PITCHES = [NO_PITCH, *range(30, 110), NO_PITCH]  # 82 tokens
LAGS = [1, 3]
SIZES = {"dim": 8, "num_layers": 1, "num_heads": 2, "ff_dim": 8}


@pytest.fixture
def intervals():
    torch.manual_seed(0)
    return Intervals(LAGS, PITCHES, 4).double()


def number(before, after):
    """Return the number of an interval, by the definition."""
    if NO_PITCH in (before, after):
        return 73
    return 36 + max(-36, min(36, after - before))


def test_vectors_and_logits_are_those_of_the_intervals(intervals):
    tokens = [3, 0, 80, 7, 1, 81, 20]
    pitches = [NO_PITCH] * 3 + [PITCHES[t] for t in tokens]  # 3 before the beginning
    seen = with_recent(torch.tensor([tokens]), None, None, 3)
    added = intervals(seen, len(tokens))
    x = torch.randn(1, len(tokens), 4, dtype=torch.double)
    logits = intervals.logits(x, seen)
    for n in range(len(tokens)):
        rows = [number(pitches[3 + n - lag], pitches[3 + n]) for lag in LAGS]
        table = intervals.vectors.weight.view(2, 74, 4)
        expected = table[0, rows[0]] + table[1, rows[1]]
        torch.testing.assert_close(added[0, n], expected)
        scores = intervals.head(x[0, n]).view(2, 74)
        for token in (0, 1, 40, 80, 81):
            rows = [number(pitches[3 + n + 1 - lag], PITCHES[token]) for lag in LAGS]
            expected = scores[0, rows[0]] + scores[1, rows[1]]
            torch.testing.assert_close(logits[0, n, token], expected)
    torch.testing.assert_close(intervals.logits(x[:, -2:], seen), logits[:, -2:])


def test_transposed_notes_have_the_same_vectors_and_transposed_logits(intervals):
    tokens = torch.randint(20, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    x = torch.randn(2, 9, 4, dtype=torch.double)
    here, there = (with_recent(t, None, None, 3) for t in (tokens, tokens + 7))
    torch.testing.assert_close(intervals(here, 9), intervals(there, 9))
    logits = [intervals.logits(x, seen)[:, :, 1:81] for seen in (here, there)]
    torch.testing.assert_close(logits[0][:, :, :73], logits[1][:, :, 7:])


def test_models_of_other_lags_or_pitches_are_other_architectures():
    found = [
        Intervals(lags, pitches, 4)
        for lags, pitches in (([1, 3], PITCHES), ([2, 3], PITCHES), ([1, 3], PITCHES[::-1]))
    ]
    assert len({architecture(each) for each in found}) == 3


@pytest.mark.parametrize(
    "wrong", [{"intervals": [0]}, {"intervals": [4], "causal": False}, {"pitches": None}]
)
def test_intervals_that_cannot_be(wrong):
    settings = {"intervals": [4], "pitches": PITCHES} | wrong
    with pytest.raises(UserError, match=r"^intervals"):
        Transformer(82, **SIZES, position=NoPosition, attention=SoftmaxAttention, **settings)
