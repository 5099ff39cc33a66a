from functools import partial
from itertools import pairwise

import pytest
import torch
from hydra.utils import instantiate
from torch import nn

from musicgen.attention import ELU, FAVOR, GaussianSpan, LinearAttention, ReLU, SoftmaxAttention
from musicgen.errors import UserError
from musicgen.models import SequenceHead, check_compatible, parameter_count
from musicgen.position import SIREN, ConvSPE, PermuteFormer, RoPE, SineSPE, Site, TransformerXL
from tests.models.builders import random_tokens, small

# Published for a vocabulary of 333 (Liutkus et al. 2021, music models).
PUBLISHED = {"ape": 75_998_541, "sine_spe": 76_018_509, "conv_spe": 76_141_901}


@pytest.mark.parametrize(("method", "count"), PUBLISHED.items())
def test_parameters_of_the_published_models(config, method, count):
    cfg = config("train", f"experiment=spe2021/pop_piano_{method}")
    with torch.device("meta"):
        assert parameter_count(instantiate(cfg.model, vocab_size=333)) == count


favor, elu, relu = (partial(LinearAttention, feature_map=m) for m in (FAVOR, ELU, ReLU))


@pytest.mark.parametrize("position", [RoPE, PermuteFormer])
def test_encodings_act_at_their_usual_site_or_the_chosen_one(position):
    assert check_compatible(TransformerXL, SoftmaxAttention) == Site.LOGIT
    assert check_compatible(position, favor) == Site.QUERY_KEY
    assert check_compatible(position, elu) == check_compatible(position, relu) == Site.FEATURE
    # A partial of a partial, as a configuration gives it.
    narrow = partial(LinearAttention, feature_map=partial(FAVOR, num_features=8))
    for site in (Site.QUERY_KEY, Site.FEATURE):
        chosen = partial(position, site=str(site))
        assert {check_compatible(chosen, a) for a in (narrow, elu)} == {site}
    assert check_compatible(partial(position, site=None), favor) == Site.QUERY_KEY


def test_a_decay_that_is_not_applied_does_not_matter():
    without = partial(PermuteFormer, decay=False)
    assert check_compatible(without, SoftmaxAttention) == Site.QUERY_KEY
    assert check_compatible(PermuteFormer, SoftmaxAttention, causal=False) == Site.QUERY_KEY
    with pytest.raises(UserError, match=r"position=permute has a decay, .* attention=elu"):
        check_compatible(PermuteFormer, SoftmaxAttention)


@torch.no_grad()
@pytest.mark.parametrize(("norm_first", "activation"), [(False, "relu"), (True, "gelu")])
def test_layers_equal_torchs(norm_first, activation):
    model = small(norm_first=norm_first, activation=activation).train()
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
    x = model.embedding(torch.tensor([[1, 5, 3, 8, 8]])) * 12**0.5
    for layer in model.layers:
        theirs = nn.TransformerEncoderLayer(
            12, 3, 16, 0.0, activation, batch_first=True, norm_first=norm_first
        )
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
    model = small(attention=favor, init_std=0.5)
    ids = random_tokens(1, 6)
    _, state = model.forward_with_state(ids[:, :4])
    mask = torch.tensor([[False]])
    _, state = model.forward_with_state(ids[:, 4:5], key_mask=mask, state=state)
    found, _ = model.forward_with_state(ids[:, 5:], state=state)
    expected = model(ids, key_mask=torch.tensor([[1, 1, 1, 1, 0, 1]]).bool())
    torch.testing.assert_close(found[:, 0], expected[:, 5])


@torch.no_grad()
def test_a_step_writes_into_the_state_it_is_given_only_if_it_may():
    model = small(init_std=0.5)
    ids = random_tokens(2, 10)
    _, state = model.forward_with_state(ids[:, :9])
    buffers = [x for layer in state.layers for x in layer[0].buffers]
    before = [x.clone() for x in buffers]
    expected, _ = model.forward_with_state(ids[:, 9:], state=state)
    assert all(map(torch.equal, buffers, before))
    found, after = model.forward_with_state(ids[:, 9:], state=state, overwrite=True)
    written = [x for layer in after.layers for x in layer[0].buffers]
    assert [x.data_ptr() for x in written] == [x.data_ptr() for x in buffers]
    assert not all(map(torch.equal, buffers, before))
    assert torch.equal(found, expected)


@torch.no_grad()
def test_the_embedding_of_the_key_is_added_to_that_of_the_token():
    model, plain = small(musical_key=True), small()
    assert model.coordinate_names == ("index", "time", "key")
    plain.load_state_dict(model.state_dict(), strict=False)
    positions = torch.tensor([[[0, 0, 0], [1, 0, 24]]])
    ids = torch.tensor([[3, 4]])
    rows = model.inputs["key"].weight
    plain.embedding.weight[3] += rows[0]
    plain.embedding.weight[4] += rows[24]
    torch.testing.assert_close(model(ids, positions=positions), plain(ids))


ODD = partial(LinearAttention, feature_map=partial(FAVOR, num_features=7))


class ClassTokenHead(SequenceHead):
    def __init__(self, dim: int, num_outputs: int) -> None:
        super().__init__()
        self.pool = "class_token"


WRONG = {
    r"attention\.decay=head: expected none with causal=false": {
        "attention": partial(favor, decay="head"),
        "causal": False,
    },
    r"position.site=feature: expected query_key with attention=softmax, or attention=elu or favor "
    r"or relu$": {"position": partial(RoPE, site="feature")},
    r"position.normaliser=encoded: .* position.site=feature with attention=elu or favor": {
        "position": partial(RoPE, normaliser="encoded")
    },
    "norm=batch: expected layer with causal=true": {"norm": "batch"},
    **{
        f"position.{name}=0: expected ": {"position": partial(encoding, **{name: 0})}
        for encoding, name in (
            (SineSPE, "num_realizations"),
            (ConvSPE, "filter_length"),
            (SIREN, "training_length"),
            (partial(SIREN, training_length=9), "omega"),
            (partial(SIREN, training_length=9), "omega_first"),
        )
    },
    r"head\.pool=class_token: expected last or mean": {"head": ClassTokenHead, "num_outputs": 3},
    "position.coordinates=.*: expected ": {
        "position": partial(SineSPE, coordinates=["beat", "beat"])
    },
    "attention.backend=tritn: expected one of auto, triton": {
        "attention": partial(elu, backend="tritn")
    },
    "attention.feature_map.num_features=.*: expected ": {"attention": ODD},
    "span.sigma=.*: expected ": {"span": partial(GaussianSpan, training_length=9, sigma=0)},
    "span.training_length=0: expected ": {"span": partial(GaussianSpan, training_length=[9, 0])},
    "num_heads=3: expected a divisor of attention_dim=7": {"attention_dim": 7},
    "short_conv=": {"short_conv": 1},
    "qk_norm=": {"qk_norm": "yes"},
    "norm=": {"norm": "group"},
    "lags=0": {"lags": [0]},
    "lags": {"lags": [4], "causal": False},
}


@pytest.mark.parametrize(("message", "settings"), WRONG.items())
def test_settings_that_cannot_be_name_themselves_and_the_cure(message, settings):
    with pytest.raises(UserError, match=f"^{message}"):
        small(**settings)


def test_layer_outputs_are_those_of_the_residual_stream():
    model, ids = small(num_layers=3), random_tokens(2, 7)
    outputs = model.hidden_states(ids)[1:]
    assert [each.shape for each in outputs] == 3 * [(2, 7, 12)]
    last = outputs[-1] if model.norm is None else model.norm(outputs[-1], None)
    torch.testing.assert_close(last, model.hidden(ids)[0])
    assert not any(torch.allclose(a, b) for a, b in pairwise(outputs))
    assert not any(layer._forward_hooks for layer in model.layers)
