"""FlexAttention's score and mask functions, eager on the CPU, against the form in blocks.

The kernel itself and its backward need a GPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from musicgen.attention import GaussianSpan
from musicgen.attention.blockwise import Pairs, blockwise_attention
from musicgen.attention.flex import fused_span_attention, rounded
from musicgen.position import LagTable


def _positions(kind: str) -> Tensor:
    if kind == "index":
        return torch.arange(300)[None, :, None] + 5
    if kind == "image":
        return torch.cartesian_prod(torch.arange(19), torch.arange(17))[None]
    time = torch.randint(0, 3, (2, 256)).cumsum(1)
    if kind == "time under a span of the index":
        return torch.stack((torch.arange(256).expand(2, -1), time), dim=-1)
    return time[..., None]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("multiply", [True, False])
@pytest.mark.parametrize("kind", ["index", "image", "time", "time under a span of the index"])
@torch.no_grad()
def test_fused_form_equals_the_form_in_blocks(kind, multiply, causal, monkeypatch):
    positions = _positions(kind)
    num_dims, length = positions.shape[-1], positions.shape[1]
    span_dims, columns = num_dims, slice(0, num_dims)
    if kind.startswith("time under"):
        span_dims, columns = 1, slice(1, 2)
    span = GaussianSpan(training_length=[100] * span_dims, sigma=0.05)
    window, decay = span.window(), span(positions).decay
    assert window is not None
    last = torch.arange(length)[None] if causal else None
    key_mask = torch.ones(2, length).bool()
    key_mask[1, 250:] = False
    q, k, v, q_position = torch.randn(4, 2, 3, length, 16).unbind(0)
    for mask, with_position in ((key_mask, False), (None, True)):
        pairs = Pairs(positions, positions, last, mask, window, num_dims, True)
        options = {"decay": decay, "multiply": multiply}
        wide = dict(options)
        if with_position:
            narrow = pairs.box()[columns]
            box = rounded(narrow)
            values = torch.randn(3, *(high - low + 1 for low, high in box), 16)
            inner = tuple(
                slice(low - first, high - first + 1)
                for (low, high), (first, _) in zip(narrow, box, strict=True)
            )
            options |= {
                "q_position": q_position,
                "table": LagTable(values[:, *inner].flatten(1, -2), narrow, columns),
            }
            wide = options | {"table": LagTable(values.flatten(1, -2), box, columns)}
        fused = fused_span_attention(q, k, v, pairs, **wide)
        blocks = blockwise_attention(q, k, v, pairs, **options)
        if mask is not None:  # queries that see nothing have no defined output
            fused, blocks = (x * mask[:, None, :, None] for x in (fused, blocks))
        torch.testing.assert_close(fused, blocks, atol=2e-5, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["index", "image", "time"])
def test_block_mask_holds_every_pair_that_is_seen(kind, causal, monkeypatch):
    """Blocks that are skipped hold no such pair, those computed as a whole no other."""
    made = []

    def kernel(q, k, v, *, score_mod, block_mask, scale):
        made.append(block_mask)
        return v

    monkeypatch.setattr("musicgen.attention.flex.flex_attention", kernel)
    monkeypatch.setattr("musicgen.attention.flex.BLOCK", 16)
    positions = _positions(kind)
    num_dims, length = positions.shape[-1], positions.shape[1]
    last = torch.arange(length)[None] if causal else None
    window = (40,) if num_dims == 1 else (5, 3)
    pairs = Pairs(positions, positions, last, None, window, num_dims, True)
    q = torch.randn(len(positions), 1, length, 16)
    fused_span_attention(q, q, q, pairs, decay=torch.ones(num_dims))
    (mask,) = made
    at = torch.arange(length)
    seen = torch.stack(
        [mask.mask_mod(torch.tensor(b), None, at[:, None], at) for b in range(len(positions))]
    )
    assert seen.sum() == sum(
        pairs.visible(slice(None), slice(None), pairs.lags(slice(None), slice(None))).sum((1, 2))
    )
    num_blocks = -(-length // 16)
    grid = torch.zeros(len(seen), num_blocks * 16, num_blocks * 16).bool()
    grid[:, :length, :length] = seen
    grid = grid.unflatten(2, (num_blocks, 16)).unflatten(1, (num_blocks, 16))
    some, every = grid.any(4).any(2).any(0), grid.all(4).all(2).all(0)
    assert mask.full_kv_num_blocks is not None
    partial = _blocks(mask.kv_num_blocks, mask.kv_indices, num_blocks)
    whole = _blocks(mask.full_kv_num_blocks, mask.full_kv_indices, num_blocks)
    assert not (partial & whole).any()
    assert not (some & ~(partial | whole)).any()
    assert not (whole & ~every).any()
    assert bool(whole.any()) == (kind != "image")
    assert (partial | whole).float().mean() < 0.75


def _blocks(counts: Tensor, which: Tensor, size: int) -> Tensor:
    out = torch.zeros(size, size).bool()
    for row, count in enumerate(counts[0, 0].tolist()):
        out[row, which[0, 0, row, :count].long()] = True
    return out
