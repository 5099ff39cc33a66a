"""The backends: which there are, which are right for what is asked, and two optional ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from musicgen.attention.causal_product.chunked import chunked
from musicgen.attention.causal_product.naive import naive
from musicgen.attention.causal_product.state import Breaks, LinearState, Norm, normaliser, spans
from musicgen.errors import UserError

Backend = Callable[..., tuple[Tensor, LinearState]]


def choose(name: str, q: Tensor, log_decay: Tensor | None) -> Backend:
    """The backend of that name, if it can do this; `auto`: the fastest that can.

    On a CPU that is `chunked`, faster than fast_transformers. On NVIDIA it is `fla`, where it is
    installed and the user lets matrix products round: its products are in TF32.
    """
    if name == "auto":
        if not q.is_cuda or not _may_round() or _fla_refusal(q, log_decay) is not None:
            return chunked
        if reason := _fla_gradient_refusal(log_decay):
            _tell_once(f"{reason}; the causal product runs in plain torch until then")
            return chunked
        return fla
    check_name(name)
    reason = None
    if name == "fla":
        reason = _fla_refusal(q, log_decay) or _fla_gradient_refusal(log_decay)
    elif name == "fast_transformers":
        reason = _fast_transformers_refusal(q, log_decay)
    if reason:
        raise UserError(f"model.attention.backend={name}: {reason}, or use backend=auto")
    return BACKENDS[name]


def check_name(name: str) -> None:
    """Refuse what is no backend's name."""
    if name not in ("auto", *BACKENDS):
        raise UserError(f"model.attention.backend={name}: give auto, {', '.join(BACKENDS)}")


def fla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm: Norm | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    breaks: Breaks,
    eps: float,
) -> tuple[Tensor, LinearState]:
    """flash-linear-attention's simple GLA: o_n = q_n S_n, S_n = exp(g) S_{n−1} + k_n v_nᵀ."""
    kernel = _fla_kernel()
    # The gate per token, as the one per head that it also takes gets no gradient.
    gate = None if log_decay is None else log_decay.float().expand(q.shape[:3])

    def product(q: Tensor, k: Tensor, v: Tensor, sums: Tensor | None) -> tuple[Tensor, Tensor]:
        outputs = []
        for part in spans(q.shape[1], breaks):
            if part.start in breaks and sums is not None:
                sums = sums * breaks[part.start][..., None]
            out, sums = kernel(
                q=q[:, part],
                k=k[:, part],
                v=v[:, part],
                g=None if gate is None else gate[:, part],
                scale=1.0,
                initial_state=sums,
                output_final_state=True,
            )
            outputs.append(out)
        assert sums is not None
        return torch.cat(outputs, dim=1), sums

    return _divided(product, q, k, v, norm, state, eps)


def fast_transformers(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm: Norm | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    breaks: Breaks,
    eps: float,
) -> tuple[Tensor, LinearState]:
    """pytorch-fast-transformers' causal product; features that need a break go to `chunked`."""
    from fast_transformers.causal_product import causal_dot_product

    assert log_decay is None, "refused by choose"
    if breaks:
        return chunked(q, k, v, norm, None, state, breaks, eps)

    def product(q: Tensor, k: Tensor, v: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        heads_first = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        out = causal_dot_product(*heads_first).transpose(1, 2)
        sums = torch.einsum("blhe,blhv->bhev", k.detach(), v)
        if before is not None:
            out = out + torch.einsum("blhe,bhev->blhv", q, before)
            sums = sums + before
        return out, sums

    return _divided(product, q, k, v, norm, state, eps)


BACKENDS: dict[str, Backend] = {
    "naive": naive,
    "chunked": chunked,
    "fast_transformers": fast_transformers,
    "fla": fla,
}


def _divided(
    product: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm: Norm | None,
    state: LinearState | None,
    eps: float,
) -> tuple[Tensor, LinearState]:
    """Attention by a product that does not divide: (q, k, v, sums before) -> (out, sums)."""
    ones = v.new_ones(*v.shape[:-1], 1)
    kv, k_sum = (None, None) if state is None else (state.kv, state.k[..., None])
    if norm is None:  # values and a one: the normaliser is the product's last column
        before = None if kv is None or k_sum is None else torch.cat((kv, k_sum), dim=-1)
        both, sums = product(q, k, torch.cat((v, ones), dim=-1), before)
        numerator, denominator = both[..., :-1], both[..., -1:]
        kv, k_sum = sums[..., :-1], sums[..., -1:]
    else:
        numerator, kv = product(q, k, v, kv)
        denominator, k_sum = product(*norm, ones, k_sum)
    out = numerator / normaliser(denominator, eps)
    return out, LinearState(kv.detach(), k_sum[..., 0].detach())


@cache
def _fla_kernel() -> Callable[..., Any]:
    """Imported on first use: it needs Triton, and takes seconds."""
    from fla.ops.simple_gla import chunk_simple_gla

    return chunk_simple_gla


def _fla_refusal(q: Tensor, log_decay: Tensor | None) -> str | None:
    """Why flash-linear-attention cannot do this, and the cure."""
    if not q.is_cuda:
        return f"flash-linear-attention needs an NVIDIA GPU, and this runs on {q.device.type}"
    if find_spec("fla") is None or find_spec("triton") is None:
        return (
            "flash-linear-attention or its Triton is not installed; "
            "pip install flash-linear-attention"
        )
    if q.dtype == torch.float64:
        return "flash-linear-attention has no double precision; give float32"
    return None


def _fla_gradient_refusal(log_decay: Tensor | None) -> str | None:
    """Its gates' backward is wrong, and refused, on Hopper under Triton 3.4 up to 3.7.1."""
    if log_decay is None or not torch.is_grad_enabled():
        return None
    import triton

    hopper = torch.cuda.get_device_capability(log_decay.device)[0] == 9
    if hopper and "3.4" <= TorchVersion(triton.__version__) < "3.7.1":
        return (
            f"on this GPU (Hopper) Triton {triton.__version__} breaks the gradients of "
            "flash-linear-attention with decay; pip install 'triton>=3.7.1'"
        )
    return None


def _fast_transformers_refusal(q: Tensor, log_decay: Tensor | None) -> str | None:
    """Why pytorch-fast-transformers cannot do this, and the cure."""
    if find_spec("fast_transformers") is None:
        return "pytorch-fast-transformers is not installed; pip install pytorch-fast-transformers"
    from fast_transformers.causal_product import CausalDotProduct

    if CausalDotProduct.dot.get(q.device.type) is None:
        return f"pytorch-fast-transformers is not built for {q.device.type}; run on the CPU"
    if q.dtype == torch.float64:
        return "pytorch-fast-transformers has no double precision; give float32"
    if log_decay is not None:
        return "pytorch-fast-transformers has no decay; give model.attention.decay=none"
    return None


def _may_round() -> bool:
    """Whether the user takes matrix products of less than full fp32."""
    return torch.is_autocast_enabled("cuda") or torch.get_float32_matmul_precision() != "highest"


@cache
def _tell_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)
