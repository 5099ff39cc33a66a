"""Triton kernels of `fused.py`: one program for each head of each sequence.

Arrays are contiguous, their widths powers of two, and their length a multiple of the chunk:

    q, k, grad_q, grad_k [B, L, H, E]       directions [E, M]
    v, out, grad_out, grad_v [B, L, H, V]   log_decay, log_norm, key_sums [B, L, H]
    kv, grad_kv [B, H, M, V]                key_mask [B, L]
    k_sum, grad_k_sum [B, H, M]             scales [B, H, C + 1, M]

Without `directions`, q and k are exponents, and E = M. `log_decay`, `key_mask` and `eps` may be
None. Features from `num_features` on are padding.
"""

import triton
import triton.language as tl

SMALLEST = tl.constexpr(1e-35)  # normaliser; gradients of smaller ones would overflow


@triton.jit
def _dot(a, b, dtype: tl.constexpr, precision: tl.constexpr):
    """Return a @ b of operands in `dtype`, summed in fp32 or fp64."""
    sums: tl.constexpr = tl.float64 if dtype == tl.float64 else tl.float32
    return tl.dot(a.to(dtype), b.to(dtype), input_precision=precision, out_dtype=sums)


@triton.jit
def _rows(start, length, heads: tl.constexpr, chunk: tl.constexpr):
    """Return the indices of the program's tokens from `start` in [B, L, H]: [T]."""
    program = tl.program_id(0).to(tl.int64)
    return (program // heads * length + start + tl.arange(0, chunk)) * heads + program % heads


@triton.jit
def _tile(rows, width: tl.constexpr):
    """Return indices of rows of an array: [N] -> [N, width]."""
    return rows[:, None] * width + tl.arange(0, width)[None, :]


@triton.jit
def _exponents(
    q, k, directions, key_mask, rows, norm_factor, num_features,
    heads: tl.constexpr, e: tl.constexpr, m: tl.constexpr,
    dtype: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Return the exponents of a chunk's queries and keys [T, M], and its keys [T, E]."""
    sums: tl.constexpr = tl.float64 if dtype == tl.float64 else tl.float32
    queries = tl.load(q + _tile(rows, e)).to(sums)
    keys = tl.load(k + _tile(rows, e)).to(sums)
    of_q, of_k = queries, keys
    if directions is not None:
        omega = tl.load(directions + _tile(tl.arange(0, e), m))
        of_q = _dot(queries, omega, dtype, precision)
        of_k = _dot(keys, omega, dtype, precision) - norm_factor * tl.sum(keys * keys, 1)[:, None]
    exists = (tl.arange(0, m) < num_features)[None, :]
    of_q = tl.where(exists, of_q, float("-inf"))
    if key_mask is not None:
        exists = exists & (tl.load(key_mask + rows // heads) != 0)[:, None]
    return of_q, tl.where(exists, of_k, float("-inf")), keys


@triton.jit
def _features(of_q, of_k, scale, log_decay, rows, chunk: tl.constexpr):
    """Return what the sums before a chunk and its pairs of tokens are weighted with.

    Args:
        of_q, of_k: exponents [T, M].
        scale: of the sums before the chunk [M].

    Returns:
        of_q: exponents of queries [T, M], to be reduced by one number a query.
        phi_k: features of keys within the chunk [T, M].
        phi_end: features of keys in the sums after the chunk [T, M].
        weights: decay of the pairs of tokens [T, T], 0 where m > n.
        from_first: decay from the first token of the chunk to each [T].
        carried: factor on the sums before the chunk, at its first token [M].
        kept: factor on the sums before the chunk, in those after it [M].
        after: scale of the sums after the chunk [M].
    """
    n = tl.arange(0, chunk)
    weights = (n[:, None] >= n[None, :]).to(of_k.dtype)
    from_first = (n >= 0).to(of_k.dtype)
    if log_decay is None:
        after = tl.maximum(scale, tl.max(of_k, 0))
        highest = tl.where(after == float("-inf"), 0.0, after)  # no key so far
        phi_k = tl.exp(of_k - highest[None, :])
        carried = tl.exp(scale - highest)
        phi_end, kept = phi_k, carried
    else:
        rates = tl.load(log_decay + rows)
        # Sums of the rates after token m up to n: no differences of long sums.
        later = tl.where(n[:, None] > n[None, :], rates[:, None], 0.0)
        weights = weights * tl.exp(tl.cumsum(later, 0))
        to_end = of_k + tl.sum(later, 0)[:, None]
        from_first = tl.exp(tl.cumsum(tl.where(n > 0, rates, 0.0), 0))
        at_first = scale + tl.sum(tl.where(n == 0, rates, 0.0), 0)
        at_end = scale + tl.sum(rates, 0)
        highest = tl.maximum(at_first, tl.max(of_k, 0))
        highest = tl.where(highest == float("-inf"), 0.0, highest)
        after = tl.maximum(at_end, tl.max(to_end, 0))
        largest = tl.where(after == float("-inf"), 0.0, after)
        phi_k, phi_end = tl.exp(of_k - highest[None, :]), tl.exp(to_end - largest[None, :])
        carried, kept = tl.exp(at_first - highest), tl.exp(at_end - largest)
    return of_q + highest[None, :], phi_k, phi_end, weights, from_first, carried, kept, after


@triton.jit
def forward_kernel(
    q, k, v, directions, log_decay, key_mask, kv, k_sum, log_scale,
    out, log_norm, scales, kv_end, k_end,
    norm_factor, num_features, length, eps,
    heads: tl.constexpr, e: tl.constexpr, m: tl.constexpr, width: tl.constexpr,
    chunk: tl.constexpr, dtype: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute `out`, `log_norm` and `scales`, and the sums after these tokens."""
    feature = tl.program_id(0).to(tl.int64) * m + tl.arange(0, m)
    sums, norm_sums = tl.load(kv + _tile(feature, width)), tl.load(k_sum + feature)
    scale = tl.load(log_scale + feature)
    scales += tl.program_id(0).to(tl.int64) * (length // chunk + 1) * m + tl.arange(0, m)
    tl.store(scales, scale)
    for start in range(0, length, chunk):
        rows = _rows(start, length, heads, chunk)
        values = tl.load(v + _tile(rows, width))
        of_q, of_k, _ = _exponents(
            q, k, directions, key_mask, rows, norm_factor, num_features,
            heads, e, m, dtype, precision,
        )  # fmt: skip
        of_q, phi_k, phi_end, weights, from_first, carried, kept, scale = _features(
            of_q, of_k, scale, log_decay, rows, chunk
        )
        highest = tl.max(of_q, 1)
        phi_q = tl.exp(of_q - highest[:, None])
        pairs = _dot(phi_q, tl.trans(phi_k), dtype, precision) * weights
        norm = tl.sum(pairs, 1) + from_first * tl.sum(phi_q * (carried * norm_sums)[None, :], 1)
        if eps is not None:
            norm += eps * tl.exp(-highest)
        before = _dot(phi_q, carried[:, None] * sums, dtype, precision)
        averaged = _dot(pairs, values, dtype, precision) + from_first[:, None] * before
        seen = norm > SMALLEST
        norm = tl.where(seen, norm, 1.0)
        averaged = tl.where(seen[:, None], averaged / norm[:, None], 0.0)
        tl.store(out + _tile(rows, width), averaged.to(out.dtype.element_ty))
        tl.store(log_norm + rows, tl.where(seen, highest + tl.log(norm), float("inf")))
        sums = kept[:, None] * sums + _dot(tl.trans(phi_end), values, dtype, precision)
        norm_sums = kept * norm_sums + tl.sum(phi_end, 0)
        scales += m
        tl.store(scales, scale)
    tl.store(kv_end + _tile(feature, width), sums)
    tl.store(k_end + feature, norm_sums)


@triton.jit
def queries_kernel(
    q, k, v, directions, log_decay, key_mask, kv, k_sum, scales, out, log_norm, grad_out,
    grad_q,
    norm_factor, num_features, length,
    heads: tl.constexpr, e: tl.constexpr, m: tl.constexpr, width: tl.constexpr,
    chunk: tl.constexpr, dtype: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute `grad_q`, from the first chunk to the last."""
    feature = tl.program_id(0).to(tl.int64) * m + tl.arange(0, m)
    sums, norm_sums = tl.load(kv + _tile(feature, width)), tl.load(k_sum + feature)
    scales += tl.program_id(0).to(tl.int64) * (length // chunk + 1) * m + tl.arange(0, m)
    for start in range(0, length, chunk):
        rows = _rows(start, length, heads, chunk)
        values, grad = tl.load(v + _tile(rows, width)), tl.load(grad_out + _tile(rows, width))
        of_norm = tl.sum(grad.to(sums.dtype) * tl.load(out + _tile(rows, width)), 1)
        of_q, of_k, _ = _exponents(
            q, k, directions, key_mask, rows, norm_factor, num_features,
            heads, e, m, dtype, precision,
        )  # fmt: skip
        of_q, phi_k, phi_end, weights, from_first, carried, kept, _ = _features(
            of_q, of_k, tl.load(scales), log_decay, rows, chunk
        )
        phi_q = tl.exp(of_q - tl.load(log_norm + rows)[:, None])  # normalised
        of_pairs = _dot(grad, tl.trans(values), dtype, precision) - of_norm[:, None]
        of_before = _dot(grad, tl.trans(carried[:, None] * sums), dtype, precision)
        of_before -= of_norm[:, None] * (carried * norm_sums)[None, :]
        of_phi = _dot(of_pairs * weights, phi_k, dtype, precision)
        of_exponents = phi_q * (of_phi + from_first[:, None] * of_before)
        if directions is not None:
            omega = tl.load(directions + _tile(tl.arange(0, e), m))
            of_exponents = _dot(of_exponents, tl.trans(omega), dtype, precision)
        tl.store(grad_q + _tile(rows, e), of_exponents.to(grad_q.dtype.element_ty))
        sums = kept[:, None] * sums + _dot(tl.trans(phi_end), values, dtype, precision)
        norm_sums = kept * norm_sums + tl.sum(phi_end, 0)
        scales += m


@triton.jit
def keys_kernel(
    q, k, v, directions, log_decay, key_mask, grad_kv_end, grad_k_end, scales, out, log_norm,
    grad_out,
    grad_k, grad_v, key_sums, grad_kv, grad_k_sum,
    norm_factor, num_features, length,
    heads: tl.constexpr, e: tl.constexpr, m: tl.constexpr, width: tl.constexpr,
    chunk: tl.constexpr, dtype: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of all but queries, from the last chunk to the first.

    `key_sums` get the gradients of each key's exponents, summed over features.
    """
    feature = tl.program_id(0).to(tl.int64) * m + tl.arange(0, m)
    of_sums = tl.load(grad_kv_end + _tile(feature, width))
    of_norm_sums = tl.load(grad_k_end + feature)
    scales += (tl.program_id(0).to(tl.int64) + 1) * (length // chunk + 1) * m + tl.arange(0, m) - m
    for done in range(0, length, chunk):
        rows = _rows(length - chunk - done, length, heads, chunk)
        scales -= m
        values, grad = tl.load(v + _tile(rows, width)), tl.load(grad_out + _tile(rows, width))
        of_norm = tl.sum(grad.to(of_sums.dtype) * tl.load(out + _tile(rows, width)), 1)
        of_q, of_k, keys = _exponents(
            q, k, directions, key_mask, rows, norm_factor, num_features,
            heads, e, m, dtype, precision,
        )  # fmt: skip
        of_q, phi_k, phi_end, weights, from_first, carried, kept, _ = _features(
            of_q, of_k, tl.load(scales), log_decay, rows, chunk
        )
        phi_q = tl.exp(of_q - tl.load(log_norm + rows)[:, None])  # normalised
        pairs = _dot(phi_q, tl.trans(phi_k), dtype, precision) * weights
        of_values = _dot(tl.trans(pairs), grad, dtype, precision)
        of_values += _dot(phi_end, of_sums, dtype, precision)
        tl.store(grad_v + _tile(rows, width), of_values.to(grad_v.dtype.element_ty))
        of_pairs = (_dot(grad, tl.trans(values), dtype, precision) - of_norm[:, None]) * weights
        of_end = _dot(values, tl.trans(of_sums), dtype, precision) + of_norm_sums[None, :]
        of_phi = _dot(tl.trans(of_pairs), phi_q, dtype, precision)
        of_exponents = phi_k * of_phi + phi_end * of_end
        of_key = tl.sum(of_exponents, 1)
        tl.store(key_sums + rows, of_key)
        if directions is not None:
            omega = tl.load(directions + _tile(tl.arange(0, e), m))
            of_exponents = _dot(of_exponents, tl.trans(omega), dtype, precision)
            of_exponents -= 2 * norm_factor * of_key[:, None] * keys
        tl.store(grad_k + _tile(rows, e), of_exponents.to(grad_k.dtype.element_ty))
        decayed = from_first[:, None] * phi_q
        of_before = _dot(tl.trans(decayed), grad, dtype, precision)
        of_sums = kept[:, None] * of_sums + carried[:, None] * of_before
        of_norm_sums = kept * of_norm_sums - carried * tl.sum(decayed * of_norm[:, None], 0)
    tl.store(grad_kv + _tile(feature, width), of_sums)
    tl.store(grad_k_sum + feature, of_norm_sums)
