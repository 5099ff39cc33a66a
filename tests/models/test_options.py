"""Options and inputs of the model by hand."""

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from musicgen.attention import ELU, FAVOR, LinearAttention, SoftmaxAttention
from musicgen.models import parameter_count
from musicgen.models.inputs import CycleEmbedding, LaggedEmbedding, with_recent
from musicgen.models.layer import ShortConvolution
from tests.models.builders import SIZES, VOCAB, random_tokens, small

DIM, HEADS = SIZES["dim"], SIZES["num_heads"]
TOKENS = random_tokens(2, 20)
build = partial(small, attention=partial(LinearAttention, feature_map=ELU))


def convolved(x: Tensor, weight: Tensor, mask: Tensor, left: int) -> Tensor:
    """The definition, token by token: weight i is of the token `left` − i before."""
    out = x.clone()
    for b, n, i in torch.cartesian_prod(*map(torch.arange, (*x.shape[:2], weight.shape[-1]))):
        m = n - left + i
        if 0 <= m < x.shape[1] and mask[b, m]:
            out[b, n] += weight[:, 0, i] * x[b, m]
    return out


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_short_convolution_is_a_sum_of_neighbours(width, causal):
    conv = ShortConvolution(5, width).double()
    nn.init.normal_(conv.weight)
    x = torch.randn(2, 9, 5, dtype=torch.float64)
    mask = torch.rand(2, 9) > 0.3
    mask[:, 4] = False
    expected = convolved(x, conv.weight, mask, width - 1 if causal else width // 2)
    out, _ = conv(x, mask, causal, None)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    assert conv.weight.grad.stride() == conv.weight.stride()  # else DDP warns


@torch.no_grad()
def test_a_model_with_a_short_convolution_begins_as_one_without():
    plain, convolutional = build(), build(short_conv=4)
    missing = convolutional.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing == [f"layers.{i}.short_conv.weight" for i in range(2)]
    torch.testing.assert_close(convolutional(TOKENS), plain(TOKENS), atol=0, rtol=0)
    assert parameter_count(convolutional) - parameter_count(plain) == 2 * 4 * DIM


@torch.no_grad()
@pytest.mark.parametrize(
    "attention",
    [SoftmaxAttention, *(partial(LinearAttention, feature_map=m) for m in (ELU, FAVOR))],
)
def test_normalised_queries_and_keys_have_the_length_of_their_scale(attention):
    model = small(attention=attention, qk_norm=True)
    layer = model.layers[0]
    nn.init.uniform_(layer.q_norm.weight, 0.5, 2)
    seen: list[Tensor] = []
    layer.attention.register_forward_pre_hook(lambda _, args: seen.extend(args[:3]))
    before = model(TOKENS)
    q, k, v = seen
    width = DIM // HEADS
    for x, scale in ((q, layer.q_norm.weight), (k, torch.ones(width))):
        torch.testing.assert_close((x / scale).square().mean(-1), torch.ones(2, 20, HEADS))
    assert (v.square().mean(-1) - 1).abs().max() > 0.1
    layer.qkv.weight[: 2 * DIM] *= 7  # of q and k
    layer.qkv.bias[: 2 * DIM] *= 7
    torch.testing.assert_close(model(TOKENS), before, atol=1e-4, rtol=0)
    assert parameter_count(model) - parameter_count(small(attention=attention)) == 2 * 2 * width


def test_tied_embeddings_are_one_parameter():
    plain, tied = build(), build(tie_embeddings=True)
    assert parameter_count(plain) - parameter_count(tied) == VOCAB * DIM
    names = [name for name, _ in tied.named_parameters()]
    assert "inputs.embedding.weight" in names
    assert "head.weight" not in names
    # The gradient is the sum of those of both ends.
    plain.load_state_dict(tied.state_dict())
    assert (plain.embedding_scale, tied.embedding_scale) == (DIM**0.5, 1)
    plain.embedding_scale = 1
    for model in (plain, tied):
        model(TOKENS).square().mean().backward()
    both = plain.embedding.weight.grad + plain.head.weight.grad
    torch.testing.assert_close(tied.embedding.weight.grad, both)
    for model in (copy.deepcopy(tied), tied.double()):
        assert model.head.weight is model.embedding.weight


@torch.no_grad()
@pytest.mark.parametrize("feature_map", [ELU, FAVOR])
def test_attention_matrices_contain_the_convolution_and_the_decay_by_token(feature_map):
    attention = partial(LinearAttention, feature_map=feature_map, decay="token")
    model = small(attention=attention, short_conv=4, qk_norm=True).double()
    for layer in model.layers:
        nn.init.normal_(layer.short_conv.weight)
    seen: list[tuple[Tensor, Tensor]] = []
    for layer in model.layers:
        layer.attention.register_forward_hook(lambda _, args, out: seen.append((args[2], out[0])))
    model(TOKENS)
    matrices = model.attentions(TOKENS, layers=[0, 1])
    assert not any(module._forward_pre_hooks for module in model.modules())
    for weights, (v, out) in zip(matrices, seen[:2], strict=True):
        found = torch.einsum("bhnm,bmhv->bnhv", weights, v)
        torch.testing.assert_close(found, out, atol=1e-8, rtol=0)


@pytest.mark.parametrize("lag", [2, 5])
def test_lagged_vectors_are_those_of_earlier_tokens(lag):
    tokens = torch.tensor([[3, 0, 7, 7, 8, 1, 2]])
    mask = torch.tensor([[True, False, *[True] * 5]])
    rows = [8] * lag + [3, 8, 7, 7, 8, 1, 2]  # padding, and before the beginning: the last one
    recent = with_recent(tokens, mask, None, 5)
    assert LaggedEmbedding(lag, 9, 4).read(torch.zeros(1, 7, 1), recent).tolist() == [rows[:7]]


def test_places_in_a_cycle_are_the_index_modulo_its_length():
    positions = torch.tensor([[[0, 9], [4, 9], [7, 9]]])  # the first column is the index
    assert CycleEmbedding(3, 5).read(positions, None).tolist() == [[0, 1, 1]]


@torch.no_grad()
def test_dropout_acts_on_the_embedding_and_on_both_branches_of_a_layer():
    model = build(norm_first=True, dropout=0.5)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    torch.testing.assert_close(model.hidden(TOKENS)[0], model.hidden(TOKENS)[0])
    model.train().dropout.p = 0.0
    widths: list[int] = []
    for layer in model.layers:
        layer.dropout.p = 1.0
        layer.dropout.register_forward_hook(lambda _, args, out: widths.append(args[0].shape[-1]))
    embedded = model.embedding(TOKENS) * model.embedding_scale
    torch.testing.assert_close(model.hidden(TOKENS)[0], model.norm(embedded))
    assert widths == 2 * [DIM, SIZES["ff_dim"], DIM]
    model.dropout.p = 1.0
    torch.testing.assert_close(model.hidden(TOKENS)[0], model.norm(torch.zeros_like(embedded)))
