"""Features and the causal product in one Triton kernel, so that no features are in memory.

One program computes one head of one sequence. It goes from chunk to chunk with the sums over the
keys before, [M, V] and [M]; the features of a chunk exist only in the program. Their exponents are
q Ω of queries and k Ω − c‖k‖² of keys (FAVOR+: Ω = [ω, −ω], c = logit_scale / 2), or are given.

Scales are those of `stabilise.py`, one a chunk: s_f is the logarithm of the largest term in the sum
of feature f. Within a chunk, the scale is the largest exponent of the sums and of the chunk's keys.
It cancels, so that outputs depend on earlier keys only. The exception are queries whose visible
keys are all below e^−80 of it: they get 0.

The backward pass computes features again, from the scales before each chunk, [M], and the logarithm
of each query's normaliser. One kernel goes forward, for queries; another goes backward, for keys,
values and sums. The weights of a query add up to 1. So the gradient of the logarithm of the decay
up to a token is minus that of its key's exponents, summed over features.
"""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from musicgen.attention import fused_kernels
from musicgen.attention.causal_product import LinearState
from musicgen.position.base import at_least_fp32, product_dtype

# T, tokens in a chunk: a power of two from 16. With more, or with fewer warps, Hopper's registers
# do not hold a program of 128 features.
CHUNK_LENGTH = 32
_WARPS = 8
_DTYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
}


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    key_mask: Tensor | None,
    state: LinearState | None,
    *,
    directions: Tensor | None = None,
    norm_factor: float = 0.0,
    eps: float | None = None,
) -> tuple[Tensor, LinearState]:
    """Return causal linear attention [B, L, H, V], and the sums after these tokens.

    Products are in the dtype of autocast, as the output; sums in fp32. Both are in fp64 if q is.

    Args:
        q, k: encoded queries and keys [B, L, H, E]; without `directions`, logarithms of features,
            and with `eps` positive features.
        v: [B, L, H, V].
        log_decay: [H] or [B, L, H].
        key_mask: [B, L], false where a key is left out.
        state: sums over the tokens before these. `kv` and `k` get gradients, `log_scale` does not.
        directions: Ω [E, M], which get no gradient.
        norm_factor: c, the factor on ‖k‖².
        eps: added to the normaliser of features.
    """
    dtype = torch.float64 if q.dtype == torch.float64 else product_dtype(q.device)
    with torch.autocast(q.device.type, enabled=False):
        if eps is None:
            assert state is None or state.log_scale is not None, "a state of plain features"
            return _fused(q, k, v, log_decay, key_mask, state, directions, norm_factor, None, dtype)
        q, k = (x.clamp(min=torch.finfo(x.dtype).tiny).log() for x in at_least_fp32(q, k))
        if state is not None:
            state = state._replace(log_scale=torch.zeros_like(state.k))
        out, state = _fused(q, k, v, log_decay, key_mask, state, None, 0.0, eps, dtype)
        assert state.log_scale is not None
        return out, state.scaled(state.log_scale.exp())._replace(log_scale=None)


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    key_mask: Tensor | None,
    state: LinearState | None,
    directions: Tensor | None,
    norm_factor: float,
    eps: float | None,
    dtype: torch.dtype,
) -> tuple[Tensor, LinearState]:
    """Return attention by the kernel; arrays are padded to the sizes that it takes."""
    assert directions is None or not directions.requires_grad
    if dtype == torch.float16:  # which has no room for features divided by their normaliser
        dtype = torch.float32
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    (batch, length, heads, num_features), num_values = q.shape, v.shape[3]
    if directions is not None:
        num_features = directions.shape[1]
        directions = _padded(directions.to(dtype), 0, 1)
    if log_decay is not None:
        log_decay = _padded(log_decay.to(sums).expand(batch, length, heads), tokens=True)
    if key_mask is None and length % CHUNK_LENGTH:
        key_mask = torch.ones(batch, length, dtype=torch.bool, device=q.device)
    if key_mask is not None:
        key_mask = _padded(key_mask, tokens=True)
    if state is None:
        k_sum = torch.zeros(batch, heads, num_features, dtype=sums, device=q.device)
        kv = k_sum[..., None].expand(*k_sum.shape, num_values)
        state = LinearState(kv, k_sum, torch.full_like(k_sum, -torch.inf))
    kv, k_sum, scale = state
    assert scale is not None
    before = (kv, k_sum, scale.expand_as(k_sum))
    out, _, scales, kv, k_sum = torch.ops.musicgen.linear_attention(
        *(_padded(x, 3, tokens=True) for x in (q, k, v)),
        directions,
        log_decay,
        key_mask,
        *(_padded(x.to(sums), *range(2, x.dim())) for x in before),
        norm_factor,
        eps,
        num_features,
        dtype,
    )
    last = scales[:, :, -1, :num_features].detach()
    after = LinearState(kv[:, :, :num_features, :num_values], k_sum[..., :num_features], last)
    return out[:, :length, :, :num_values], after


def _padded(x: Tensor, *dims: int, tokens: bool = False) -> Tensor:
    """Return x, contiguous, with zeros up to whole chunks, and to widths of powers of two."""
    missing = [0] * x.dim()
    for dim in dims:
        missing[dim] = max(16, 1 << (x.shape[dim] - 1).bit_length()) - x.shape[dim]
    if tokens:
        missing[1] = -x.shape[1] % CHUNK_LENGTH
    if any(missing):
        x = F.pad(x, [size for last in reversed(missing) for size in (0, last)])
    return x.contiguous()


def _run(
    kernel: Any,
    tensors: tuple[Any, ...],
    norm_factor: float,
    num_features: int,
    dtype: torch.dtype,
    **more: float | None,
) -> None:
    """Run a kernel, with a program for each head of each sequence."""
    q, v, kv = tensors[0], tensors[2], tensors[6]
    tf32 = torch.get_float32_matmul_precision() != "highest"
    kernel[(q.shape[0] * q.shape[2],)](
        *tensors,
        norm_factor,
        num_features,
        q.shape[1],
        heads=q.shape[2],
        e=q.shape[3],
        m=kv.shape[2],
        width=v.shape[3],
        chunk=CHUNK_LENGTH,
        dtype=_DTYPES[dtype],
        precision="tf32" if tf32 else "ieee",
        num_warps=_WARPS,
        num_stages=1,
        **more,
    )


@torch.library.custom_op("musicgen::linear_attention", mutates_args=())
def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    directions: Tensor | None,
    log_decay: Tensor | None,
    key_mask: Tensor | None,
    kv: Tensor,
    k_sum: Tensor,
    log_scale: Tensor,
    norm_factor: float,
    eps: float | None,
    num_features: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the output, logarithms of normalisers, scales, and the sums after the tokens."""
    inputs = q, k, v, directions, log_decay, key_mask, kv, k_sum, log_scale
    options = norm_factor, num_features, dtype
    results = _results(*inputs, *options)
    _run(fused_kernels.forward_kernel, (*inputs, *results), *options, eps=eps)
    return results


@_attend.register_fake
def _results(*inputs: Any) -> tuple[Tensor, ...]:
    q, v, kv, k_sum, dtype = inputs[0], inputs[2], inputs[6], inputs[7], inputs[-1]
    batch, length, heads, _ = q.shape
    return (
        torch.empty_like(v, dtype=dtype),
        kv.new_empty(batch, length, heads),
        kv.new_empty(batch, heads, length // CHUNK_LENGTH + 1, kv.shape[2]),
        torch.empty_like(kv),
        torch.empty_like(k_sum),
    )


@torch.library.custom_op("musicgen::linear_attention_backward", mutates_args=())
def _differentiate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    directions: Tensor | None,
    log_decay: Tensor | None,
    key_mask: Tensor | None,
    kv: Tensor,
    k_sum: Tensor,
    scales: Tensor,
    out: Tensor,
    log_norm: Tensor,
    grad_out: Tensor,
    grad_kv_end: Tensor,
    grad_k_end: Tensor,
    norm_factor: float,
    num_features: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v, of keys' exponents summed over features, and of sums."""
    grads: Any = tuple(torch.empty_like(x) for x in (q, k, v, log_norm, kv, k_sum))
    inputs, common = (q, k, v, directions, log_decay, key_mask), (scales, out, log_norm, grad_out)
    options = norm_factor, num_features, dtype
    _run(fused_kernels.queries_kernel, (*inputs, kv, k_sum, *common, grads[0]), *options)
    _run(
        fused_kernels.keys_kernel,
        (*inputs, grad_kv_end, grad_k_end, *common, *grads[1:]),
        *options,
    )
    return grads


@_differentiate.register_fake
def _gradients(*inputs: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(inputs[i]) for i in (0, 1, 2, 10, 6, 7))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, _, ctx.norm_factor, ctx.eps, ctx.num_features, ctx.dtype = inputs
    out, log_norm, scales, kv_end, k_end = output
    ctx.save_for_backward(*tensors, scales, out, log_norm, kv_end, k_end)


def _backward(ctx: Any, grad_out: Tensor, _: Any, __: Any, grad_kv: Tensor, grad_k: Tensor) -> Any:
    *tensors, kv_end, k_end = ctx.saved_tensors
    log_decay = tensors[4]
    q, k, v, keys, kv, k_sum = torch.ops.musicgen.linear_attention_backward(
        *tensors,
        *(x.contiguous() for x in (grad_out, grad_kv, grad_k)),
        ctx.norm_factor,
        ctx.num_features,
        ctx.dtype,
    )
    if log_decay is not None:  # each token's decay is part of the decay up to all later ones
        if ctx.eps is not None:  # the part of a query's weights that adds up to 1 with theirs
            out, log_norm = tensors[9:11]
            keys = keys - ctx.eps * (-log_norm).exp() * (out * grad_out).sum(-1)
        of_end = (kv_end * grad_kv).sum((2, 3)) + (k_end * grad_k).sum(2)  # [B, H]
        log_decay = of_end[:, None] - keys.flip(1).cumsum(1).flip(1)
    return q, k, v, None, log_decay, None, kv, k_sum, None, None, None, None, None


_attend.register_autograd(_backward, setup_context=_save)
