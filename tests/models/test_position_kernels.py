"""A model's functions of the lag, against the formulas of encodings, spans and decays."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from musicgen.attention import FAVOR, GaussianSpan, LinearAttention
from musicgen.errors import UserError
from musicgen.models import Transformer
from musicgen.models.inspection import kernel_axes, position_kernels
from musicgen.position import (
    SIREN,
    Learnable,
    NoPosition,
    OrthogonalLRPE,
    PermuteFormer,
    RoPE,
    Sinusoidal,
    TransformerXL,
)
from musicgen.random import NoiseKey
from tests.contracts import pairs
from tests.models.builders import small

HEADS, WIDTH, LAYERS = 2, 4, 3
LAGS = np.arange(-15, 30)
favor = partial(LinearAttention, feature_map=partial(FAVOR, num_features=6))
model = partial(small, dim=HEADS * WIDTH, num_layers=LAYERS, num_heads=HEADS, init_std=0.01)


def only_kernel(net: Transformer, axis: int = 0, name: str | None = None):
    kernels = position_kernels(net, LAGS, axis)
    (kernel,) = [k for k in kernels if name in (None, k.name)]
    return kernel


@pytest.mark.parametrize(("site", "width"), [("query_key", WIDTH), ("feature", 6)])
def test_rope_kernel_is_cosines(site, width):
    kernel = only_kernel(model(partial(RoPE, site=site), favor))
    assert (kernel.name, kernel.relative) == ("rope", "exact")
    alpha = 10000.0 ** (-2 * np.arange(width // 2) / width)
    waves = np.cos(alpha[:, None] * LAGS).repeat(2, axis=0)
    expected = np.broadcast_to(waves, (1, HEADS, width, len(LAGS)))  # all layers share it
    np.testing.assert_allclose(kernel.values, expected, atol=1e-5)
    np.testing.assert_allclose(kernel.profile, expected.mean(-2), atol=1e-5)


@pytest.mark.parametrize("position", [partial(SIREN, training_length=12), TransformerXL])
def test_kernels_of_logit_encodings_are_their_position_terms(position):
    net = model(position)
    torch.nn.init.normal_(net.position.position_bias)
    of_queries, bias = position_kernels(net, LAGS)
    assert bias.name == f"{of_queries.name} bias"
    q = torch.randn(1, 1, HEADS, WIDTH)
    codes, _ = net.position(torch.arange(5)[None, :, None], noise=NoiseKey((0,)))
    for layer, code in enumerate(codes):
        term, table = code.logits.term, code.logits.table(((-29, 15),))  # key minus query
        values = table.values.detach().flip(1)  # [H, N, K], by query minus key
        terms = torch.einsum("hk,hnk->hn", term.position_query(q, 1 / 2)[0, 0], values)  # K^-½
        actual = torch.einsum("hk,hkn->hn", q[0, 0], torch.tensor(of_queries.values[layer]))
        actual = actual + torch.tensor(bias.values[layer, :, 0])
        torch.testing.assert_close(actual, terms.detach(), atol=1e-5, rtol=1e-4)
        norm = values.norm(dim=-1) / 2 / math.sqrt(WIDTH)
        torch.testing.assert_close(torch.tensor(of_queries.profile[layer]), norm)


def test_sinusoidal_kernel_is_the_product_of_two_encodings():
    net = model(Sinusoidal)
    kernel = only_kernel(net)
    positions = torch.arange(80)[None, :, None]
    encodings = net.position.embed(torch.zeros(1, 80, HEADS * WIDTH), positions)[0].numpy()
    products = encodings[40 + LAGS] @ encodings[40]
    np.testing.assert_allclose(kernel.values.sum(-2)[0, 0], products, atol=1e-4)
    assert kernel.relative == "no"


def test_span_kernel_is_the_gaussian_within_the_window():
    span = partial(GaussianSpan, training_length=31, sigma=0.2)
    net = model(NoPosition, span=span)
    with torch.no_grad():
        net.layers[1].span.sigma.fill_(0.1)
        net.layers[1].span.update_window()
    kernel = only_kernel(net)
    assert kernel.name == "span"
    for layer, sigma in enumerate((6, 3, 6)):
        window = math.ceil(sigma * math.sqrt(2 * math.log(10)))
        expected = np.exp(-0.5 * (LAGS / sigma) ** 2) * (np.abs(LAGS) <= window)
        np.testing.assert_allclose(kernel.profile[layer, 0], expected, atol=1e-6)


def test_decay_kernels_are_powers():
    net = model(PermuteFormer, partial(favor, decay="head"))
    with torch.no_grad():
        net.layers[1].attention.decay[1] = math.log(0.25)
    assert [k.name for k in position_kernels(net, LAGS)] == ["permute", "decay", "permute decay"]
    kernel = only_kernel(net, name="decay")
    np.testing.assert_allclose(kernel.profile[1, 1], np.exp(-0.25 * np.abs(LAGS)), rtol=1e-5)
    ratio = 1 / (1 + np.exp([-2, -3.5]))[:, None]
    (profile,) = only_kernel(net, name="permute decay").profile
    np.testing.assert_allclose(profile, ratio ** np.abs(LAGS), rtol=1e-4)
    # Bidirectional attention ignores decays.
    assert only_kernel(model(PermuteFormer, favor, causal=False)).name == "permute"


def test_each_coordinate_has_its_own_kernels():
    lrpe = partial(OrthogonalLRPE, basis="identity")
    spans = partial(GaussianSpan, training_length=[9, 9, 21])
    # Of names: columns of positions, after index and time.
    net = model(partial(lrpe, coordinates=["pitch", "index"]), span=spans)
    assert kernel_axes(net) == [0, 1, 2]
    angles = 2 * math.pi * net.position.frequency(0).detach()
    for axis, dim, sigma in ((2, 0, 0.3 * 20), (0, 1, 0.3 * 8)):
        encoding, span = position_kernels(net, LAGS, axis)
        along = torch.arange(angles.shape[-1]) % 2 == dim
        waves = np.cos((angles * along)[..., None] * LAGS).repeat_interleave(2, dim=1)
        np.testing.assert_allclose(encoding.values[0], waves, atol=1e-5)
        assert span.profile[0, 0, 15 + 2] == pytest.approx(math.exp(-0.5 * (2 / sigma) ** 2))
    # An encoding of musical time, and a decay by the number of tokens.
    net = model(partial(lrpe, coordinates="time"), partial(favor, decay="head"))
    names = [only_kernel(net, axis).name for axis in kernel_axes(net)]
    assert names == ["decay", "lrpe_orthogonal"]


@pytest.mark.parametrize("position", [NoPosition, partial(Learnable, max_length=50)])
def test_models_without_functions_of_the_lag_are_refused(position):
    net = model(position)
    assert position_kernels(net, LAGS) == []
    with pytest.raises(UserError, match=r"position=(none|learnable) has no kernel.*span=gaussian"):
        kernel_axes(net)
    assert kernel_axes(model(position, partial(favor, decay="head"))) == [0]


@pytest.mark.parametrize("name", sorted({*pairs.POSITIONS} - {"none", "learnable"}))
def test_every_encoding_in_conf_has_a_kernel(name):
    net = pairs.new(pairs.pair(name, "favor" if name == "permute" else "softmax"))
    kernel = position_kernels(net, LAGS)[0]
    assert kernel.values.shape[-1] == len(LAGS)
    assert kernel.values.std() > 0
    assert kernel.relative == net.position.relative
