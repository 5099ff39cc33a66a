"""Contracts of every positional encoding in conf/ under every attention in conf/."""

import copy
from itertools import product

import pytest
import torch
from hydra.utils import get_class, instantiate
from pytorch_lightning.plugins.precision import HalfPrecision, MixedPrecision, Precision
from torch import Tensor

from musicgen.attention import Attention, AttentionMask, GaussianSpan, LayerSpan, LinearAttention
from musicgen.errors import UserError
from musicgen.models import ModelState, Transformer, check_compatible
from musicgen.position import LayerCode, NoPosition, Site
from musicgen.random import NoiseKey
from tests.contracts.pairs import (
    ATTENTIONS,
    DISTINCT,
    NOISE,
    PAIRS,
    POSITIONS,
    TRAINING_LENGTH,
    WITH_STATES,
    assert_all_learn,
    changed,
    decode,
    load,
    new,
    padded,
    shared,
    site,
    tokens,
)

REFUSED = [(p, a) for p in POSITIONS for a in ATTENTIONS if not site(p, a)]
distinct = pytest.mark.parametrize("model", DISTINCT, indirect=True, ids=str)
without_decay = pytest.mark.parametrize(
    "model", [pair for pair in PAIRS if not pair.decays], indirect=True, ids=str
)


@pytest.fixture(params=PAIRS, ids=str)
def model(request) -> Transformer:
    """A model that many tests share: one that would change it takes `own_model`."""
    return shared(request.param)


@pytest.fixture
def own_model(model) -> Transformer:
    return copy.deepcopy(model)


def causalities(model: Transformer) -> tuple[bool, ...]:
    """Return the forms of its attention: causal, and bidirectional unless it decays."""
    return (True, False) if getattr(model.layers[0].attention, "decay", None) is None else (True,)


def random_decay(model: Transformer, dtype: torch.dtype = torch.float32) -> Tensor | None:
    numbers = 2 * torch.randn(2, TRAINING_LENGTH, 2, dtype=dtype)
    return numbers.requires_grad_() if model.layers[0].attention.decays_by_token else None


def of_layer(model: Transformer) -> tuple[Attention, LayerCode, LayerSpan | None]:
    """Return the first layer's attention, and its code and span of the training length."""
    positions = torch.arange(TRAINING_LENGTH)[None, :, None]
    layer, code = model.layers[0], model.position(positions, noise=NOISE)[0][0]
    return layer.attention, code, None if layer.span is None else layer.span(positions)


def encoded_before_features(model: Transformer) -> bool:
    attention = model.layers[0].attention
    encoded = not isinstance(model.position, NoPosition)
    return encoded and isinstance(attention, LinearAttention) and attention.site == Site.QUERY_KEY


@pytest.mark.parametrize(("position", "attention"), REFUSED)
def test_refusals_name_both_settings_and_the_cure(position, attention):
    encoding = get_class(load("position", position)._target_)
    message = rf"position={encoding.name} .* attention={attention} .* Use"
    with pytest.raises(UserError, match=message):
        check_compatible(encoding, instantiate(load("attention", attention)))


@pytest.mark.parametrize("attention", [name for name in ATTENTIONS if name != "softmax"])
def test_linear_attention_has_no_span(attention):
    with pytest.raises(UserError, match=rf"span=gaussian .* attention={attention} .* Use"):
        check_compatible(NoPosition, instantiate(load("attention", attention)), GaussianSpan)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_shapes_alone_can_be_built(pair):
    expected = {name: tensor.shape for name, tensor in shared(pair).state_dict().items()}
    with torch.device("meta"):
        shapes = new(pair).state_dict()
    assert all(tensor.is_meta for tensor in shapes.values())
    assert {name: tensor.shape for name, tensor in shapes.items()} == expected


@torch.no_grad()
def test_recurrent_equals_parallel_at_twice_the_training_length(model):
    ids = tokens(2 * TRAINING_LENGTH)
    parallel = model(ids, noise=NOISE)
    assert parallel.std() > 0.1
    recurrent = decode(model, ids[:, :5], None)
    torch.testing.assert_close(recurrent, parallel[:, :5], atol=1e-4, rtol=0)
    # And after a prefill in parts.
    first, state = model.forward_with_state(ids[:, :23], noise=NOISE)
    second, state = model.forward_with_state(ids[:, 23:77], noise=NOISE, state=state)
    out = torch.cat((first, second, decode(model, ids[:, 77:], state)), dim=1)
    torch.testing.assert_close(out, parallel, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("model", WITH_STATES, indirect=True, ids=str)
def test_rows_of_different_lengths_decode_together(model):
    long, short = tokens(50, batch=1), tokens(17, batch=1).flip(1)
    rest = tokens(3)
    states, alone = [], []
    for row, prompt in enumerate((long, short)):
        _, state = model.forward_with_state(prompt, noise=NOISE)
        states.append(state)
        alone.append(decode(model, rest[row : row + 1], state))
    together = decode(model, rest, ModelState.cat(states))
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=0)
    # Rows may repeat, as when several samples share a prefill, and a state may be used twice.
    repeated = ModelState.cat(states).select(torch.tensor([1, 1, 0]))
    again = decode(model, rest[[1, 1, 0]], repeated)
    torch.testing.assert_close(again, together[[1, 1, 0]], atol=1e-4, rtol=0)


@torch.no_grad()
def test_no_token_sees_a_later_one(model):
    ids = tokens(TRAINING_LENGTH)
    before, after = model(ids, noise=NOISE), model(changed(ids), noise=NOISE)
    torch.testing.assert_close(after[:, :25], before[:, :25], atol=1e-5, rtol=0)
    assert (after[:, 25:] - before[:, 25:]).abs().max() > 1e-2


@torch.no_grad()
def test_padding_behind_changes_nothing(model):
    ids = tokens(TRAINING_LENGTH)
    longer, mask = padded(ids)
    out = model(longer, key_mask=mask, noise=NOISE)[:, :TRAINING_LENGTH]
    torch.testing.assert_close(out, model(ids, noise=NOISE), atol=1e-4, rtol=0)


@without_decay
@torch.no_grad()
def test_without_causality_it_sees_what_follows_but_no_padding(own_model):
    own_model.causal = False
    ids = tokens(TRAINING_LENGTH)
    before, after = own_model(ids, noise=NOISE), own_model(changed(ids), noise=NOISE)
    assert (after[:, :25] - before[:, :25]).abs().max() > 1e-2
    mask = (torch.arange(TRAINING_LENGTH) < 25).expand(2, -1)
    before, after = (own_model(x, key_mask=mask, noise=NOISE)[:, :25] for x in (ids, changed(ids)))
    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)
    shorter = own_model(ids[:, :25], noise=NOISE)
    torch.testing.assert_close(before, shorter, atol=1e-4, rtol=0)


def test_gradients_reach_every_parameter(own_model):
    assert_all_learn(own_model, tokens(TRAINING_LENGTH))


@distinct
def test_outputs_stay_near_the_values_at_any_logits(model):
    for deviation, causal in product((1, 3, 10, 30, 100), causalities(model)):
        # Entries of variance s² give logits q·k/√K of standard deviation s².
        q, k = deviation**0.5 * torch.randn(2, 2, TRAINING_LENGTH, 2, 8)
        v = torch.randn(2, TRAINING_LENGTH, 2, 8)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        attention, code, span = of_layer(model)
        mask = AttentionMask(causal, span=span)
        token_decay = random_decay(model)
        inputs += [] if token_decay is None else [token_decay]
        out, _ = attention(*inputs[:3], code, mask, token_decay=token_decay)
        leaves = [p for part in (model.position, attention) for p in part.parameters()]
        grads = torch.autograd.grad(out.square().sum(), inputs + leaves, allow_unused=True)
        # Where weights may have either sign, `LRPE` says why outputs have no bound; under FAVOR+,
        # for which that is not the default, nor are they finite.
        signed = attention.site == Site.FEATURE and not code.keeps_sign
        if not (signed and attention.feature_map.log_features):
            assert all(grad is None or grad.isfinite().all() for grad in grads)
        if not signed:
            assert out.abs().max() <= 3 * v.abs().max()


@distinct
def test_queries_that_see_no_key_give_zero(model):
    attention, code, span = of_layer(model)
    key_mask = torch.ones(2, TRAINING_LENGTH, dtype=torch.bool)
    key_mask[0, :5], key_mask[1] = False, False
    for causal in causalities(model):
        q, k, v = (x.requires_grad_() for x in torch.randn(3, 2, TRAINING_LENGTH, 2, 8))
        mask = AttentionMask(causal, key_mask, span)
        out, _ = attention(q, k, v, code, mask, token_decay=random_decay(model))
        assert (out[1] == 0).all()
        assert (out[0, 5:].abs().amax(-1) > 0).all()
        if causal:
            assert (out[0, :5] == 0).all()
        grads = torch.autograd.grad(out.square().sum(), (q, k, v))
        assert all(grad.isfinite().all() for grad in grads)


@distinct
@torch.no_grad()
def test_double_precision_stays_near_single(own_model):
    ids = tokens(TRAINING_LENGTH)
    expected = own_model(ids, noise=NOISE)
    own_model.double()
    out, state = own_model.forward_with_state(ids[:, :-1], noise=NOISE)
    last = decode(own_model, ids[:, -1:], state)
    found = torch.cat((out, last), dim=1)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), expected, atol=1e-4, rtol=0)


@distinct
def test_bf16_stays_near_fp32(own_model):
    ids, losses = tokens(TRAINING_LENGTH), []
    mixed = MixedPrecision("bf16-mixed", torch.get_default_device().type)
    for precision in (Precision(), mixed, HalfPrecision("bf16-true")):
        precision.convert_module(own_model).zero_grad()
        with precision.forward_context():
            logits = own_model(ids, noise=NOISE)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten())
        loss.backward()
        assert all(p.grad.isfinite().all() for p in own_model.parameters())
        losses.append(loss.item())
    assert losses[1:] == pytest.approx(losses[:1] * 2, rel=0.02)


@torch.no_grad()
def test_noise_is_a_function_of_its_key(model):
    ids = tokens(TRAINING_LENGTH)
    once = model(ids, noise=NOISE)
    other = model(ids, noise=NoiseKey((8,)))
    torch.testing.assert_close(model(ids, noise=NOISE), once, atol=0, rtol=0)
    stochastic = model.position.relative == "expected"
    assert bool((other - once).abs().max() > 1e-3) == stochastic


@torch.no_grad()
def test_shifted_positions_change_nothing_where_the_encoding_is_relative(model):
    ids = tokens(TRAINING_LENGTH)
    index = torch.arange(TRAINING_LENGTH)[None, :, None]
    here, there = model(ids, positions=index), model(ids, positions=index + 11)
    match model.position.relative:
        case "exact" if encoded_before_features(model):
            # A feature map of encoded queries and keys keeps their products in expectation only.
            q, k = torch.randn(2, 1, TRAINING_LENGTH, 2, 8)
            codes = (model.position(n, noise=NOISE)[0][0] for n in (index, index + 11))
            here, there = (torch.einsum("bmhe,bnhe->bhmn", *code.encode(q, k)) for code in codes)
            torch.testing.assert_close(there, here, atol=1e-4, rtol=0)
        case "exact":
            torch.testing.assert_close(there, here, atol=1e-4, rtol=0)
        case "no":
            assert (there - here).abs().max() > 1e-2
        case "expected":  # the tests of kernels average over draws
            assert (there - here).abs().max() > 1e-3
