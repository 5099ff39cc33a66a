"""The fast SPE against the paper's construction: outputs, and gradients to every parameter."""

from __future__ import annotations

import pytest
import torch

from benchmarks.naive_spe import NaiveSPE
from musicgen.position import ConvSPE, NoiseKey, SineSPE


@pytest.mark.parametrize("length", [1, 63, 1000])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["sine", "conv"])
def test_fast_equals_naive(kind, shared, gated, length):
    flags = {"num_realizations": 6, "gated": gated, "shared": shared}
    sizes = {"num_layers": 3, "num_heads": 2, "width": 5, "model_dim": 10}
    if kind == "sine":
        spe = SineSPE(**sizes, **flags, num_sines=3)
    else:
        spe = ConvSPE(**sizes, **flags, filter_length=150)
    positions, noise = torch.arange(length)[None, :, None], NoiseKey((4,))
    inputs = torch.randn(2, 3, 2, length, 2, 5).unbind(0)  # q, k of every layer
    weights = torch.randn(2, 3, 2, length, 2, 6)
    results = []
    for encoding in (NaiveSPE(spe), spe):
        q, k = (x.clone().requires_grad_() for x in inputs)
        codes, _ = encoding(positions, noise=noise)
        encoded = [code.encode(q[i], k[i]) for i, code in enumerate(codes)]
        out = torch.stack([torch.stack(side) for side in zip(*encoded, strict=True)])
        parameters = list(spe.parameters())
        grads = torch.autograd.grad((out * weights).sum(), (q, k, *parameters))
        results.append((out, *grads))
    names = ["out", "q", "k", *(name for name, _ in spe.named_parameters())]
    for name, naive, fast in zip(names, *results, strict=True):
        error = (fast - naive).abs().max() / naive.abs().max().clamp(min=1e-6)
        assert error < 1e-4, (name, error)


def test_two_forwards_before_their_backwards_do_not_mix():
    spe = SineSPE(num_layers=2, num_heads=1, width=4, model_dim=4, num_realizations=3)
    positions = torch.arange(7)[None, :, None]
    q = torch.randn(1, 7, 1, 4)

    def loss(seed):
        codes, _ = spe(positions, noise=NoiseKey((seed,)))
        return sum(code.encode(q, q)[0].square().sum() for code in codes)

    alone = [torch.autograd.grad(loss(seed), spe.frequency)[0] for seed in (1, 2)]
    (together,) = torch.autograd.grad(loss(1) + loss(2), spe.frequency)
    torch.testing.assert_close(together, alone[0] + alone[1])
    kept = loss(1)
    for _ in range(2):  # and a graph that is kept gives the same again
        (again,) = torch.autograd.grad(kept, spe.frequency, retain_graph=True)
        torch.testing.assert_close(again, alone[0])


@pytest.mark.parametrize("spe", [SineSPE, ConvSPE])
def test_products_run_in_bf16_under_autocast_and_stay_near(spe):
    torch.manual_seed(3)
    spe = spe(num_layers=2, num_heads=2, width=16, model_dim=32, num_realizations=16)
    positions, noise = torch.arange(300)[None, :, None], NoiseKey((4,))
    q, k = torch.randn(2, 1, 300, 2, 16)
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            codes, _ = spe(positions, noise=noise)
            encoded = [code.encode(q, k) for code in codes]
        assert encoded[0][0].dtype == (torch.bfloat16 if enabled else torch.float32)
        out = torch.stack([torch.stack(pair).float() for pair in encoded])
        grads = torch.autograd.grad(out.square().sum(), list(spe.parameters()))
        results.append((out.detach(), *grads))
    for exact, rounded in zip(*results, strict=True):
        assert (rounded - exact).norm() < 0.02 * exact.norm()
