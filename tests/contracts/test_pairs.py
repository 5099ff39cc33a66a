"""Contracts of every positional encoding in conf/ under every attention in conf/."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor

from musicgen.attention import AttentionMask, LinearAttention
from musicgen.attention.pair_weights import pair_weights
from musicgen.errors import UserError
from musicgen.models import ModelState, Transformer, check_compatible
from musicgen.models.short_conv import ShortConvolution
from musicgen.position import NoPosition, Site
from musicgen.random import NoiseKey

CONF = Path(__file__).parents[2] / "conf"
POSITIONS = sorted(path.stem for path in (CONF / "position").glob("*.yaml"))
# favor_decay is favor with learned decay, which is tested with favor.
ATTENTIONS = sorted({path.stem for path in (CONF / "attention").glob("*.yaml")} - {"favor_decay"})
SPANS = sorted({path.stem for path in (CONF / "span").glob("*.yaml")} - {"none"})
TRAINING_LENGTH, VOCAB = 40, 30
NOISE = NoiseKey((7, 1))
# Small, but with several chunks, blocks and filters of positions within reach.
SMALL = (
    "model.dim=16",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.ff_dim=32",
    "model.init_std=0.3",
    "model.short_conv=null",
)
VARIANTS = {
    "siren": ["model.position.training_length=40"],
    "conv_spe": ["model.position.filter_length=9", "model.position.num_realizations=12"],
    "sine_spe": ["model.position.num_realizations=12"],
}
# One more of each encoding that has several forms: between them, every word they take.
MORE = {
    "lrpe_unitary": [
        "model.position.angles=linear",
        "model.position.basis=fourier",
        "model.position.shared=false",
    ],
    "lrpe_orthogonal": [
        "model.position.angles=harmonic",
        "model.position.mixed=true",
        "model.position.learned_basis=true",
        "model.position.shared=false",
    ],
    "lrpe_permutation": ["model.position.basis=odd_even", "model.position.shared=false"],
}
ROTARY = ("rope", "lrpe_unitary", "lrpe_orthogonal", "lrpe_permutation")
# The other site than the default, with RoFormer's normaliser and LRPE's. Features that mix can meet
# where the unencoded ones, which make the normaliser, do not: under FAVOR+ fp32's rounding grows
# with their ratio.
OTHER_SITE = [
    *((p, a, ("model.position.site=query_key",)) for p in ROTARY for a in ("elu", "relu")),
    *((p, "favor", ("model.init_std=0.2", "model.position.site=feature")) for p in ROTARY),
    ("permute", "favor", ("model.position.site=feature",)),
    ("permute", "elu", ("model.position.site=query_key",)),
    *((p, "elu", ("model.position.normaliser=encoded",)) for p in ROTARY[1:2]),
]
# Rotary encodings of elu and relu features, whose weights have either sign where the encoding does
# not keep signs: LRPE's docstring says why outputs have no bound then.
SIGNED_WEIGHTS = {(p, a) for p in ROTARY for a in ("elu", "relu")}


def variants(position: str) -> list[tuple[str, ...]]:
    """Overrides of an encoding: SPE is gated or not, shared or not."""
    small = tuple(VARIANTS.get(position, ()))
    if not position.endswith("spe"):
        return [small, *(tuple(more) for more in [MORE.get(position)] if more)]
    flags = [(g, s) for g in ("true", "false") for s in ("true", "false")]
    found = [(*small, f"model.position.gated={g}", f"model.position.shared={s}") for g, s in flags]
    if position == "sine_spe":
        found += [("model.position.num_realizations=null", *last[-2:]) for last in found[::3]]
    return found


# With learned decay too, on one linear attention: it is a matter of the causal product alone.
DECAYED = [(p, "favor", (*variants(p)[0], "model.attention.decay=head")) for p in POSITIONS]
# Under each span too: a window of 13 of the 40 tokens seen in training.
SPAN = ("model.span.training_length=40", "model.span.sigma=0.15")
SPANNED = [
    (p, a, (*variants(p)[0], f"span={s}", *SPAN, *mode))
    for s in SPANS
    for p in POSITIONS
    for a in ("softmax", "favor")
    for mode in ([(), ("model.span.mode=log",)] if a == "softmax" else [()])
]
# Options of the model and decay by token and head: alone, with every encoding, and all together.
TOKEN_DECAY = "model.attention.decay=token"
OPTIONS = (
    "model.short_conv=4",
    "model.output_gate=true",
    "model.qk_norm=true",
    "model.tie_embeddings=true",
)
OPTIONAL = [("sinusoidal", a, (option,)) for a in ("favor", "softmax") for option in OPTIONS]
OPTIONAL += [("none", "favor", ("model.short_conv=2",))]
OPTIONAL += [(p, "favor", (*variants(p)[0], TOKEN_DECAY)) for p in POSITIONS]
OPTIONAL += [(p, "elu", (*variants(p)[0], TOKEN_DECAY)) for p in ("permute", "sine_spe", "rope")]
OPTIONAL += [
    (p, a, (*variants(p)[0], *OPTIONS, *extra))
    for p in ("none", "rope", "sine_spe")
    for a, *extra in (
        ("softmax",),
        ("favor", TOKEN_DECAY),
        ("elu", TOKEN_DECAY),
        ("softmax", "span=gaussian", *SPAN),
    )
]
PAIRS = [(p, a, v) for p in POSITIONS for a in ATTENTIONS for v in variants(p)] + DECAYED + SPANNED
PAIRS += OTHER_SITE + OPTIONAL
# With cycles of the token index: absolute, as this encoding is.
PAIRS += [("sinusoidal", a, ("model.cycles=[4,7]",)) for a in ("softmax", "favor")]


@pytest.fixture(params=PAIRS, ids=lambda pair: "-".join((*pair[:2], *pair[2][-3:])))
def model(request, config) -> Transformer:
    position, attention, overrides = request.param
    cfg = config("train", f"position={position}", f"attention={attention}", *SMALL, *overrides)
    try:
        parts = (cfg.model.position, cfg.model.attention, cfg.model.span)
        check_compatible(*(instantiate(part) for part in parts))
    except UserError as refusal:
        others = {f"position={position}", *overrides}
        named = f"attention={attention}" in str(refusal) and "Use " in str(refusal)
        if not (named and any(setting in str(refusal) for setting in others)):
            pytest.fail(f"names too little: {refusal}")
        pytest.skip(f"refused: {refusal}")
    torch.manual_seed(1)
    model = instantiate(cfg.model, vocab_size=VOCAB).eval()
    for module in model.modules():
        if isinstance(module, ShortConvolution):
            torch.nn.init.normal_(module.weight, std=0.3)  # not 0, as at first
    return model


def tokens(length: int, batch: int = 2) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(3))


def decays(model: Transformer) -> bool:
    return getattr(model.layers[0].attention, "decay", None) is not None


def random_decay(model: Transformer, dtype: torch.dtype = torch.float32) -> Tensor | None:
    numbers = 2 * torch.randn(2, TRAINING_LENGTH, 2, dtype=dtype)
    return numbers.requires_grad_() if model.layers[0].attention.decays_by_token else None


def encoded_before_features(model: Transformer) -> bool:
    attention = model.layers[0].attention
    encoded = not isinstance(model.position, NoPosition)
    return encoded and isinstance(attention, LinearAttention) and attention.site == Site.QUERY_KEY


def decode(model: Transformer, ids: Tensor, state: ModelState | None) -> Tensor:
    """Logits one token at a time."""
    out = []
    for n in range(ids.shape[1]):
        logits, state = model.forward_with_state(ids[:, n : n + 1], noise=NOISE, state=state)
        out.append(logits)
    return torch.cat(out, dim=1)


def test_shapes_alone_can_be_built(model, request, config):
    position, attention, overrides = request.node.callspec.params["model"]
    cfg = config("train", f"position={position}", f"attention={attention}", *SMALL, *overrides)
    with torch.device("meta"):
        shapes = instantiate(cfg.model, vocab_size=VOCAB).state_dict()
    assert all(tensor.is_meta for tensor in shapes.values())
    assert {name: tensor.shape for name, tensor in shapes.items()} == {
        name: tensor.shape for name, tensor in model.state_dict().items()
    }


@torch.no_grad()
def test_recurrent_equals_parallel_at_twice_the_training_length(model):
    ids = tokens(2 * TRAINING_LENGTH)
    parallel = model(ids, noise=NOISE)
    first, state = model.forward_with_state(ids[:, :1], noise=NOISE)
    recurrent = torch.cat((first, decode(model, ids[:, 1:], state)), dim=1)
    assert parallel.std() > 0.1
    torch.testing.assert_close(recurrent, parallel, atol=1e-4, rtol=0)


@torch.no_grad()
def test_prefill_in_parts_then_decode_equals_parallel(model):
    ids = tokens(2 * TRAINING_LENGTH)
    parallel = model(ids, noise=NOISE)
    first, state = model.forward_with_state(ids[:, :23], noise=NOISE)
    second, state = model.forward_with_state(ids[:, 23:60], noise=NOISE, state=state)
    out = torch.cat((first, second, decode(model, ids[:, 60:], state)), dim=1)
    torch.testing.assert_close(out, parallel, atol=1e-4, rtol=0)


@torch.no_grad()
def test_rows_of_different_lengths_decode_together(model):
    long, short = tokens(50, batch=1), tokens(17, batch=1).flip(1)
    rest = tokens(9)
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
    changed = ids.clone()
    changed[:, 25:] = (changed[:, 25:] + 1) % VOCAB
    before, after = model(ids, noise=NOISE), model(changed, noise=NOISE)
    torch.testing.assert_close(after[:, :25], before[:, :25], atol=1e-5, rtol=0)
    assert (after[:, 25:] - before[:, 25:]).abs().max() > 1e-2


@torch.no_grad()
def test_padding_behind_changes_nothing(model):
    ids = tokens(TRAINING_LENGTH)
    padded = torch.cat((ids, torch.zeros(2, 7, dtype=torch.long)), dim=1)
    mask = torch.arange(padded.shape[1]).expand(2, -1) < TRAINING_LENGTH
    out = model(padded, key_mask=mask, noise=NOISE)[:, :TRAINING_LENGTH]
    torch.testing.assert_close(out, model(ids, noise=NOISE), atol=1e-4, rtol=0)


@torch.no_grad()
def test_without_causality_it_sees_what_follows_but_no_padding(model):
    if decays(model):
        pytest.skip("decay is causal")
    model.causal = False
    ids = tokens(TRAINING_LENGTH)
    changed = ids.clone()
    changed[:, 25:] = (changed[:, 25:] + 1) % VOCAB
    before, after = model(ids, noise=NOISE), model(changed, noise=NOISE)
    assert (after[:, :25] - before[:, :25]).abs().max() > 1e-2
    mask = (torch.arange(TRAINING_LENGTH) < 25).expand(2, -1)
    before, after = (model(x, key_mask=mask, noise=NOISE)[:, :25] for x in (ids, changed))
    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)
    shorter = model(ids[:, :25], noise=NOISE)
    torch.testing.assert_close(before, shorter, atol=1e-4, rtol=0)


def test_gradients_reach_every_parameter(model):
    model.train()
    model(tokens(TRAINING_LENGTH), noise=NOISE).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_outputs_stay_near_the_values_at_any_logits(model, request):
    attention, span = model.layers[0].attention, model.layers[0].span
    positions = torch.arange(TRAINING_LENGTH)[None, :, None]
    position, name, overrides = request.node.callspec.params["model"]
    for deviation, causal in product((1, 3, 10, 30, 100), (True, False)):
        if not causal and decays(model):
            continue
        # Entries of variance s² give logits q·k/√K of standard deviation s².
        q, k = deviation**0.5 * torch.randn(2, 2, TRAINING_LENGTH, 2, 8)
        v = torch.randn(2, TRAINING_LENGTH, 2, 8)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        code = model.position(positions, noise=NOISE)[0][0]
        mask = AttentionMask(causal, span=None if span is None else span(positions))
        token_decay = random_decay(model)
        inputs += [] if token_decay is None else [token_decay]
        out, _ = attention(*inputs[:3], code, mask, token_decay=token_decay)
        leaves = [p for part in (model.position, attention) for p in part.parameters()]
        grads = torch.autograd.grad(out.square().sum(), inputs + leaves, allow_unused=True)
        signed = attention.site == Site.FEATURE and not code.keeps_sign
        if signed and name == "favor":  # not the default, and no more finite than bounded
            assert "model.position.site=feature" in overrides
            continue
        assert all(grad is None or grad.isfinite().all() for grad in grads)
        if signed:
            assert (position, name) in SIGNED_WEIGHTS
        else:
            assert out.abs().max() <= 3 * v.abs().max()


def test_queries_that_see_no_key_give_zero(model):
    attention, span = model.layers[0].attention, model.layers[0].span
    positions = torch.arange(TRAINING_LENGTH)[None, :, None]
    code = model.position(positions, noise=NOISE)[0][0]
    key_mask = torch.ones(2, TRAINING_LENGTH, dtype=torch.bool)
    key_mask[0, :5], key_mask[1] = False, False
    for causal in (True, False):
        if not causal and decays(model):
            continue
        q, k, v = (x.requires_grad_() for x in torch.randn(3, 2, TRAINING_LENGTH, 2, 8))
        mask = AttentionMask(causal, key_mask, None if span is None else span(positions))
        out, _ = attention(q, k, v, code, mask, token_decay=random_decay(model))
        assert (out[1] == 0).all()
        assert (out[0, 5:].abs().amax(-1) > 0).all()
        if causal:
            assert (out[0, :5] == 0).all()
        grads = torch.autograd.grad(out.square().sum(), (q, k, v))
        assert all(grad.isfinite().all() for grad in grads)


@torch.no_grad()
def test_pair_weights_are_what_the_attention_computes(model):
    model.double()
    attention, span = model.layers[0].attention, model.layers[0].span
    positions = torch.arange(TRAINING_LENGTH)[None, :, None]
    code = model.position(positions, noise=NOISE)[0][0]
    q, k, v = torch.randn(3, 2, TRAINING_LENGTH, 2, 8, dtype=torch.float64)
    options = {"token_decay": random_decay(model, torch.float64)}
    key_mask = torch.ones(2, TRAINING_LENGTH, dtype=torch.bool)
    key_mask[1, 30:] = False
    for causal in (True, False):
        if not causal and decays(model):
            continue
        mask = AttentionMask(causal, key_mask, None if span is None else span(positions))
        expected, _ = attention(q, k, v, code, mask, **options)
        normalised, _ = pair_weights(attention, q, k, code, mask, **options)
        out = torch.einsum("bhmn,bnhv->bmhv", normalised, v)
        torch.testing.assert_close(out, expected, atol=1e-9, rtol=1e-9)
        weights, log_scale = pair_weights(attention, q, k, code, mask, "features", **options)
        assert log_scale.shape == (2, 2)
        # They differ by a factor of each row, which is the sum of the row unless the normaliser is
        # of features before encoding.
        factors = (weights * normalised).sum(-1) / normalised.square().sum(-1)
        torch.testing.assert_close(normalised * factors[..., None], weights, atol=1e-9, rtol=1e-5)
        assert (factors > 0).all()
        if attention.name == "softmax" or attention.site != Site.FEATURE:
            # relu's normaliser has an ε of 1e-6, which is not small beside its features' 1e-3.
            torch.testing.assert_close(weights.sum(-1), factors, atol=2e-6, rtol=1e-5)


@torch.no_grad()
def test_double_precision_stays_near_single(model):
    ids = tokens(TRAINING_LENGTH)
    expected = model(ids, noise=NOISE)
    model.double()
    out, state = model.forward_with_state(ids[:, :-1], noise=NOISE)
    last = decode(model, ids[:, -1:], state)
    found = torch.cat((out, last), dim=1)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), expected, atol=1e-4, rtol=0)


def test_bf16_autocast_stays_near_fp32(model):
    ids = tokens(TRAINING_LENGTH)
    losses = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits = model(ids, noise=NOISE)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten())
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        losses.append(loss.item())
    assert abs(losses[1] / losses[0] - 1) < 0.02


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
            pytest.skip("a feature map of encoded queries keeps their products in expectation only")
        case "exact":
            torch.testing.assert_close(there, here, atol=1e-4, rtol=0)
        case "no":
            assert (there - here).abs().max() > 1e-2
        case (
            "expected"
        ):  # of single draws nothing can be said: the tests of kernels average over draws
            assert (there - here).abs().max() > 1e-3
