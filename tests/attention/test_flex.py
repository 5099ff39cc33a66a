"""FlexAttention's score and mask functions, eager on the CPU, against the form in blocks.

The compiled GPU kernel and its backward need a GPU.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from musicgen.attention import GaussianSpan, LayerSpan
from musicgen.attention.softmax.blockwise import blockwise_attention
from musicgen.attention.softmax.flex import expand_bounds, flex_attention_with_span
from musicgen.attention.softmax.pattern import AttentionPattern
from musicgen.position.logit.term import LagTable, LayerLogits, LogitTerm


def _positions(kind: str) -> Tensor:
    if kind == "index":
        return torch.arange(300)[None, :, None] + 5
    if kind == "image":
        return torch.cartesian_prod(torch.arange(19), torch.arange(17))[None]
    time = torch.randint(0, 3, (2, 256)).cumsum(1)
    if kind.endswith("under a span of the index"):
        return torch.stack((torch.arange(256).expand(2, -1), time), dim=-1)
    return time[..., None]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("multiply", [True, False])
@pytest.mark.parametrize(
    "kind",
    [
        "index",
        "image",
        "time",
        "time under a span of the index",
        "by head under a span of the index",
    ],
)
@torch.no_grad()
def test_fused_form_equals_the_form_in_blocks(kind, multiply, causal):
    positions = _positions(kind)
    num_dims, length = positions.shape[-1], positions.shape[1]
    span_dims, columns = num_dims, (tuple(range(num_dims)),)
    if kind.endswith("under a span of the index"):
        span_dims, columns = 1, ((1,), (0,), (1,)) if kind.startswith("by head") else ((1,),)
    span = GaussianSpan(training_length=[100] * span_dims, sigma=0.05)
    layer_span = replace(span(positions), multiply=multiply)
    last = torch.arange(length)[None] if causal else None
    key_mask = torch.ones(2, length).bool()
    key_mask[1, 250:] = False
    q, k, v, position_query = torch.randn(4, 2, 3, length, 16).unbind(0)
    for mask, with_position in ((key_mask, False), (None, True)):
        pattern = AttentionPattern(positions, positions, last, mask, layer_span, num_dims, True)
        options, expanded = {}, {}
        if with_position:
            logits = LayerLogits(LogitTerm(), positions, columns, [])
            bounds = logits.bounds(pattern.lag_bounds())
            expanded_bounds = expand_bounds(bounds)
            values = torch.randn(3, *(high - low + 1 for low, high in expanded_bounds), 16)
            inner = tuple(
                slice(low - first, high - first + 1)
                for (low, high), (first, _) in zip(bounds, expanded_bounds, strict=True)
            )
            tables = (
                LagTable(values[:, *inner].flatten(1, -2), bounds, columns),
                LagTable(values.flatten(1, -2), expanded_bounds, columns),
            )
            options, expanded = (
                {"position_query": position_query, "table": table} for table in tables
            )
        fused = flex_attention_with_span(q, k, v, pattern, **expanded)
        blocks = blockwise_attention(q, k, v, pattern, **options)
        if mask is not None:  # queries that see nothing have no defined output
            fused, blocks = (x * mask[:, None, :, None] for x in (fused, blocks))
        torch.testing.assert_close(fused, blocks, atol=2e-5, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["index", "image", "time"])
def test_block_mask_covers_every_visible_pair(kind, causal, monkeypatch):
    """Skipped blocks have no visible pair, and whole blocks have no hidden one."""
    made = []

    def record_mask(q, k, v, *, score_mod, block_mask, scale):
        made.append(block_mask)
        return v

    monkeypatch.setattr("musicgen.attention.softmax.flex.flex_attention", record_mask)
    monkeypatch.setattr("musicgen.attention.softmax.flex.BLOCK", 16)
    positions = _positions(kind)
    num_dims, length = positions.shape[-1], positions.shape[1]
    last = torch.arange(length)[None] if causal else None
    window = (40,) if num_dims == 1 else (5, 3)
    span = LayerSpan(positions, torch.ones(num_dims), window, multiply=False)
    pattern = AttentionPattern(positions, positions, last, None, span, num_dims, True)
    q = torch.randn(len(positions), 1, length, 16)
    flex_attention_with_span(q, q, q, pattern)
    (mask,) = made
    at = torch.arange(length)
    seen = torch.stack(
        [mask.mask_mod(torch.tensor(b), None, at[:, None], at) for b in range(len(positions))]
    )
    assert seen.sum() == sum(
        pattern.visible(slice(None), slice(None), pattern.lags(slice(None), slice(None))).sum(
            (1, 2)
        )
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
