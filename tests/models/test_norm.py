"""Batch normalisation over the tokens that are not padding."""

from functools import partial

import pytest
import torch

from musicgen.attention import ELU, LinearAttention
from musicgen.errors import ParameterError
from musicgen.models import ClassificationHead, Transformer
from musicgen.models.norm import BatchNorm
from musicgen.position import NoPosition

LENGTHS = torch.tensor([5, 2, 7])
MASK = torch.arange(7) < LENGTHS[:, None]


def model(**options):
    torch.manual_seed(0)
    sizes = {"dim": 8, "num_layers": 2, "num_heads": 2, "ff_dim": 16, "init_std": 0.3}
    attention = partial(LinearAttention, feature_map=ELU)
    options = {"causal": False, "norm": "batch", "dropout": 0.0, **options}
    head = partial(ClassificationHead, pool="mean")
    return Transformer(
        11, position=NoPosition, attention=attention, head=head, num_outputs=3, **sizes, **options
    )


def test_tokens_but_not_padding_are_normalised():
    torch.manual_seed(0)
    x, norm = torch.randn(3, 7, 4) * 3 + 2, BatchNorm(4)
    out = norm(x, MASK)
    seen = torch.cat([row[:n] for row, n in zip(x, LENGTHS.tolist(), strict=True)])
    expected = (seen - seen.mean(0)) / (seen.var(0, unbiased=False) + 1e-5).sqrt()
    assert torch.allclose(out[MASK], expected, atol=1e-6)
    assert (out[~MASK] == 0).all()
    assert torch.allclose(norm.norm.running_mean, 0.1 * seen.mean(0))
    assert torch.equal(BatchNorm(4)(x, None), BatchNorm(4)(x, torch.ones_like(MASK)))


@pytest.mark.parametrize("norm_first", [True, False])
def test_padding_changes_nothing_in_training_and_after_it(norm_first):
    tokens, noise = torch.randint(11, (3, 7)), torch.randint(11, (3, 7))
    padded = torch.where(MASK, tokens, noise)
    losses = {}
    for name, x in {"tokens": tokens, "padded": padded}.items():
        trained = model(norm_first=norm_first)
        out = trained(x, key_mask=MASK)
        out.logsumexp(1).sum().backward()
        gradients = [p.grad for p in trained.parameters()]
        alone = trained.eval()(x[:1, :5])  # running statistics
        losses[name] = [out, alone, *gradients]
    for a, b in zip(*losses.values(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    whole = trained(x, key_mask=MASK)
    assert torch.allclose(whole[:1], alone, atol=1e-5)


def test_a_causal_model_has_no_batch_norm():
    with pytest.raises(ParameterError, match="norm=batch: expected layer with causal=true"):
        model(causal=True)
