"""The fast forms of SPE against the naive one: outputs, and gradients of all parameters."""

import gc
import weakref
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from musicgen.position import SPE, ConvSPE, LayerCode, SineSPE
from musicgen.position.conv_spe import BLOCK_SIDE
from musicgen.position.sine_spe import ExactSineCode
from musicgen.random import NoiseKey
from tests.position.naive_spe import NaiveSPE

NOISE = NoiseKey((4,))
WIDTH, HEADS, LAYERS = 3, 2, 2


def build(kind: str, seed: int = 1, **settings) -> SPE:
    torch.manual_seed(seed)
    sizes = {"num_layers": LAYERS, "num_heads": HEADS, "width": WIDTH, "model_dim": 6}
    if kind == "conv":
        return ConvSPE(**sizes, **{"num_realizations": 4, "filter_length": 5} | settings)
    settings.pop("filter_length", None)
    realizations = None if kind == "exact" else 4
    return SineSPE(**sizes, num_realizations=realizations, num_sines=3, **settings)


def grid(*size: int) -> Tensor:
    """Return all positions of a box, row by row: [1, L, P]."""
    return torch.cartesian_prod(*(torch.arange(n) for n in size)).view(1, -1, len(size))


def with_class_token(positions: Tensor) -> Tensor:
    """Insert a token without a position before the others and one between them."""
    token = torch.full_like(positions[:, :1], -1)
    return torch.cat((token, positions[:, :4], token, positions[:, 4:]), dim=1)


def musical() -> Tensor:
    """Return two rows of (index, time) with repeated and skipped times: [2, 90, 2]."""
    index = torch.arange(90)
    times = torch.stack((index // 3 * 2, index // 4 * 7 + 100))
    return torch.stack((index.expand(2, -1), times), dim=-1)


KINDS = ["sine", "conv"]
LONG = {"filter_length": 150}
CASES = {
    "one token": (LONG, grid(1)),
    "63 tokens": (LONG, grid(63)),
    "1000 tokens": (LONG, grid(1000)),
    "token before the origin": ({}, grid(150) - 1),
    "image": ({"coordinates": 2}, grid(18, 7)),
    "space": ({"coordinates": 3}, grid(3, 9, 4)),
    "time": ({"coordinates": "time"}, musical()),
    "index and time": ({"coordinates": ("index", "time")}, musical()),
    "image and class": ({"coordinates": 2, "class_token": True}, with_class_token(grid(18, 7))),
    "index and class": ({"class_token": True}, with_class_token(grid(150))),
    "time and class": ({"coordinates": "time", "class_token": True}, with_class_token(musical())),
}


@pytest.fixture(params=[False, True], ids=["blocks", "few large operations"])
def large(request, monkeypatch) -> bool:
    """Whether the form is that of compiled graphs and of accelerators."""
    if request.param:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    return request.param


SEVERAL = ("image", "space", "index and time", "image and class")  # coordinates


def assert_same(spe: SPE, shape: torch.Size, *forms) -> None:
    """Compare two functions of q and k, of each layer: outputs, and gradients of all parameters."""
    q, k = torch.randn(2, LAYERS, 2, shape[1], HEADS, WIDTH, requires_grad=True)
    results = []
    for form in forms:
        out = form(q, k)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
        grads = torch.autograd.grad((out * weights).sum(), (q, k, *spe.parameters()))
        results.append((out, *grads))
    names = ["out", "q", "k", *(name for name, _ in spe.named_parameters())]
    for name, naive, fast in zip(names, *results, strict=True):
        error = (fast - naive).abs().max() / naive.abs().max().clamp(min=1e-6)
        assert error < 1e-4, (name, error)
        assert naive.abs().max() > 0 or shape[1] == 1, name  # one token has no lag but 0


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("kind", "case"), sorted({*product(KINDS, CASES)} - {("conv", case) for case in SEVERAL})
)
def test_outputs_and_gradients_equal_the_naive_form(kind, case, shared, gated, large):
    settings, positions = CASES[case]
    spe = build(kind, gated=gated, shared=shared, **settings)

    def encoded(encoding, q, k):
        codes, _ = encoding(positions, noise=NOISE)
        return torch.stack([torch.stack(c.encode(*x)) for c, *x in zip(codes, q, k, strict=True)])

    assert_same(spe, positions.shape, partial(encoded, NaiveSPE(spe)), partial(encoded, spe))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_projecting_the_exact_limit_equals_projecting_the_encoding(case, shared, gated, large):
    settings, positions = CASES[case]
    spe = build("exact", gated=gated, shared=shared, **settings)
    omega = torch.randn(spe.encoded_dim, 7)

    def projected(project, q, k):
        codes, _ = spe(positions, noise=NOISE)
        sides = [project(c, *x, omega) for c, *x in zip(codes, q, k, strict=True)]
        return torch.stack([torch.cat(side, dim=-1) for side in sides])

    forms = (partial(projected, cls.project) for cls in (LayerCode, ExactSineCode))
    assert_same(spe, positions.shape, *forms)


@pytest.mark.parametrize("case", ["63 tokens", "1000 tokens", "index and class"])
@pytest.mark.parametrize("gated", [False, True])
def test_codes_of_many_sequences_equal_the_naive_form(case, gated, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    settings, positions = CASES[case]
    spe = build("sine", gated=gated, **settings)
    noise = spe.draw(NOISE, positions, positions.device, batch_size=8)
    assert noise[-1]  # codes for all sequences

    def encoded(encoding, noise, q, k):
        codes, _ = encoding(positions, noise=noise)
        return torch.stack([torch.stack(c.encode(*x)) for c, *x in zip(codes, q, k, strict=True)])

    forms = (partial(encoded, NaiveSPE(spe), NOISE), partial(encoded, spe, noise))
    assert_same(spe, positions.shape, *forms)


@torch.no_grad()
def test_sequences_of_different_lengths_go_on_with_the_noise_of_many(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    spe, q = build("sine"), torch.randn(2, 1, HEADS, WIDTH)
    first = grid(9)
    noise = spe.draw(NOISE, first, first.device, batch_size=8)
    assert noise[-1]  # codes for all sequences
    _, state = spe(first, noise=noise)
    codes, _ = spe(torch.tensor([[[9]], [[4]]]), noise=NOISE, state=state)
    expected, _ = spe(torch.tensor([[[9]], [[4]]]), noise=NOISE)
    for code, alone in zip(codes, expected, strict=True):
        for found, right in zip(code.encode(q, q), alone.encode(q, q), strict=True):
            torch.testing.assert_close(found, right)


def test_two_forwards_before_their_backwards_stay_apart():
    spe = SineSPE(num_layers=2, num_heads=1, width=4, model_dim=4, num_realizations=3)
    positions = torch.arange(7)[None, :, None]
    q = torch.randn(1, 7, 1, 4)

    def loss(seed):
        codes, _ = spe(positions, noise=NoiseKey((seed,)))
        return sum(code.encode(q, q)[0].square().sum() for code in codes)

    alone = [torch.autograd.grad(loss(seed), spe.frequency)[0] for seed in (1, 2)]
    (together,) = torch.autograd.grad(loss(1) + loss(2), spe.frequency)
    torch.testing.assert_close(together, alone[0] + alone[1])


@pytest.mark.parametrize("by_projection", [False, True])
@pytest.mark.parametrize("kind", ["sine", "exact", "conv"])
def test_a_backward_that_skips_the_parameters_leaves_nothing_for_the_next(kind, by_projection):
    spe = build(kind)
    q = torch.randn(1, 7, HEADS, WIDTH, requires_grad=True)
    omega = torch.randn(spe.encoded_dim, 5)

    def loss() -> Tensor:
        codes, _ = spe(torch.arange(7)[None, :, None], noise=NOISE)
        if by_projection:
            encoded = [code.project(q, q, omega)[0] for code in codes]
        else:
            encoded = [code.encode(q, q)[0] for code in codes]
        return torch.stack(encoded).square().sum()

    parameters = list(spe.parameters())
    expected = torch.autograd.grad(loss(), parameters, allow_unused=True)
    kept = loss()
    torch.autograd.grad(kept, q, retain_graph=True)
    found = torch.autograd.grad(kept, parameters, allow_unused=True)
    for (name, _), grad, again in zip(spe.named_parameters(), expected, found, strict=True):
        torch.testing.assert_close(again, grad, msg=name)


@torch.no_grad()
def test_parts_of_many_blocks_have_the_codes_of_the_whole(large):
    spe, positions = build("conv", filter_length=9, gated=False), grid(400)
    u = torch.randn(1, 400, HEADS, WIDTH)
    whole = torch.stack(spe(positions, noise=NOISE)[0][0].encode(u, u))
    for first in (0, 11, 130):
        index = torch.arange(first, 400, 3)
        index = index[torch.randperm(len(index))]
        part = torch.stack(
            spe(positions[:, index], noise=NOISE)[0][0].encode(u[:, index], u[:, index])
        )
        torch.testing.assert_close(part, whole[:, :, index], atol=1e-6 * large, rtol=0)
    state = None
    for index in torch.arange(400).split(37):
        codes, state = spe(positions[:, index], noise=NOISE, state=state)
        part = torch.stack(codes[0].encode(u[:, index], u[:, index]))
        torch.testing.assert_close(part, whole[:, :, index], atol=1e-5, rtol=0)


def test_gradients_reach_queries_after_a_state(large):
    spe, positions = build("conv"), grid(140)
    _, state = spe(positions[:, :100], noise=NOISE)
    q = torch.randn(1, 40, HEADS, WIDTH, requires_grad=True)
    for end in (120, 140):  # in the same block, and in the next
        index = positions[:, 100:end]
        codes = [spe(index, noise=NOISE, state=before)[0][0] for before in (None, state)]
        outputs = [code.encode(q[:, : end - 100], q[:, : end - 100])[0] for code in codes]
        grads = [torch.autograd.grad(out.square().sum(), q)[0] for out in outputs]
        torch.testing.assert_close(*grads)


@torch.no_grad()
def test_a_class_token_needs_no_blocks_of_noise():
    spe = build("conv", class_token=True)
    codes, state = spe(torch.tensor([[[-1], [5000], [5001]]]), noise=NOISE)
    assert len(codes[0].of_q.keywords["code"]) == BLOCK_SIDE
    assert len(spe(torch.tensor([[[-1]]]), noise=NOISE)[0][0].of_q.keywords["code"]) == BLOCK_SIDE
    codes, _ = spe(torch.tensor([[[5200]]]), noise=NOISE, state=state)
    assert len(codes[0].of_q.keywords["code"]) == BLOCK_SIDE  # old blocks are dropped


@pytest.mark.parametrize("kind", [SineSPE, ConvSPE])
def test_codes_are_freed_with_their_graph_without_garbage_collection(kind):
    spe = kind(num_layers=2, num_heads=2, width=16, model_dim=32, num_realizations=8)
    q = torch.randn(1, 20, 2, 16, requires_grad=True)
    gc.disable()
    try:
        codes, _ = spe(torch.arange(20)[None, :, None], noise=NOISE)
        alive = weakref.ref(codes[0].of_q.keywords["omega" if kind is SineSPE else "code"])
        sum(code.encode(q, q)[0].sum() for code in codes).backward()
        del codes, _
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [SineSPE, ConvSPE])
def test_a_layer_saves_arrays_of_the_size_of_q_and_k(kind):
    length, layers = 256, 6
    spe = kind(num_layers=layers, num_heads=2, width=16, model_dim=32, num_realizations=64)
    q = torch.randn(1, length, 2, 16, requires_grad=True)
    codes, _ = spe(torch.arange(length)[None, :, None], noise=NOISE)
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        first = [code.encode(q, q) for code in codes[:1]]
        after_one = sum(kept.values())
        rest = [code.encode(q, q) for code in codes[1:]]
        after_all = sum(kept.values())
    assert len(first + rest) == layers
    # Later layers save gated copies of q and k, and ε: far less than length × width × R.
    each = (after_all - after_one) / (layers - 1)
    assert each < 8 * q.nbytes < length * 2 * 16 * 64 * 4 / 4
