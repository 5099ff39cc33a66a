"""SPE against codes built one by one: in n dimensions, in musical time, with tokens of no place."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.position import SPE, ConvSPE, NoiseKey, SineSPE
from musicgen.position.conv_noise import SIDES
from musicgen.position.spe import CODE_DRAW

NOISE = NoiseKey((4,))
WIDTH, HEADS, LAYERS = 3, 2, 2


def build(kind: str, seed: int = 1, **settings) -> SPE:
    torch.manual_seed(seed)
    sizes = {"num_layers": LAYERS, "num_heads": HEADS, "width": WIDTH, "model_dim": 6}
    if kind == "conv":
        return ConvSPE(**sizes, **{"num_realizations": 4, "filter_length": 5} | settings)
    return SineSPE(**sizes, **{"num_realizations": 4, "num_sines": 3} | settings)


def grid(*size: int) -> Tensor:
    """Every place of a box, row by row: [1, L, P]."""
    return torch.cartesian_prod(*(torch.arange(n) for n in size)).view(1, -1, len(size))


def with_class_token(positions: Tensor) -> Tensor:
    """One token of no place before the others, and one between them."""
    nowhere = torch.full_like(positions[:, :1], -1)
    return torch.cat((nowhere, positions[:, :4], nowhere, positions[:, 4:]), dim=1)


def musical() -> Tensor:
    """Two rows of (index, time): several tokens at a time, and times without any: [2, 90, 2]."""
    index = torch.arange(90)
    times = torch.stack((index // 3 * 2, index // 4 * 7 + 100))
    return torch.stack((index.expand(2, -1), times), dim=-1)


def sine_codes(spe: SineSPE, x: Tensor, code: int) -> tuple[Tensor, Tensor]:
    """q̄ and k̄ of one code at x [1|B, L, P], before the gate: [1|B, L, H, K, R]."""
    a = spe.frequency[code]
    # In n dimensions odd, and σ(a − 6)/2 far above zero.
    signed = a.sinh() / (a.cosh() + math.cosh(6))
    f = (a[None].sigmoid() if x.shape[-1] == 1 else signed) / 2
    gain = F.softplus(spe.gain[code])
    angle = 2 * math.pi * torch.einsum("blp,phkj->blhkj", x.float(), f)
    z = spe.noise(NOISE, code, x.device).transpose(1, 2)  # [H, K, 2K', R]
    bars = []
    for turned in (angle + spe.phase[code], angle):
        omega = torch.cat((gain * turned.cos(), gain * turned.sin()), dim=-1)
        if spe.class_token:
            own = torch.zeros(()) if spe.gate is not None else spe.class_code[code].mT
            omega = torch.where((x >= 0).all(-1)[..., None, None, None], omega, own)
        bars.append(torch.einsum("blhkj,hkjr->blhkr", omega, z))
    return bars[0], bars[1]


def conv_codes(spe: ConvSPE, x: Tensor, code: int) -> tuple[Tensor, Tensor]:
    dims, side, taps = x.shape[-1], SIDES[x.shape[-1] - 1], spe.filter_length
    blocks = [-(-(int(n) + taps) // side) for n in x.amax((0, 1))]
    z = torch.empty(HEADS, WIDTH, *(side * n for n in blocks), spe.num_realizations)
    for head, block in product(range(HEADS), product(*map(range, blocks))):
        key = NOISE.fold(CODE_DRAW, code, head).fold(*block)
        part = (slice(side * b, side * b + side) for b in block)
        draw = key.normal(WIDTH, *(side,) * dims, spe.num_realizations, device="cpu")
        z[(head, slice(None), *part)] = draw * spe.code_scale
    correlate = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    placed = (x >= 0).all(-1)[..., None, None, None]
    bars = []
    for filters in (spe.filter_q[code], spe.filter_k[code]):
        weight = filters.flatten(0, 1)[:, None]
        every = correlate(z.flatten(0, 1).movedim(-1, 0), weight, groups=len(weight))
        at = every[(slice(None), slice(None), *x.clamp(min=0).unbind(-1))]  # [R, H·K, 1|B, L]
        bar = at.permute(2, 3, 1, 0).unflatten(2, (HEADS, WIDTH))
        if spe.class_token:
            own = torch.zeros(())
            if spe.gate is None:
                corner = z[(slice(None), slice(None), *(slice(taps),) * dims)].flatten(2, -2)
                own = torch.einsum("hkp,hkpr->hkr", spe.class_code[code].flatten(2), corner)
            bar = torch.where(placed, bar, own)
        bars.append(bar)
    return bars[0], bars[1]


def by_hand(spe: SPE, positions: Tensor, q: Tensor, k: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Each layer's q̂ and k̂, of q and k [LAYERS, B, L, H, K]."""
    x = positions[..., spe.columns]
    codes = sine_codes if isinstance(spe, SineSPE) else conv_codes
    encoded = []
    for layer, gate in enumerate(spe.gates(NOISE, x.device)):
        bars = codes(spe, x, 0 if spe.shared else layer)
        if gate is not None:
            a, c, epsilon = gate
            bars = [a[..., None] * bar + c[..., None] * epsilon for bar in bars]
        pair = zip((q[layer], k[layer]), bars, strict=True)
        encoded.append(
            tuple(
                torch.einsum("blhk,blhkr->blhr", u, bar.expand(len(u), *[-1] * 4))
                for u, bar in pair
            )
        )
    return encoded


CASES = {
    "image": ({"coordinates": 2}, grid(18, 7)),
    "space": ({"coordinates": 3}, grid(3, 9, 4)),
    "time": ({"coordinates": "time"}, musical()),
    "both": ({"coordinates": "both"}, musical()),
    "image and class": ({"coordinates": 2, "class_token": True}, with_class_token(grid(18, 7))),
    "index and class": ({"class_token": True}, with_class_token(grid(150))),
    "time and class": (
        {"coordinates": "time", "class_token": True},
        with_class_token(musical()),
    ),
}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("kind", "case"),
    [
        (kind, case)
        for kind in ("sine", "conv")
        for case in CASES
        if (kind, case) != ("conv", "both")
    ],
)
def test_outputs_and_gradients_are_those_of_codes_built_one_by_one(kind, case, shared, gated):
    settings, positions = CASES[case]
    spe = build(kind, gated=gated, shared=shared, **settings)
    q, k = torch.randn(2, LAYERS, 2, positions.shape[1], HEADS, WIDTH, requires_grad=True)
    codes, _ = spe(positions, noise=NOISE)
    results = []
    for encoded in (
        [c.encode(*u) for c, *u in zip(codes, q, k, strict=True)],
        by_hand(spe, positions, q, k),
    ):
        out = torch.stack([torch.stack(pair) for pair in encoded])
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
        grads = torch.autograd.grad((out * weights).sum(), (q, k, *spe.parameters()))
        results.append((out, *grads))
    names = ["out", "q", "k", *(name for name, _ in spe.named_parameters())]
    for name, fast, naive in zip(names, *results, strict=True):
        assert naive.abs().max() > 0, name
        assert (fast - naive).abs().max() < 1e-4 * naive.abs().max(), name


@torch.no_grad()
@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("kind", "coordinates"),
    [("sine", 2), ("conv", 2), ("conv", "index"), ("conv", "time"), ("exact", "both")],
)
def test_tokens_after_one_another_see_the_same(kind, coordinates, gated, class_token):
    settings = {"num_realizations": None} if kind == "exact" else {}
    flags = {"gated": gated, "class_token": class_token, "coordinates": coordinates}
    spe = build(kind, **flags, **settings)
    positions = {2: grid(18, 19), "index": grid(400)}.get(coordinates, musical())
    positions = with_class_token(positions) if class_token else positions
    q, k = torch.randn(2, 2, positions.shape[1], HEADS, WIDTH)
    whole, _ = spe(positions, noise=NOISE)
    expected = [torch.stack(code.encode(q, k)) for code in whole]
    state = None
    step = 1 + positions.shape[1] // 100
    for start in range(0, positions.shape[1], step):
        part = slice(start, start + step)
        codes, state = spe(positions[:, part], noise=NOISE, state=state)
        for code, layer in zip(codes, expected, strict=True):
            encoded = torch.stack(code.encode(q[:, part], k[:, part]))
            torch.testing.assert_close(encoded, layer[:, :, part], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("dims", [2, 3])
def test_any_part_of_an_image_has_the_same_codes(dims):
    spe = build("conv", coordinates=dims, filter_length=10 - dims, gated=False)
    size = {2: (40, 20), 3: (17, 9, 9)}[dims]
    places = grid(*size)
    u = torch.randn(1, places.shape[1], HEADS, WIDTH)
    whole = torch.stack(spe(places, noise=NOISE)[0][0].encode(u, u))
    for corner in ((0, 0, 0), (11, 5, 8), (16, 8, 0)):
        index = (places >= torch.tensor(corner[:dims])).all(-1)[0].nonzero()[::3, 0]
        index = index[torch.randperm(len(index))]
        part = torch.stack(
            spe(places[:, index], noise=NOISE)[0][0].encode(u[:, index], u[:, index])
        )
        assert torch.equal(part, whole[:, :, index]), corner


@torch.no_grad()
def test_a_token_of_no_place_asks_for_no_noise_between():
    spe = build("conv", class_token=True)
    codes, state = spe(torch.tensor([[[-1], [5000], [5001]]]), noise=NOISE)
    assert len(codes[0].codes.q) == SIDES[0]
    assert len(spe(torch.tensor([[[-1]]]), noise=NOISE)[0][0].codes.q) == SIDES[0]
    codes, _ = spe(torch.tensor([[[5200]]]), noise=NOISE, state=state)
    assert len(codes[0].codes.q) == SIDES[0]  # and none of what is past
