"""Layers that are computed again, or compiled, give the same outputs and gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from musicgen.random import NoiseKey
from tests.contracts.pairs import COPY, OPTIONS, PAIRS, SPAN, TOKEN, VOCAB, Pair, build, pair

EXACT = {"position.num_realizations": None}
RECOMPUTED = [p for p in PAIRS if p.attention in ("favor", "softmax") and p == pair(*p[:2])]
RECOMPUTED += [pair("rope", attention, TOKEN) for attention in ("favor", "elu", "relu")]
RECOMPUTED += [pair("sine_spe", attention, EXACT) for attention in ("favor", "elu")]
RECOMPUTED += [pair("sine_spe", "softmax", OPTIONS, SPAN), pair("rope", "favor", COPY)]


def trained(of: Pair, dropout: float = 0.1):
    model = build(of).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    return model


def outputs_and_gradients(model, length=21, mixed=False):
    tokens = torch.randint(VOCAB, (2, length), generator=torch.Generator().manual_seed(2))
    torch.manual_seed(3)  # of dropout
    with torch.autocast("cpu", enabled=mixed):
        logits = model(tokens[:, :-1], noise=NoiseKey((4,)))
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return logits, dict(zip(parameters, gradients, strict=True))


@pytest.mark.parametrize("of", RECOMPUTED, ids=str)
def test_layers_are_computed_again(of):
    model = trained(of)
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
            torch.testing.assert_close(same[name], gradient, rtol=1e-6, atol=1e-8)
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, dtype=torch.int64))
    assert len(calls) == 3  # once without gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "attention", "recompute", "backend", "lengths", "mixed"),
    [
        ("sine_spe", "favor", True, "aot_eager", [21], False),
        ("rope", "softmax", True, "aot_eager", [21], False),
        ("none", "elu", False, "aot_eager", [21, 34], True),
        ("none", "elu", False, "inductor", [21], False),
    ],
)
def test_layers_are_compiled(position, attention, recompute, backend, lengths, mixed, monkeypatch):
    torch.compiler.reset()
    model = trained(pair(position, attention, {"num_layers": 1}), dropout=0)
    with monkeypatch.context() as patch:  # the same form, whose products are in bf16 if mixed
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        eager = {length: outputs_and_gradients(model, length, mixed) for length in lengths}
    names = list(model.state_dict())
    model.recompute = recompute
    for layer in model.layers:
        layer.compile(backend=backend)
    for length, (logits, gradients) in eager.items():
        compiled, same = outputs_and_gradients(model, length, mixed)
        torch.testing.assert_close(compiled, logits, rtol=1e-4, atol=1e-5)
        for name, gradient in gradients.items():
            if gradient is not None:
                torch.testing.assert_close(same[name], gradient, rtol=1e-3, atol=1e-5)
    assert list(model.state_dict()) == names  # checkpoints are those of other runs
    torch.compiler.reset()
