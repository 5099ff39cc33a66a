"""The backends against a recurrence in double precision, and the selection of a backend."""

import sys
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor

from musicgen.attention import (
    FAVOR,
    AttentionMask,
    LinearAttention,
    LinearState,
    backends,
    causal_linear_attention,
)
from musicgen.attention import causal_product as product_module
from musicgen.attention.causal_product import causal_product
from musicgen.errors import UserError
from musicgen.position import LayerCode

DECAY = torch.tensor([-3.0, -0.2, -1e-3])
needs_fast_transformers = pytest.mark.skipif(
    find_spec("fast_transformers") is None, reason="pytorch-fast-transformers is not installed"
)
needs_fla = pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("fla") is None,
    reason="needs an NVIDIA GPU and flash-linear-attention",
)


def problem(length: int, log_features: bool = False, device: str = "cpu") -> dict[str, Tensor]:
    q, k = torch.rand(2, 2, length, 3, 16) + 0.1
    if log_features:
        k[:, length // 2 :, 1] += 50  # needs a rescale point
    v = torch.randn(2, length, 3, 8)
    tensors = {"q": q, "k": k, "v": v, "log_decay": DECAY.clone()}
    return {name: x.to(device).requires_grad_() for name, x in tensors.items()}


class Mixing(LayerCode):
    """Makes features signed, so that the normaliser is of the features before encoding."""

    keeps_sign = encodes_normaliser = False

    def __init__(self) -> None:
        self.matrix = torch.randn(16, 16)

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        matrix = self.matrix.to(q.dtype)
        return q @ matrix, k @ matrix


def with_decay_by_token(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    rates = -(8 * torch.rand(*inputs["q"].shape[:3], device=inputs["q"].device) - 6).exp()
    return inputs | {"log_decay": rates.requires_grad_()}


def recurrence(
    q, k, v, log_decay=None, *, log_features=False, key_mask=None, code=None, state=None, **_
) -> tuple[Tensor, LinearState]:
    """What `causal_linear_attention` computes, token by token."""
    eps = 0 if log_features else 1e-6
    q, k = (q.exp(), k.exp()) if log_features else (q, k)
    k = k if key_mask is None else k * key_mask[..., None, None].to(k.device)
    norm_q, norm_k = q, k
    q, k = (q, k) if code is None else code.encode(q, k)
    kv, k_sum = (
        v.new_zeros(len(q), q.shape[2], q.shape[3], v.shape[3]),
        torch.zeros_like(norm_k[:, 0]),
    )
    if state is not None:
        kv, k_sum = (
            state[:2] if state.log_scale is None else state.scaled(state.log_scale.exp())[:2]
        )
    rates = v.new_zeros(1) if log_decay is None else log_decay
    gamma, out = rates.expand(q.shape[:3]).exp()[..., None], []
    for n in range(q.shape[1]):
        kv = gamma[:, n, :, None] * kv + k[:, n, :, :, None] * v[:, n, :, None]
        k_sum = gamma[:, n] * k_sum + norm_k[:, n]
        divisor = (norm_q[:, n] * k_sum).sum(-1, keepdim=True) + eps
        out.append(torch.einsum("bhe,bhev->bhv", q[:, n], kv) / divisor)
    return torch.stack(out, dim=1), LinearState(kv, k_sum)


def results(
    inputs: dict[str, Tensor], decaying: bool, compute=causal_linear_attention, **options
) -> list[Tensor]:
    """Outputs, final sums and gradients."""
    inputs = {n: x for n, x in inputs.items() if decaying or n != "log_decay"}
    out, state = compute(**inputs, return_state=True, **options)
    if state.log_scale is not None:  # which differs between backends
        state = state.scaled(state.log_scale.exp())
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).to(out.dtype)
    grads = torch.autograd.grad((out * weights).sum(), list(inputs.values()))
    return [out, state.kv, state.k, *grads]


def assert_agrees(inputs: dict[str, Tensor], tolerance: float = 1e-4, **options) -> None:
    """Compare with the recurrence in double precision, relative to the largest entry."""
    exact = {n: x.detach().double().requires_grad_() for n, x in inputs.items()}
    state = options.pop("state", None)
    exact_state = state and LinearState(*(None if x is None else x.double() for x in state))
    oracle = results(exact, compute=recurrence, **{**options, "state": exact_state})
    for found, expected in zip(results(inputs, **options, state=state), oracle, strict=True):
        # A single key has all the weight: no gradient reaches it or its query.
        largest = expected.abs().max().clamp(min=1e-2)
        assert (found - expected).abs().max() <= tolerance * largest


def some_state(log_features: bool, device: str = "cpu"):
    before = {n: x for n, x in problem(5, device=device).items() if n != "log_decay"}
    return causal_linear_attention(**before, log_features=log_features, return_state=True)[1]


@needs_fast_transformers
@pytest.mark.parametrize("length", [1, 63, 1000])
@pytest.mark.parametrize(("log_features", "mixing"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("continued", [False, True])
def test_fast_transformers(length, log_features, mixing, continued):
    mask = torch.rand(2, length) > 0.3
    mask[:, 0] = True
    options = {"log_features": log_features, "key_mask": mask, "decaying": False}
    options |= {"code": Mixing()} if mixing else {}
    state = some_state(log_features) if continued else None
    inputs = problem(length, log_features)
    assert_agrees(inputs, **options, state=state, backend="fast_transformers")


@needs_fast_transformers
def test_fast_transformers_refuses_a_decay():
    inputs = problem(3)
    for decaying in (inputs, with_decay_by_token(inputs)):
        with pytest.raises(UserError, match=r"no decay.*decay=none"):
            results(decaying, decaying=True, backend="fast_transformers")


def simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What `fla.ops.simple_gla.chunk_simple_gla` computes, token by token."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    batch, length, heads, width = q.shape
    state = q.new_zeros(batch, heads, width, v.shape[-1])
    state = state if initial_state is None else initial_state
    out = []
    for n in range(length):
        gate = 1 if g is None else g[:, n].exp()[..., None, None]
        state = gate * state + k[:, n, :, :, None] * v[:, n, :, None]
        out.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, n], state))
    return torch.stack(out, dim=1), state if output_final_state else None


@pytest.mark.parametrize("decay", ["none", "head", "token"])
@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize(("log_features", "mixing"), [(False, False), (True, False), (False, True)])
def test_fla_adapter(monkeypatch, log_features, mixing, decay, continued):
    stub = SimpleNamespace(chunk_simple_gla=simple_gla)
    monkeypatch.setitem(sys.modules, "fla.ops.simple_gla", stub)
    monkeypatch.setattr(backends, "_fla_refusal", lambda *_: None)
    monkeypatch.setattr(backends, "_fla_gradient_refusal", lambda *_: None)
    inputs = problem(40, log_features)
    inputs = with_decay_by_token(inputs) if decay == "token" else inputs
    options = {"log_features": log_features, "decaying": decay != "none", "backend": "fla"}
    options |= {"code": Mixing()} if mixing else {}
    assert_agrees(inputs, **options, state=some_state(log_features) if continued else None)


@needs_fla
@pytest.mark.parametrize("length", [1, 63, 1000, 2048])
@pytest.mark.parametrize("log_features", [False, True])
@pytest.mark.parametrize("decay", ["none", "head", "token"])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_fla(monkeypatch, length, log_features, decay, precision):
    if decay != "none" and (reason := backends._fla_gradient_refusal(DECAY.cuda())):
        pytest.skip(reason)
    monkeypatch.setenv("TRITON_F32_DEFAULT", precision)
    inputs = problem(length, log_features, "cuda")
    inputs = with_decay_by_token(inputs) if decay == "token" else inputs
    options = {"log_features": log_features, "decaying": decay != "none", "backend": "fla"}
    state = some_state(log_features, "cuda")
    assert_agrees(inputs, 1e-4 if precision == "ieee" else 1e-2, **options, state=state)


def test_backends_are_refused_by_name_and_with_the_cure():
    inputs = problem(3)
    with pytest.raises(UserError, match="expected one of auto, triton, fast_transformers, fla"):
        results(inputs, decaying=False, backend="pallas")
    with pytest.raises(UserError, match=r"backend=fla: .*NVIDIA GPU.*cpu, or use backend=auto"):
        results(inputs, decaying=False, backend="fla")


@pytest.mark.parametrize("length", [1, 63, 300])
@pytest.mark.parametrize("decay", ["none", "head", "token"])
@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize(("log_features", "mixing"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("part_length", [128, 2048])
def test_causal_product(monkeypatch, length, log_features, mixing, decay, continued, part_length):
    monkeypatch.setattr(product_module, "_PART_LENGTH", part_length)
    monkeypatch.setattr(product_module, "CHUNK_LENGTH", 16)  # 8 on a CPU
    monkeypatch.setattr(product_module, "_GROUP_SIZE", 4)  # of chunks, so that groups have groups
    mask = torch.rand(2, length) > 0.3
    mask[:, 0] = True
    inputs = problem(length, log_features)
    inputs = with_decay_by_token(inputs) if decay == "token" else inputs
    options = {"log_features": log_features, "key_mask": mask, "decaying": decay != "none"}
    options |= {"code": Mixing()} if mixing else {}
    state = some_state(log_features) if continued else None
    assert_agrees(inputs, **options, state=state)


@torch.no_grad()
@pytest.mark.parametrize("decaying", [False, True])
def test_prefill_in_parts_equals_one(decaying):
    tensors = {n: x for n, x in problem(300, True).items() if decaying or n != "log_decay"}
    decay = {"log_decay": tensors.pop("log_decay")} if decaying else {}
    options = {**decay, "log_features": True}
    whole, _ = causal_linear_attention(**tensors, **options)
    outputs, state = [], None
    for part in (slice(0, 129), slice(129, 140), slice(140, 300)):
        some = {name: x[:, part] for name, x in tensors.items()}
        out, state = causal_linear_attention(**some, **options, state=state, return_state=True)
        outputs.append(out)
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, atol=1e-5, rtol=0)


@pytest.fixture
def gpu(monkeypatch) -> SimpleNamespace:
    """Stands for queries on a Hopper GPU with flash-linear-attention installed."""
    monkeypatch.setattr(backends, "find_spec", lambda _: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.7.1"))
    return SimpleNamespace(is_cuda=True, dtype=torch.float32, device=torch.device("cuda"))


def test_fla_is_taken_where_it_is_right(gpu, monkeypatch):
    assert backends.select_backend("fla", gpu, None) is backends.fla
    gpu.dtype = torch.float64
    with pytest.raises(UserError, match="no double precision; give float32"):
        backends.select_backend("fla", gpu, None)
    monkeypatch.setattr(backends, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="not installed; run: pip install"):
        backends.select_backend("fla", gpu, None)


@pytest.mark.parametrize("version", ["3.4.0", "3.5.1", "3.7.0"])
def test_fla_with_decay_is_not_trained_on_hopper_under_a_broken_triton(gpu, monkeypatch, version):
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=version))
    with pytest.raises(UserError, match=r"Hopper.*triton>=3.7.1.*or use backend=auto"):
        backends.select_backend("fla", gpu, DECAY)
    assert backends.select_backend("fla", gpu, None) is backends.fla
    with torch.no_grad():
        assert backends.select_backend("fla", gpu, DECAY) is backends.fla
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    assert backends.select_backend("fla", gpu, DECAY) is backends.fla


def test_the_fused_kernel_is_refused_with_the_cure(gpu, monkeypatch):
    gpu.shape = (1, 9, 2, 64)
    assert backends.select_backend("triton", gpu, None) is backends.BACKENDS["triton"]
    with pytest.raises(UserError, match=r"does not encode features; give .*site=query_key"):
        backends.select_backend("triton", gpu, None, Mixing())
    gpu.shape = (1, 9, 2, 300)
    with pytest.raises(UserError, match="may be 256 wide, and these are 300"):
        backends.select_backend("triton", gpu, None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    attention = LinearAttention(16, 0.25, 2, feature_map=FAVOR, backend="triton")
    x = torch.randn(1, 4, 2, 16)
    with pytest.raises(UserError, match=r"backend=triton: .*NVIDIA GPU.*cpu, or use backend=auto"):
        attention(x, x, x, LayerCode(), AttentionMask(causal=True))
    attention.eval()(x, x, x, LayerCode(), AttentionMask(causal=True))
    monkeypatch.setattr(backends, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"not installed; run: pip install -e '.\[triton\]'"):
        backends.select_backend("triton", gpu, None)


def test_backend_applies_to_training_only(monkeypatch):
    used = []
    monkeypatch.setitem(
        backends.BACKENDS, "fla", lambda *a, **b: used.append("fla") or causal_product(*a, **b)
    )
    monkeypatch.setattr(backends, "_fla_refusal", lambda *_: None)
    attention = LinearAttention(
        16, 0.25, 2, feature_map=partial(FAVOR, num_features=8), backend="fla"
    )
    x = torch.randn(1, 4, 2, 16)
    out, _ = attention(x, x, x, LayerCode(), AttentionMask(causal=True))
    assert used == ["fla"]
    again, _ = attention.eval()(x, x, x, LayerCode(), AttentionMask(causal=True))
    assert used == ["fla"]
    torch.testing.assert_close(again, out)


@pytest.mark.parametrize("backend", ["batched", "chunked"])
def test_backends_of_earlier_versions_are_read_as_auto(config, backend):
    cfg = config("train", "attention=favor", f"model.attention.backend={backend}")
    attention = instantiate(cfg.model.attention)(16, 0.25, 2)
    assert attention.backend == "auto"
