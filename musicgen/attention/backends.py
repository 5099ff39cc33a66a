"""The backends of the causal product: ours in torch and in Triton, and two optional packages."""

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from musicgen.attention.causal_product import (
    LinearState,
    NormFeatures,
    causal_product,
    normaliser,
)
from musicgen.errors import ParameterError
from musicgen.position.base import LayerCode
from musicgen.validation import check_choice

Backend = Callable[..., tuple[Tensor, LinearState | None]]

_MAX_WIDTH = 256  # of the fused kernel's queries, for which a GPU has room


def select_backend(
    name: str, q: Tensor, log_decay: Tensor | None, code: LayerCode | None = None
) -> Backend:
    """Return the backend with this name.

    It has the signature of `causal_product`, and `triton` that of `fused.fused_attention`.

    Raises:
        ParameterError: there is no such backend, or it does not support these inputs.
    """
    check_choice("backend", name, BACKENDS)
    reason = None
    if name == "fla":
        reason = _fla_refusal(q) or _fla_gradient_refusal(log_decay)
    elif name == "triton":
        reason = _triton_refusal(q, code)
    elif name == "fast_transformers" and find_spec("fast_transformers") is None:
        reason = (
            "pytorch-fast-transformers is not installed; run: "
            "pip install --no-build-isolation -e '.[fast-transformers]'"
        )
    elif name == "fast_transformers" and log_decay is not None:
        reason = "pytorch-fast-transformers has no decay; give decay=none"
    if reason:
        raise ParameterError("backend", name, f"{reason}, or use backend=auto")
    return BACKENDS[name]


def _simple_gla(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, sums: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return o_n = q_n S_n with S_n = exp(g) S_{n−1} + k_n v_nᵀ, and the last S.

    The implementation is flash-linear-attention's.
    """
    from fla.ops.simple_gla import chunk_simple_gla  # takes seconds, and needs Triton

    # One gate per token, as the gate per head, which it also supports, gets no gradient.
    gate = None if log_decay is None else log_decay.float().expand(q.shape[:3])
    return chunk_simple_gla(
        q=q, k=k, v=v, g=gate, scale=1.0, initial_state=sums, output_final_state=True
    )


def _causal_dot_product(
    q: Tensor, k: Tensor, v: Tensor, log_decay: None, sums: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the same without decay, by pytorch-fast-transformers."""
    from fast_transformers.causal_product import causal_dot_product

    heads_first = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    out = causal_dot_product(*heads_first).transpose(1, 2)
    total = torch.einsum("blhe,blhv->bhev", k, v)
    if sums is None:
        return out, total
    return out + torch.einsum("blhe,bhev->blhv", q, sums), sums + total


def _normalised(
    product: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm: NormFeatures | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    *,
    eps: float | None,
    **_: Any,
) -> tuple[Tensor, LinearState]:
    """Return attention by a product without a normaliser, and the sums after these tokens.

    Args:
        product: maps q, k, v, the decay and the sums before the tokens to the output and the sums
            after them.
    """
    ones = v.new_ones(*v.shape[:-1], 1)
    kv, k_sum = (None, None) if state is None else (state.kv, state.k[..., None])
    if norm is None:  # with a column of ones in v, the normaliser is the output's last column
        before = None if kv is None or k_sum is None else torch.cat((kv, k_sum), dim=-1)
        both, sums = product(q, k, torch.cat((v, ones), dim=-1), log_decay, before)
        numerator, denominator = both[..., :-1], both[..., -1:]
        kv, k_sum = sums[..., :-1], sums[..., -1:]
    else:
        numerator, kv = product(q, k, v, log_decay, kv)
        denominator, k_sum = product(*norm, ones, log_decay, k_sum)
    return numerator / normaliser(denominator, eps), LinearState(kv, k_sum[..., 0])


def _fused(*args: Any, **options: Any) -> tuple[Tensor, LinearState]:
    from musicgen.attention.fused import fused_attention  # needs Triton

    return fused_attention(*args, **options)


fla = partial(_normalised, _simple_gla)
BACKENDS: dict[str, Backend] = {
    "auto": causal_product,
    # Not what `auto` takes: its speed on a GPU is not measured yet.
    "triton": _fused,
    "fast_transformers": partial(_normalised, _causal_dot_product),
    "fla": fla,
}


def _triton_refusal(q: Tensor, code: LayerCode | None) -> str | None:
    """Return why the fused kernel does not support these inputs, and the cure, or None."""
    if find_spec("triton") is None:
        return "Triton is not installed; run: pip install -e '.[triton]'"
    if not q.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"Triton's kernels need an NVIDIA GPU, and this runs on {q.device.type}"
    if q.shape[-1] > _MAX_WIDTH:
        return f"queries may be {_MAX_WIDTH} wide, and these are {q.shape[-1]} wide"
    if code is not None:
        return "the fused kernel does not encode features; give model.position.site=query_key"
    return None


def _fla_refusal(q: Tensor) -> str | None:
    """Return why flash-linear-attention does not support these inputs, and the cure, or None."""
    if not q.is_cuda:
        return f"flash-linear-attention needs an NVIDIA GPU, and this runs on {q.device.type}"
    if find_spec("fla") is None or find_spec("triton") is None:
        missing = "flash-linear-attention or its Triton is not installed"
        return f"{missing}; run: pip install -e '.[fla]'"
    if q.dtype == torch.float64:
        return "flash-linear-attention has no double precision; give float32"
    return None


def _fla_gradient_refusal(log_decay: Tensor | None) -> str | None:
    """Return why fla's gradients with decay would be wrong, or None.

    They are on Hopper GPUs, with Triton from 3.4 to before 3.7.1.
    """
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
