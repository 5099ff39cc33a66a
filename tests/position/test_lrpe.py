"""LRPE against the matrices of its paper (Qin et al. 2023, §3.2.1), and PermuteFormer."""

import math

import pytest
import torch
from torch import Tensor

from musicgen.attention import causal_linear_attention
from musicgen.position import OrthogonalLRPE, PermutationLRPE, PermuteFormer, UnitaryLRPE
from musicgen.position.lrpe import Householder
from musicgen.random import NoiseKey

HEADS, WIDTH = 2, 6
SIZES = {"num_layers": 3, "num_heads": HEADS, "width": WIDTH, "model_dim": HEADS * WIDTH}
TYPES = {1: UnitaryLRPE, 2: OrthogonalLRPE, 3: PermutationLRPE}
FORMS = [
    (kind, {"basis": basis, "learned_basis": learned, "shared": shared})
    for kind, cls in TYPES.items()
    for basis in cls.bases
    for learned in {False, basis == "householder"}
    for shared in (True, False)
]
FORMS += [(kind, {"basis": "identity", "mixed": True}) for kind in (1, 2)]


def build(kind: int, **options):
    """Build an encoding in fp64 whose parameters differ between heads and layers."""
    encoding = TYPES[kind](**SIZES, **options).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return encoding


def alpha(encoding, code: int) -> Tensor:
    """Return the angles per position in radians."""
    return 2 * math.pi * encoding.frequency(code)


def encoded(encoding, x: Tensor, position: int, layer: int = 0) -> Tensor:
    """Encode vectors [N, H, M] at one position: [N, H, E]."""
    codes, _ = encoding(torch.full((1, 1, 1), position), noise=NoiseKey((0,)))
    return codes[layer].encode(x[:, None], x[:, None])[0][:, 0]


def matrices(encoding, position: int, layer: int = 0) -> Tensor:
    """Return Λ^(s) P, built by columns: [H, M, M], complex for type 1."""
    units = torch.eye(WIDTH, dtype=torch.float64)[:, None].expand(-1, HEADS, -1)
    columns = encoded(encoding, units, position, layer).permute(1, 2, 0)
    if isinstance(encoding, UnitaryLRPE):
        columns = torch.complex(*columns.chunk(2, dim=1))
    return columns


def basis_matrix(encoding, layer: int) -> Tensor:
    """Return P by its definition: [H, M, M]."""
    eye = torch.eye(WIDTH, dtype=torch.float64).expand(HEADS, -1, -1)
    match getattr(encoding.basis, "__name__", "householder"):
        case "householder":
            v = encoding.basis.v.detach()[min(layer, encoding.num_codes - 1), :, :, None]
            return eye - 2 * v @ v.mT / (v.mT @ v)
        case "odd_even":
            return eye[:, [0, 3, 1, 4, 2, 5]]  # eq. 74 in the rows of eq. 57
        case "fourier":
            n = torch.arange(WIDTH, dtype=torch.float64)
            roots = torch.polar(
                torch.ones(WIDTH, WIDTH).double(), -2 * math.pi * n[:, None] * n / 6
            )
            return (roots / math.sqrt(WIDTH)).expand(HEADS, -1, -1)
    return eye


def theta(kind, angles, features, length):
    """The listing's angles of e features that are rotated (Qin et al. 2023, appendix D.2)."""
    count = features if kind == 1 else features // 2
    t = torch.arange(1, count + 1, dtype=torch.float64)
    return {
        "geometric": 10000 ** (-2 * (t - 1) / features),
        "linear": math.pi / 2 / length / count * t,
        "harmonic": math.pi / 2 / length / t,
    }[angles]


@torch.no_grad()
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("angles", ["geometric", "linear", "harmonic"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("width", [6, 8, 10])
def test_theta_types_and_the_mixed_block(width, kind, learned, angles, mixed):
    options = {"basis": "identity", "learned_angles": learned, "angles": angles, "mixed": mixed}
    encoding = TYPES[kind](**SIZES | {"width": width}, **options, training_length=30)
    rotated = width // 2 + width // 2 % kind if mixed else width  # pairs stay together
    found, expected = alpha(encoding, 0), theta(kind, angles, rotated, 30)
    count = len(expected)
    assert found.shape[-1] == width // kind
    expected = expected.expand(len(found), -1)
    torch.testing.assert_close(found[:, :count], expected, atol=1e-7, rtol=1e-6)  # log α is fp32
    assert (found[:, count:] == 0).all()  # the others stay


@torch.no_grad()
@pytest.mark.parametrize(("kind", "options"), FORMS)
def test_matrices_equal_the_papers(kind, options):
    encoding = build(kind, **options)
    for layer in (0, 2):
        code = min(layer, encoding.num_codes - 1)
        basis = basis_matrix(encoding, layer)
        for s in (0, 1, 2, 97):
            match kind:
                case 1:  # eq. 22
                    expected = (1j * s * alpha(encoding, code)).exp().diag_embed()
                case 2:  # eq. 23
                    angles = s * alpha(encoding, code)
                    flat = (angles.cos(), -angles.sin(), angles.sin(), angles.cos())
                    blocks = torch.stack(flat, dim=-1).unflatten(-1, (2, 2))  # [H, M/2, 2, 2]
                    expected = torch.stack([torch.block_diag(*of_head) for of_head in blocks])
                case 3:  # eq. 24
                    order, start, length, step = encoding.cycles[:, code]
                    one = order.gather(1, start + (step + 1) % length)
                    expected = torch.eye(WIDTH).double()[one].matrix_power(s)
            dtype = torch.promote_types(expected.dtype, basis.dtype)
            expected = expected.to(dtype) @ basis.to(dtype)
            found = matrices(encoding, s, layer)
            torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("cls", [UnitaryLRPE, OrthogonalLRPE, PermutationLRPE])
def test_random_draws_are_saved_in_the_state_dict(cls):
    torch.manual_seed(1)
    one = cls(**SIZES)
    torch.manual_seed(2)
    other = cls(**SIZES)
    x = torch.rand(1, HEADS, WIDTH)
    assert (encoded(one, x, 5) - encoded(other, x, 5)).abs().max() > 0.01
    other.load_state_dict(one.state_dict())
    assert torch.equal(encoded(one, x, 5), encoded(other, x, 5))


def test_keeps_sign_is_true_exactly_for_permutations():
    x = torch.rand(50, HEADS, WIDTH)
    codes = {}
    for kind, options in FORMS:
        encoding = TYPES[kind](**SIZES, **options)
        code = encoding(torch.full((1, 1, 1), 9))[0][0]
        codes[kind, options["basis"]] = code.keeps_sign
        assert code.keeps_sign == bool((encoded(encoding, x, 9) >= 0).all())
    assert [form for form, keeps in codes.items() if keeps] == [(3, "identity"), (3, "odd_even")]


def test_reflection_gradients():
    basis = Householder(1, HEADS, WIDTH, learned=True).double()
    x = torch.randn(2, 3, HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, _: basis(x, 0), (x, basis.v))


@torch.no_grad()
def test_kernels_of_layers_bases_and_permutations():
    lags = torch.arange(30, dtype=torch.float64)
    per_layer = build(2, basis="identity", shared=False)
    expected = (alpha(per_layer, 2)[..., None] * lags).cos().repeat_interleave(2, dim=1)
    torch.testing.assert_close(per_layer.kernel(lags, layer=2), expected)
    # Householder mixes the kernels by the squares of its matrix.
    mixed = build(1, basis="householder")
    weights = basis_matrix(mixed, 0).square()
    expected = torch.einsum("hij,hin->hjn", weights, (alpha(mixed, 0)[..., None] * lags).cos())
    torch.testing.assert_close(mixed.kernel(lags), expected)
    permute = PermuteFormer(**SIZES)
    length = permute.cycles[2, 0]  # of each feature's cycle: it returns after so many steps
    returns = (lags % length[..., None] == 0).double()
    torch.testing.assert_close(permute.kernel(lags), returns)


@torch.no_grad()
def test_permuteformer_equals_the_papers_formula():
    # Queries (r P)^s and keys (r⁻¹ P)^s, for all pairs.
    encoding = PermuteFormer(**SIZES)
    q, k, v = torch.rand(3, 2, 20, HEADS, WIDTH, dtype=torch.float64)
    positions = torch.arange(20)[None, :, None]
    (code, *_), _ = encoding(positions)
    ratio = torch.sigmoid(2 + 3 * torch.arange(HEADS) / HEADS).double()[:, None]
    order, start, length, step = encoding.cycles[:, 0]
    one = order.gather(1, start + (step + 1) % length)  # π
    features = []
    for x, r in ((q, ratio), (k, 1 / ratio)):
        moved = [x[:, 0]]
        index = torch.arange(WIDTH).expand(HEADS, -1)
        for s in range(1, 20):
            index = index.gather(1, one)
            moved.append(r**s * x[:, s].gather(-1, index.expand(2, -1, -1)))
        features.append(torch.stack(moved, dim=1))
    weights = torch.einsum("bnhe,bmhe->bhnm", *features).tril()
    weights = weights / weights.sum(-1, keepdim=True)
    expected = torch.einsum("bhnm,bmhv->bnhv", weights, v)
    out, _ = causal_linear_attention(q, k, v, log_decay=code.log_decay, code=code, eps=0)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
