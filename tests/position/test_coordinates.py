"""Encodings of several coordinates: by head, and jointly."""

from functools import partial

import pytest
import torch

from musicgen.attention import AttentionMask, SoftmaxAttention
from musicgen.errors import ParameterError, UserError
from musicgen.position import (
    SIREN,
    ALiBi,
    ConvSPE,
    OrthogonalLRPE,
    PermutationLRPE,
    PermuteFormer,
    RoPE,
    SineSPE,
    Site,
    TransformerXL,
    UnitaryLRPE,
)
from musicgen.random import NoiseKey

SIZES = {"num_layers": 2, "num_heads": 5, "width": 6, "model_dim": 30}
NOISE = NoiseKey((3,))
NAMES = ["pitch", "index", "beat"]
COLUMNS = {"index": 0, "time": 1, "pitch": 2, "beat": 3}
ENCODINGS = {
    "sine_spe": partial(SineSPE, num_realizations=7, num_sines=3),
    "sine_spe with class tokens": partial(SineSPE, num_realizations=7, class_token=True),
    "exact": partial(SineSPE, num_realizations=None),
    "rope": RoPE,
    "unitary": UnitaryLRPE,
    "orthogonal": partial(OrthogonalLRPE, shared=False),
    "permutation": PermutationLRPE,
    "permute": PermuteFormer,
    "alibi": ALiBi,
    "transformer_xl": TransformerXL,
    "siren": SIREN,
}


def build(name: str, coordinates, **kwargs):
    """Return an encoding whose parameters do not depend on the coordinates."""
    if name == "siren":
        lengths = {"index": 30, "pitch": 128, "beat": 16}
        read = [coordinates] if isinstance(coordinates, str) else coordinates
        kwargs["training_length"] = [lengths[each] for each in read]
    torch.manual_seed(0)
    return ENCODINGS[name](**SIZES, coordinates=coordinates, **kwargs)


def positions():
    """[2, 20, 4]: index, time, pitch and beat."""
    generator = torch.Generator().manual_seed(1)
    index = torch.arange(20).expand(2, -1)
    steps = torch.randint(0, 3, (2, 20), generator=generator).cumsum(1)
    pitch = torch.randint(30, 90, (2, 20), generator=generator)
    return torch.stack([index, steps, pitch, steps % 16], dim=-1)


def outputs(encoding, positions):
    """Return the encoded vectors, or the outputs of attention, of each layer: [layers, ...]."""
    codes, _ = encoding(positions, noise=NOISE)
    q, k, v = torch.randn(3, 2, 20, 5, 6, generator=torch.Generator().manual_seed(2)).unbind(0)
    found = []
    for code in codes:
        if Site.LOGIT in encoding.sites:
            attention = SoftmaxAttention(6, 6**-0.5, 5, site=Site.LOGIT)
            found.append(attention(q, k, v, code, AttentionMask(True))[0])
        else:
            found.append(torch.cat(code.encode(q, k), dim=-1))
    return torch.stack(found)


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODINGS)
def test_each_head_encodes_its_coordinate_as_an_encoding_of_it_alone(name):
    by_head = build(name, NAMES, per_head=True)
    assert by_head.coordinate_names == ("index", "time", "pitch", "beat")
    alone = {each: build(name, each) for each in NAMES}
    x = positions()
    own = {each: x[..., [0, 1, COLUMNS[each]]] for each in NAMES}
    found = outputs(by_head, x)
    lags = torch.stack([torch.arange(-9, 9), torch.arange(18), torch.arange(18) * 3 - 5], dim=-1)
    for head in range(5):
        dim = head % 3
        encoding = alone[NAMES[dim]]
        expected = outputs(encoding, own[NAMES[dim]])[:, :, :, head]
        torch.testing.assert_close(found[:, :, :, head], expected)
        for function in ("kernel", "logit_bias"):
            of_heads = getattr(by_head, function)(lags, 1)
            if of_heads is not None:
                expected = getattr(encoding, function)(lags[:, dim], 1)
                torch.testing.assert_close(of_heads[head], expected[head])
    # And the heads differ in what they read.
    moved = outputs(by_head, x + torch.tensor([0, 0, 0, 3]).mul(torch.arange(20)[:, None] > 10))
    changed = (moved - found).abs().amax((0, 1, 2, 4)) > 1e-4
    assert changed.tolist() == [False, False, True, False, False]


def test_a_table_of_too_many_lags_is_refused():
    codes, _ = build("alibi", ["index", "pitch"])(positions(), noise=NOISE)
    bounds = ((-600, 600), (-600, 600))
    with pytest.raises(UserError, match=r"table of all lags: 1,442,401 .*Use per_head=true"):
        codes[0].logits.table(bounds)
    assert codes[0].logits.table(((-600, 600), (-99, 99))).values.shape[1] == 1201 * 199


@pytest.mark.parametrize(
    ("coordinates", "columns", "names"),
    [
        ("index", (0,), ("index",)),
        (["index"], (0,), ("index",)),
        ("beat", (2,), ("index", "time", "beat")),
        ("both", (0, 1), ("index", "time")),
        (2, (0, 1), ("index", "time")),
        (["chord", "time", "bar"], (2, 1, 3), ("index", "time", "chord", "bar")),
    ],
)
def test_columns_begin_with_index_and_time(coordinates, columns, names):
    encoding = SineSPE(**SIZES, coordinates=coordinates)
    assert (encoding.columns, encoding.coordinate_names) == (columns, names)
    assert encoding.num_columns == len(names)


@pytest.mark.parametrize("wrong", [[], ["index", "index"], 0, None])
def test_invalid_coordinates(wrong):
    with pytest.raises(ParameterError, match=r"coordinates=.*: expected a name, a list of "):
        RoPE(**SIZES, coordinates=wrong)


def test_encodings_that_cannot_take_several_name_those_that_can():
    with pytest.raises(ParameterError, match=r"expected index or time .*per_head=true, or rope"):
        PermutationLRPE(**SIZES, coordinates=["index", "beat"])
    for options in ({}, {"per_head": True}):
        with pytest.raises(ParameterError, match=r"expected index, time .*sine_spe takes any"):
            ConvSPE(**SIZES, coordinates=["index", "beat"], **options)
    for coordinates in ("index", ["index", "time", "bar", "beat", "pitch", "chord"]):
        with pytest.raises(ParameterError, match=r"per_head=True: .* from 2 .* each of 5 heads"):
            RoPE(**SIZES, coordinates=coordinates, per_head=True)


def test_each_coordinate_has_an_angle():
    four = ["index", "time", "bar", "beat"]
    RoPE(**SIZES, coordinates=four[:3])
    with pytest.raises(ParameterError, match=r"4 coordinates: expected at most 3, .* width 6"):
        RoPE(**SIZES, coordinates=four)
    RoPE(**SIZES, coordinates=four, per_head=True)
