"""Classifiers: pooling, towers, padding, class tokens, input vectors."""

from functools import partial

import pytest
import torch

from musicgen.attention import ELU, FAVOR, LinearAttention, SoftmaxAttention
from musicgen.errors import ParameterError
from musicgen.models import ClassificationHead, Transformer
from musicgen.position import ConvSPE, Learnable, NoPosition, RoPE, SineSPE
from musicgen.random import NoiseKey

KERNELS = {
    "softmax": partial(SoftmaxAttention),
    "elu": partial(LinearAttention, feature_map=partial(ELU)),
    "favor": partial(LinearAttention, feature_map=partial(FAVOR)),
}
POSITIONS = {
    "none": partial(NoPosition),
    "learnable": partial(Learnable, max_length=16),
    "rope": partial(RoPE),
    "sine": partial(SineSPE, class_token=True),
    "conv": partial(ConvSPE, filter_length=4, class_token=True),
}


def classifier(position="rope", kernel="softmax", pool="mean", **settings):
    sizes = {"dim": 8, "num_layers": 2, "num_heads": 2, "ff_dim": 16, "dropout": 0.0}
    settings = {"vocab_size": 11, "causal": False, "init_std": 0.3, "num_outputs": 3} | settings
    parts = {"position": POSITIONS[position], "attention": KERNELS[kernel]}
    head = partial(ClassificationHead, pool=pool)
    return Transformer(**parts, head=head, **sizes | settings).eval()


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
    ("position", "kernel", "pool"),
    [
        ("none", "softmax", "mean"),
        ("rope", "elu", "last"),
        ("learnable", "softmax", "class_token"),
        ("sine", "favor", "class_token"),
        ("conv", "elu", "class_token"),
    ],
)
def test_padding_changes_nothing(position, kernel, pool):
    model = classifier(position, kernel, pool)
    tokens = torch.randint(1, 11, (2, 9), generator=torch.Generator().manual_seed(1))
    noise = NoiseKey((3,))
    alone = model(tokens[:1, :5], noise=noise)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 5:] = False
    together = model(tokens, key_mask=mask, noise=noise)
    assert torch.allclose(together[:1], alone, atol=1e-5)
    assert not torch.allclose(model(tokens, noise=noise)[:1], alone, atol=1e-3)


@pytest.mark.parametrize("position", ["learnable", "sine", "conv"])
def test_a_class_token_comes_first_and_learns(position):
    model = classifier(position, "favor", "class_token")
    tokens = torch.randint(11, (2, 6))
    hidden, _ = model.hidden(tokens)
    assert hidden.shape == (2, 7, 8)
    assert torch.allclose(model(tokens), model.head.layers(hidden[:, 0]))
    model(tokens).sum().backward()
    assert model.class_token.grad.abs().sum() > 0


def test_a_causal_model_has_no_class_token():
    with pytest.raises(ParameterError, match=r"head\.pool=class_token: expected last or mean"):
        classifier(pool="class_token", causal=True)


def test_the_last_position_of_learned_ones_is_the_class_tokens():
    model = classifier("learnable", pool="class_token")
    model(torch.randint(11, (1, 15)))
    with pytest.raises(ParameterError, match="expected more than position 16"):
        model(torch.randint(11, (1, 16)))


def test_input_vectors_and_widths_of_attention():
    model = classifier(vocab_size=None, input_dim=3, attention_dim=12, attention_bias=False)
    assert model(torch.randn(2, 5, 3)).shape == (2, 3)
    layer = model.layers[0]
    assert (layer.qkv.weight.shape, layer.out.weight.shape) == ((36, 8), (8, 12))
    assert layer.qkv.bias is layer.out.bias is None
    with pytest.raises(ParameterError, match="num_heads=2: expected a divisor of attention_dim=7"):
        classifier(attention_dim=7)


def test_activation():
    gelu, relu = classifier(activation="gelu"), classifier()
    relu.load_state_dict(gelu.state_dict())
    tokens = torch.randint(11, (1, 4))
    assert not torch.allclose(gelu(tokens), relu(tokens))
    x = torch.randn(5)
    assert torch.allclose(gelu.layers[0].activation(x), x * (1 + torch.erf(x / 2**0.5)) / 2)
