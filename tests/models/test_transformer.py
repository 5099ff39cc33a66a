from functools import partial

import pytest
import torch
from hydra.utils import instantiate
from torch import nn

from musicgen.attention import ELU, FAVOR, GaussianSpan, LinearAttention, ReLU, SoftmaxAttention
from musicgen.errors import UserError
from musicgen.models import Transformer, check_compatible, parameter_count
from musicgen.position import (
    NoPosition,
    PermuteFormer,
    PositionalEncoding,
    RoPE,
    SineSPE,
    Site,
    TransformerXL,
)

# Published for a vocabulary of 333 (Liutkus et al. 2021, music models).
PUBLISHED = {"ape": 75_998_541, "sine_spe": 76_018_509, "conv_spe": 76_141_901}


@pytest.mark.parametrize(("method", "count"), PUBLISHED.items())
def test_parameters_of_the_published_models(config, method, count):
    cfg = config("train", f"experiment=spe2021/pop_piano_{method}")
    assert parameter_count(instantiate(cfg.model, vocab_size=333)) == count


SIZES = {"dim": 8, "num_layers": 1, "num_heads": 2, "ff_dim": 8}
PARTS = {"position": NoPosition, "attention": SoftmaxAttention}
favor, elu, relu = (partial(LinearAttention, feature_map=m) for m in (FAVOR, ELU, ReLU))


class OnLogits(PositionalEncoding):
    name = "on_logits"
    sites = frozenset({Site.LOGIT})
    relative = "exact"


class UserEncoding(PositionalEncoding):
    __module__ = "my_package.encodings"
    name = "user_encoding"
    sites = frozenset({Site.FEATURE})
    relative = "no"


def test_impossible_pair_names_both_settings_and_the_cure():
    with pytest.raises(UserError) as refusal:
        Transformer(9, **SIZES, position=OnLogits, attention=favor)
    message = str(refusal.value)
    assert "\n" not in message
    assert "position=on_logits acts on attention logits" in message
    assert "attention=favor" in message
    # Those of other packages included.
    names = ["conv_spe", "learnable", "none", "rope", "sine_spe", "sinusoidal", "user_encoding"]
    assert {*names} <= {*message.split("position in: ")[1].split(", ")}


@pytest.mark.parametrize("decay", ["head", "token"])
def test_decay_has_no_direction_without_causality(decay):
    expected = rf"^attention\.decay={decay}: expected none with causal=false"
    with pytest.raises(UserError, match=expected):
        check_compatible(NoPosition, partial(favor, decay=decay), causal=False)


def test_compatible_pairs_act_at_the_site_nearest_to_the_weights():
    assert check_compatible(TransformerXL, SoftmaxAttention) == Site.LOGIT
    assert check_compatible(SineSPE, SoftmaxAttention) == Site.QUERY_KEY


@pytest.mark.parametrize("position", [RoPE, PermuteFormer])
def test_rotary_encodings_act_before_random_features_and_on_others(position):
    assert check_compatible(position, favor) == Site.QUERY_KEY
    assert check_compatible(position, elu) == check_compatible(position, relu) == Site.FEATURE
    # A partial of a partial, as a configuration gives it.
    narrow = partial(LinearAttention, feature_map=partial(FAVOR, num_features=8))
    for site in (Site.QUERY_KEY, Site.FEATURE):
        chosen = partial(position, site=str(site))
        assert {check_compatible(chosen, a) for a in (narrow, elu)} == {site}
    assert check_compatible(partial(position, site=None), favor) == Site.QUERY_KEY


@pytest.mark.parametrize(
    ("position", "attention", "message"),
    [
        (
            partial(RoPE, site="feature"),
            SoftmaxAttention,
            r"^position.site=feature: expected query_key with attention=softmax, "
            r"or attention=elu or favor or relu$",
        ),
        (
            partial(RoPE, site="logits"),
            favor,
            r"^position.site=logits: expected feature or query_key with attention=favor$",
        ),
        (
            partial(RoPE, normaliser="encoded"),
            SoftmaxAttention,
            r"^position.normaliser=encoded: .* position.site=feature with attention=elu or favor",
        ),
        (PermuteFormer, SoftmaxAttention, "has a decay, which attention=softmax does not apply"),
    ],
)
def test_invalid_sites_name_the_cure(position, attention, message):
    with pytest.raises(UserError, match=message):
        check_compatible(position, attention)


def test_heads_must_divide_the_width():
    with pytest.raises(UserError, match=r"^num_heads=3: expected a divisor of dim=8"):
        Transformer(9, **SIZES | {"num_heads": 3}, **PARTS)


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
def test_layers_equal_torchs(norm_first):
    sizes = {"dim": 16, "num_layers": 2, "num_heads": 2, "ff_dim": 24, "dropout": 0.0}
    model = Transformer(
        9, **sizes, position=NoPosition, attention=SoftmaxAttention, norm_first=norm_first
    )
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
    x = model.embedding(torch.tensor([[1, 5, 3, 8, 8]])) * 4
    for layer in model.layers:
        theirs = nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True, norm_first=norm_first)
        for to, own in (
            (theirs.self_attn.in_proj_weight, layer.qkv.weight),
            (theirs.self_attn.in_proj_bias, layer.qkv.bias),
            (theirs.self_attn.out_proj, layer.out),
            (theirs.linear1, layer.ff_in),
            (theirs.linear2, layer.ff_out),
            (theirs.norm1, layer.attention_norm),
            (theirs.norm2, layer.ff_norm),
        ):
            to.copy_(own) if isinstance(own, torch.Tensor) else to.load_state_dict(own.state_dict())
        x = theirs(x, nn.Transformer.generate_square_subsequent_mask(5), is_causal=True)
    logits = model(torch.tensor([[1, 5, 3, 8, 8]]))
    x = x if model.norm is None else model.norm(x)
    torch.testing.assert_close(logits, model.head(x), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_masked_token_after_others_is_not_seen():
    parts = {"position": NoPosition, "attention": favor}
    model = Transformer(9, **SIZES | {"num_layers": 2}, **parts, init_std=0.5).eval()
    ids = torch.randint(9, (1, 6))
    _, state = model.forward_with_state(ids[:, :4])
    mask = torch.tensor([[False]])
    _, state = model.forward_with_state(ids[:, 4:5], key_mask=mask, state=state)
    found, _ = model.forward_with_state(ids[:, 5:], state=state)
    expected = model(ids, key_mask=torch.tensor([[1, 1, 1, 1, 0, 1]]).bool())
    torch.testing.assert_close(found[:, 0], expected[:, 5])


@torch.no_grad()
def test_a_step_writes_into_the_state_it_is_given_only_if_it_may():
    model = Transformer(9, **SIZES | {"num_layers": 2}, **PARTS, init_std=0.5).eval()
    ids = torch.randint(9, (2, 10))
    _, state = model.forward_with_state(ids[:, :9])
    buffers = [x for layer in state.layers for x in layer.attention.buffers]
    before = [x.clone() for x in buffers]
    expected, _ = model.forward_with_state(ids[:, 9:], state=state)
    assert all(map(torch.equal, buffers, before))
    found, after = model.forward_with_state(ids[:, 9:], state=state, overwrite=True)
    written = [x for layer in after.layers for x in layer.attention.buffers]
    assert [x.data_ptr() for x in written] == [x.data_ptr() for x in buffers]
    assert not all(map(torch.equal, buffers, before))
    assert torch.equal(found, expected)


def test_errors_of_parts_name_the_part():
    odd = partial(LinearAttention, feature_map=partial(FAVOR, num_features=7))
    wrong = {
        "position.coordinates": {"position": partial(SineSPE, coordinates=["beat", "beat"])},
        "attention.feature_map.num_features": {"attention": odd},
        "span.sigma": {"span": partial(GaussianSpan, training_length=9, sigma=0)},
    }
    for name, part in wrong.items():
        with pytest.raises(UserError, match=f"^{name}=.*: expected "):
            Transformer(9, **SIZES, **(PARTS | part))


def test_position_columns_are_those_of_the_encoding_or_the_span():
    time = partial(SineSPE, coordinates="time")
    span = partial(GaussianSpan, training_length=[9, 9, 9])
    assert Transformer(9, **SIZES, **PARTS).num_position_columns == 1
    assert Transformer(9, **SIZES, **(PARTS | {"position": time})).num_position_columns == 2
    model = Transformer(9, **SIZES, **PARTS, span=span)
    assert model.num_position_columns == 3
    with pytest.raises(UserError, match=r"reads 3 coordinates .*index, time, but positions have 1"):
        model(torch.zeros(1, 3, dtype=torch.long))
