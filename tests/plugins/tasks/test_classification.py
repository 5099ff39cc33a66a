"""Classifiers: pooling, towers, padding, class tokens, input vectors, batch normalisation."""

from functools import partial

import pytest
import torch

from musicgen.attention import ELU, FAVOR, LinearAttention, SoftmaxAttention
from musicgen.errors import ParameterError
from musicgen.models.layer import BatchNorm
from musicgen.plugins.tasks import ClassificationHead
from musicgen.position import ConvSPE, Learnable, NoPosition, RoPE, SineSPE
from musicgen.random import NoiseKey
from tests.models.builders import VOCAB, random_tokens, small

elu, favor = (partial(LinearAttention, feature_map=m) for m in (ELU, FAVOR))
learnable = partial(Learnable, max_length=16)
sine = partial(SineSPE, class_token=True)
conv = partial(ConvSPE, filter_length=4, class_token=True)


def classifier(position=RoPE, attention=SoftmaxAttention, pool="mean", **settings):
    settings = {"causal": False, "num_outputs": 3, "dim": 8, "num_heads": 2} | settings
    return small(position, attention, head=partial(ClassificationHead, pool=pool), **settings)


X = torch.arange(12.0).view(2, 3, 2)
MASK = torch.tensor([[True, True, False], [True, True, True]])


@pytest.mark.parametrize(
    ("pool", "mask", "expected"),
    [
        ("mean", None, [[2, 3], [8, 9]]),
        ("mean", MASK, [[1, 2], [8, 9]]),
        ("last", None, [[4, 5], [10, 11]]),
        ("last", MASK, [[2, 3], [10, 11]]),
        ("first", MASK, [[0, 1], [6, 7]]),
        ("class_token", MASK, [[0, 1], [6, 7]]),
    ],
)
def test_pooling(pool, mask, expected):
    head = ClassificationHead(2, 2, pool=pool)
    head.layers[-1].weight.data = torch.eye(2)
    head.layers[-1].bias.data.zero_()
    assert head(X, mask).tolist() == expected


def test_two_towers_are_concatenated():
    head = ClassificationHead(2, 4, num_towers=2)
    (layer,) = head.layers
    layer.weight.data = torch.eye(4)
    layer.bias.data.zero_()
    assert head(torch.arange(8.0).view(4, 1, 2)).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


@pytest.mark.parametrize(
    ("position", "attention", "pool"),
    [
        (NoPosition, SoftmaxAttention, "mean"),
        (RoPE, elu, "last"),
        (learnable, SoftmaxAttention, "class_token"),
        (sine, favor, "class_token"),
        (conv, elu, "class_token"),
    ],
)
def test_padding_changes_nothing_and_a_class_token_comes_first(position, attention, pool):
    model = classifier(position, attention, pool)
    tokens, noise = random_tokens(2, 9), NoiseKey((3,))
    alone = model(tokens[:1, :5], noise=noise)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 5:] = False
    together = model(tokens, key_mask=mask, noise=noise)
    assert torch.allclose(together[:1], alone, atol=1e-5)
    assert not torch.allclose(model(tokens, noise=noise)[:1], alone, atol=1e-3)
    if pool == "class_token":
        hidden, _ = model.hidden(tokens, noise=noise)
        assert hidden.shape == (2, 10, 8)
        assert torch.allclose(model(tokens, noise=noise), model.head.layers(hidden[:, 0]))
        together.sum().backward()
        assert model.class_token.grad.abs().sum() > 0


def test_the_last_position_of_learned_ones_is_the_class_tokens():
    model = classifier(learnable, pool="class_token")
    model(random_tokens(1, 15))
    with pytest.raises(ParameterError, match="expected 17 or more"):
        model(random_tokens(1, 16))


def test_input_vectors_and_widths_of_attention():
    model = classifier(vocab_size=None, input_dim=3, attention_dim=12, attention_bias=False)
    assert model(torch.randn(2, 5, 3)).shape == (2, 3)
    layer = model.layers[0]
    assert (layer.qkv.weight.shape, layer.out.weight.shape) == ((36, 8), (8, 12))
    assert layer.qkv.bias is layer.out.bias is None


LENGTHS = torch.tensor([5, 2, 7])
SEEN = torch.arange(7) < LENGTHS[:, None]


def test_tokens_but_not_padding_are_normalised():
    x, norm = torch.randn(3, 7, 4) * 3 + 2, BatchNorm(4)
    out = norm(x, SEEN)
    seen = torch.cat([row[:n] for row, n in zip(x, LENGTHS.tolist(), strict=True)])
    expected = (seen - seen.mean(0)) / (seen.var(0, unbiased=False) + 1e-5).sqrt()
    assert torch.allclose(out[SEEN], expected, atol=1e-6)
    assert (out[~SEEN] == 0).all()
    assert torch.allclose(norm.norm.running_mean, 0.1 * seen.mean(0))
    assert torch.equal(BatchNorm(4)(x, None), BatchNorm(4)(x, torch.ones_like(SEEN)))


@pytest.mark.parametrize("norm_first", [True, False])
def test_padding_changes_nothing_in_training_and_after_it(norm_first):
    tokens, other = torch.randint(VOCAB, (2, 3, 7))
    padded = torch.where(SEEN, tokens, other)
    losses = {}
    for name, x in {"tokens": tokens, "padded": padded}.items():
        trained = classifier(NoPosition, elu, norm="batch", norm_first=norm_first).train()
        out = trained(x, key_mask=SEEN)
        out.logsumexp(1).sum().backward()
        gradients = [p.grad for p in trained.parameters()]
        alone = trained.eval()(x[:1, :5])  # running statistics
        losses[name] = [out, alone, *gradients]
    for a, b in zip(*losses.values(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert torch.allclose(trained(x, key_mask=SEEN)[:1], alone, atol=1e-5)
