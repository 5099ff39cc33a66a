"""Layers that are computed again, or compiled, give the same outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from hydra.utils import instantiate
from torch.nn import functional as F

from musicgen.random import NoiseKey
from tests.contracts.test_pairs import ATTENTIONS, OPTIONS, POSITIONS, SMALL, SPAN, VARIANTS, VOCAB

LOGITS = ("alibi", "siren", "transformer_xl")  # act on logits, which linear attention has not
SOFTMAX = sorted({*POSITIONS} - {"permute"})
PAIRS = [(p, "favor", VARIANTS.get(p, ())) for p in POSITIONS if p not in LOGITS]
PAIRS += [(p, "softmax", VARIANTS.get(p, ())) for p in SOFTMAX]
PAIRS += [("rope", a, ("model.attention.decay=token",)) for a in ATTENTIONS if a != "softmax"]
PAIRS += [("sine_spe", "softmax", (*OPTIONS, *VARIANTS["sine_spe"], "span=gaussian", *SPAN))]


def build(config, position, attention, overrides, dropout=0.1):
    choice = (f"position={position}", f"attention={attention}", f"model.dropout={dropout}")
    cfg = config("train", *choice, *SMALL, *overrides)
    torch.manual_seed(1)
    return instantiate(cfg.model, vocab_size=VOCAB)


def outputs_and_gradients(model):
    tokens = torch.randint(VOCAB, (2, 21), generator=torch.Generator().manual_seed(2))
    torch.manual_seed(3)  # of dropout
    logits = model(tokens[:, :-1], noise=NoiseKey((4,)))
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return logits, dict(zip(parameters, gradients, strict=True))


@pytest.mark.parametrize(("position", "attention", "overrides"), PAIRS)
def test_layers_are_computed_again(config, position, attention, overrides):
    model = build(config, position, attention, overrides)
    logits, gradients = outputs_and_gradients(model)
    calls = []
    model.layers[0].qkv.register_forward_hook(lambda *_: calls.append(1))
    model.recompute = True
    again, same = outputs_and_gradients(model)
    assert len(calls) == 2
    assert torch.equal(again, logits)
    for name, gradient in gradients.items():
        if gradient is None:
            assert same[name] is None
        else:
            torch.testing.assert_close(same[name], gradient, rtol=1e-6, atol=1e-9)
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, dtype=torch.int64))
    assert len(calls) == 3  # once without gradients


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("position", "attention"), [("sine_spe", "favor"), ("rope", "softmax"), ("none", "elu")]
)
def test_layers_are_compiled(config, position, attention, recompute):
    overrides = VARIANTS.get(position, ())
    model = build(config, position, attention, overrides, dropout=0)
    logits, gradients = outputs_and_gradients(model)
    names = list(model.state_dict())
    model.recompute = recompute
    for layer in model.layers:
        layer.compile()
    compiled, same = outputs_and_gradients(model)
    torch.testing.assert_close(compiled, logits, rtol=1e-4, atol=1e-5)
    for name, gradient in gradients.items():
        if gradient is not None:
            torch.testing.assert_close(same[name], gradient, rtol=1e-3, atol=1e-5)
    assert list(model.state_dict()) == names  # checkpoints are those of other runs
    torch.compiler.reset()
