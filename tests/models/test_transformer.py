from __future__ import annotations

from functools import partial

import pytest
import torch
from hydra.utils import instantiate
from torch import nn

from musicgen.attention import (
    ELU,
    FAVOR,
    GaussianSpan,
    LinearAttention,
    ReLU,
    SoftmaxAttention,
)
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


class OnLogits(PositionalEncoding):
    name = "on_logits"
    sites = frozenset({Site.LOGIT})
    relative = "exact"


def test_impossible_pair_names_both_settings_and_the_cure():
    favor = partial(LinearAttention, feature_map=partial(FAVOR, num_features=8))
    with pytest.raises(UserError) as refusal:
        check_compatible(OnLogits, favor)
    message = str(refusal.value)
    assert "\n" not in message
    assert "position=on_logits acts on attention logits" in message
    assert "attention=favor" in message
    for word in ("conv_spe", "learnable", "none", "rope", "sine_spe", "sinusoidal"):
        assert word in message.split("position in: ")[1]
    with pytest.raises(UserError):
        Transformer(
            9, dim=8, num_layers=1, num_heads=2, ff_dim=8, position=OnLogits, attention=favor
        )


def test_decay_has_no_direction_without_causality():
    favor = partial(LinearAttention, feature_map=FAVOR, decay="head")
    with pytest.raises(UserError, match=r"^attention\.decay=head: expected none with causal=false"):
        check_compatible(NoPosition, favor, causal=False)


def test_compatible_pairs_act_at_the_site_nearest_to_the_weights():
    assert check_compatible(TransformerXL, SoftmaxAttention) == Site.LOGIT
    assert check_compatible(SineSPE, SoftmaxAttention) == Site.QUERY_KEY


@pytest.mark.parametrize("position", [RoPE, PermuteFormer])
def test_rotary_encodings_act_before_random_features_and_on_others(position):
    favor, elu, relu = (partial(LinearAttention, feature_map=m) for m in (FAVOR, ELU, ReLU))
    assert check_compatible(position, favor) == Site.QUERY_KEY
    assert check_compatible(position, elu) == check_compatible(position, relu) == Site.FEATURE
    # A partial of a partial, as a configuration gives it.
    narrow = partial(LinearAttention, feature_map=partial(FAVOR, num_features=8))
    for site in (Site.QUERY_KEY, Site.FEATURE):
        chosen = partial(position, site=str(site))
        assert {check_compatible(chosen, a) for a in (narrow, elu)} == {site}
    assert check_compatible(partial(position, site=None), favor) == Site.QUERY_KEY


def test_invalid_sites_name_the_cure():
    favor = partial(LinearAttention, feature_map=FAVOR)
    expected = (
        r"^position.site=feature: expected query_key with attention=softmax, "
        r"or attention=elu or favor or relu, which forms feature maps$"
    )
    with pytest.raises(UserError, match=expected):
        check_compatible(partial(RoPE, site="feature"), SoftmaxAttention)
    expected = r"^position.site=logits: expected feature or query_key with attention=favor$"
    with pytest.raises(UserError, match=expected):
        check_compatible(partial(RoPE, site="logits"), favor)
    expected = r"^position.normaliser=encoded: .* encoded features; or use position.site=feature$"
    with pytest.raises(UserError, match=expected):
        check_compatible(partial(RoPE, normaliser="encoded"), favor)
    with pytest.raises(UserError, match=r"; or use attention=elu or favor or relu with position"):
        check_compatible(partial(RoPE, normaliser="encoded"), SoftmaxAttention)
    with pytest.raises(
        UserError, match=r"has a decay, which attention=softmax does not apply. Use"
    ):
        check_compatible(PermuteFormer, SoftmaxAttention)


def test_heads_must_divide_the_width():
    with pytest.raises(UserError, match=r"^num_heads=3: expected a divisor of dim=8, such as 2"):
        Transformer(
            9,
            dim=8,
            num_layers=1,
            num_heads=3,
            ff_dim=8,
            position=NoPosition,
            attention=SoftmaxAttention,
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"dim": "abc"},
        {"dim": -32},
        {"num_layers": 0},
        {"num_heads": 0},
        {"ff_dim": 1.5},
        {"dropout": 2},
    ],
)
def test_invalid_sizes_are_refused_by_name(wrong):
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "ff_dim": 8}
    ((name, value),) = wrong.items()
    with pytest.raises(UserError, match=f"^{name}={value}: expected a"):
        Transformer(9, **(sizes | wrong), position=NoPosition, attention=SoftmaxAttention)


def performer(causal: bool) -> Transformer:
    return Transformer(
        9,
        dim=8,
        num_layers=2,
        num_heads=2,
        ff_dim=8,
        position=NoPosition,
        attention=partial(LinearAttention, feature_map=partial(FAVOR, num_features=8)),
        causal=causal,
        init_std=0.5,
    ).eval()


@torch.no_grad()
def test_bidirectional_model_sees_what_follows_but_no_padding():
    model = performer(causal=False)
    ids = torch.randint(9, (1, 6))
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % 9
    assert (model(ids)[0, 0] - model(changed)[0, 0]).abs().max() > 1e-3
    mask = torch.tensor([[1, 1, 1, 1, 1, 0]]).bool()
    torch.testing.assert_close(
        model(ids, key_mask=mask)[:, :5], model(changed, key_mask=mask)[:, :5]
    )


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
    model = performer(causal=True)
    ids = torch.randint(9, (1, 6))
    _, state = model.forward_with_state(ids[:, :4])
    mask = torch.tensor([[False]])
    _, state = model.forward_with_state(ids[:, 4:5], key_mask=mask, state=state)
    found, _ = model.forward_with_state(ids[:, 5:], state=state)
    expected = model(ids, key_mask=torch.tensor([[1, 1, 1, 1, 0, 1]]).bool())
    torch.testing.assert_close(found[:, 0], expected[:, 5])


def test_the_cure_names_encodings_that_other_packages_define():

    class UserEncoding(PositionalEncoding):
        __module__ = "my_package.encodings"
        name = "user_encoding"
        sites = frozenset({Site.FEATURE})
        relative = "no"

    favor = partial(LinearAttention, feature_map=FAVOR)
    with pytest.raises(UserError, match=r"position in: .*user_encoding"):
        check_compatible(OnLogits, favor)


def test_errors_of_parts_name_the_part():
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "ff_dim": 8}
    parts = {"position": NoPosition, "attention": SoftmaxAttention}
    favor = partial(LinearAttention, feature_map=partial(FAVOR, num_features=7))
    wrong = {
        "position.coordinates": {"position": partial(SineSPE, coordinates=["beat", "beat"])},
        "attention.feature_map.num_features": {"attention": favor},
        "span.sigma": {"span": partial(GaussianSpan, training_length=9, sigma=0)},
    }
    for name, part in wrong.items():
        with pytest.raises(UserError, match=f"^{name}=.*: expected "):
            Transformer(9, **sizes, **(parts | part))


def test_position_columns_are_those_of_the_encoding_or_the_span():
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "ff_dim": 8}
    parts = {"position": NoPosition, "attention": SoftmaxAttention}
    time = partial(SineSPE, coordinates="time")
    span = partial(GaussianSpan, training_length=[9, 9, 9])
    assert Transformer(9, **sizes, **parts).num_position_columns == 1
    assert Transformer(9, **sizes, **(parts | {"position": time})).num_position_columns == 2
    assert Transformer(9, **sizes, **parts, span=span).num_position_columns == 3
