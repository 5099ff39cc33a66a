"""A copy head: attention to the tokens so far, which proposes what came after similar ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.models.short_conv import ShortConvolution
from musicgen.position.base import at_least_fp32
from musicgen.validation import check_choice, check_int

_SCALE = 15.0  # of the cosines in the logits
_BIAS_SCALE = 75.0  # the lag bias needs so many times the learning rate of the others
_NUM_TAPS, _TOKEN_DIM = 16, 32  # tokens that a key sees itself, and the width of their embedding
_BLOCK = 256  # queries at a time
_HIDDEN = -1e30  # logit of a key that a query does not see
_EMPTY = -(1 << 30)  # index of a slot without a token


class Keys(NamedTuple):
    """Tokens that may be copied from, in any order."""

    k: Tensor  # [B, H, N, K]
    successors: Tensor  # [B, N], the id of the token after each
    indices: Tensor  # [B, N], of the token in its row
    bars: Tensor  # [B, N]


class CopyState(NamedTuple):
    """The last W tokens of each row, at the slots index % W, and what a convolution keeps."""

    keys: Keys
    embedded: Tensor  # [B, taps − 1, _TOKEN_DIM]

    def tensors(self) -> list[Tensor]:
        """Return the tensors, in which row b is sequence b."""
        return [*self.keys, self.embedded]

    def select(self, rows: Tensor) -> CopyState:
        """Return the states of the given rows, which may repeat."""
        return CopyState(Keys(*(x[rows] for x in self.keys)), self.embedded[rows])

    @staticmethod
    def cat(states: list[CopyState]) -> CopyState:
        """Concatenate the rows of several states."""
        *keys, embedded = map(torch.cat, zip(*(s.tensors() for s in states), strict=True))
        return CopyState(Keys(*keys), embedded)


class CopyHead(nn.Module):
    """Mix the model's distribution with those of heads that copy what followed earlier tokens.

    p = g_0 p_model + Σ_h g_h Σ_j a_hj [token j + 1], with a_h = softmax_j(15 q̂_h·k̂_hj + b_h[lag])
    over the last tokens: a pointer network (Merity et al. 2017; See et al. 2017) with a bias by the
    lag in bars. Queries and keys see the last layer's output and the last 16 tokens themselves; the
    gates g also see how well keys match, log Σ_j exp(logit), and how many there are.

    Args:
        dim: model width D.
        heads: H.
        width: K of a query or key.
        window: W, tokens that can be copied from; the size of the state.
        max_lag: bars that one can copy from, before its own.
        coordinate: `bar`; or `index`, for tokens without bars: the window then has `max_lag` equal
            parts in place of bars.
    """

    def __init__(
        self,
        dim: int,
        vocab_size: int,
        *,
        heads: int = 2,
        width: int = 48,
        window: int = 2048,
        max_lag: int = 32,
        coordinate: str = "bar",
    ) -> None:
        super().__init__()
        check_int("heads", heads)
        check_int("width", width)
        check_int("window", window)
        check_int("max_lag", max_lag)
        check_choice("coordinate", coordinate, ("bar", "index"))
        self.heads, self.window, self.coordinate = heads, window, coordinate
        self.tokens_per_bar = -(-window // max_lag) if coordinate == "index" else 1
        self.embedding = nn.Embedding(vocab_size, _TOKEN_DIM)
        self.conv = ShortConvolution(_TOKEN_DIM, _NUM_TAPS)
        nn.init.normal_(self.conv.weight, std=0.25)  # keys tell contexts apart from the beginning
        self.sizes = (heads * width, heads * width, 1 + heads)
        self.projection = nn.Linear(dim + _TOKEN_DIM, sum(self.sizes))
        self.scaled_lag_bias = nn.Parameter(torch.zeros(heads, max_lag + 1))
        self.match_weight = nn.Parameter(torch.zeros(2, heads))

    @property
    def lag_bias(self) -> Tensor:
        """b, by lag in bars: [H, max_lag + 1]."""
        return _BIAS_SCALE * self.scaled_lag_bias

    def forward(
        self,
        logits: Tensor,
        x: Tensor,
        tokens: Tensor,
        bars: Tensor,
        start: Tensor,
        *,
        targets: Tensor | None = None,
        key_mask: Tensor | None = None,
        state: CopyState | None = None,
        return_state: bool = False,
        overwrite: bool = False,
    ) -> tuple[Tensor, CopyState | None]:
        """Return log p of the tokens after the last N ones, [B, N, V], and the state or None.

        Args:
            logits: the model's own [B, N, V].
            x: the last layer's output [B, L, D].
            tokens: ids [B, L].
            bars: the coordinate [1|B, L].
            start: number of tokens before these: [B].
            targets: ids [B, N]; then only their log p is computed, [B, N].
            key_mask: [B, L], false at padding.
            state: that of the tokens before these.
            overwrite: reuse the memory of `state`; without gradients only.
        """
        put = Tensor.index_put_ if overwrite else Tensor.index_put
        with torch.autocast(x.device.type, enabled=False):
            x, logits = at_least_fp32(x, logits)
            length, num_queries = tokens.shape[1], logits.shape[1]
            before = None if state is None else state.embedded
            embedded, before = self.conv(self.embedding(tokens), key_mask, True, before)
            embedded = F.layer_norm(embedded, embedded.shape[-1:])
            projected = self.projection(torch.cat((x, embedded), dim=-1))
            q, k, gates = projected.split(self.sizes, dim=-1)
            q, k = (  # [B, L, H K] -> [B, H, L, K]
                F.normalize(y.unflatten(-1, (self.heads, -1)), dim=-1).transpose(1, 2)
                for y in (q, k)
            )
            index = torch.arange(length, device=x.device) + start[:, None]
            bars = (bars // self.tokens_per_bar).expand_as(index)
            seen = index if key_mask is None else index.masked_fill(~key_mask, _EMPTY)
            keys = new = Keys(k, F.pad(tokens[:, 1:], (0, 1)), seen, bars)
            ring = None
            if state is not None:
                rows, slot = self._slots(index[:, :1] - 1)
                successors = put(state.keys.successors, (rows, slot), tokens[:, :1])
                ring = state.keys._replace(successors=successors)
                keys = ring if length == 1 else _cat(ring, new)  # a token does not see itself
            outputs = []
            for i in range(0, num_queries, _BLOCK):
                block = slice(length - num_queries + i, length - num_queries + i + _BLOCK)
                near = keys
                if state is None:  # in order
                    near = _narrow(keys, max(0, block.start - self.window), block.stop)
                part = slice(i, i + _BLOCK)
                outputs.append(
                    self._mix(
                        q[:, :, block],
                        index[:, block],
                        bars[:, block],
                        gates[:, block],
                        logits[:, part],
                        None if targets is None else targets[:, part],
                        near,
                    )
                )
            after = None
            if return_state:
                after = CopyState(self._remember(ring, new, index, put), before)
            return torch.cat(outputs, dim=1), after

    def _mix(
        self,
        q: Tensor,
        index: Tensor,
        bars: Tensor,
        gates: Tensor,
        logits: Tensor,
        targets: Tensor | None,
        keys: Keys,
    ) -> Tensor:
        """Return log p of queries [B, H, N, K] at the tokens [B, N]: [B, N, V], or [B, N]."""
        num_lags = self.lag_bias.shape[1]
        indices, successors, of_keys = keys.indices[:, None], keys.successors[:, None], keys.bars
        visible = (
            (indices < index[..., None])
            & (indices >= index[..., None] - self.window)
            & (of_keys[:, None] > bars[..., None] - num_lags)
        )[:, None]  # [B, 1, N, keys]
        q, k = _SCALE * q, keys.k
        bias: Tensor | None = None
        if bars.shape[1] == 1 and targets is None:
            lag = (bars - of_keys).clamp(max=num_lags - 1)
            bias = self.lag_bias[:, lag].transpose(0, 1)[:, :, None]
        else:  # in products with one-hot vectors, as the gradient of indexing is slow
            residues = torch.arange(num_lags, device=bars.device)
            by_residue = self.lag_bias[:, (bars[..., None] - residues) % num_lags].transpose(0, 1)
            one_hot = (of_keys[..., None] % num_lags == residues).to(k.dtype)[:, None]
            q = torch.cat((q, by_residue.to(k.dtype)), dim=-1)
            k = torch.cat((k, one_hot.expand(-1, k.shape[1], -1, -1)), dim=-1)
        if targets is None:
            total, weights = _exponentials(q, k, bias, visible)
        else:
            matches = (successors == targets[..., None])[:, None]
            total, copied = _Lookup.apply(q, k, visible, matches)
        weight, per_count = self.match_weight
        count = index.clamp(min=1, max=self.window)[..., None].log()
        match = total.transpose(1, 2) * weight + count * per_count
        match = (gates[..., 1:] + match).masked_fill(~visible.any(-1).mT, -torch.inf)
        log_gates = torch.cat((gates[..., :1], match), dim=-1).log_softmax(-1)
        shares = log_gates[..., 1:].exp().transpose(1, 2)  # [B, H, N]
        if targets is None:
            weights = (shares[..., None] * weights).sum(1)
            copied = torch.zeros_like(logits).scatter_add(2, successors.expand_as(weights), weights)
            own = logits.log_softmax(-1) + log_gates[..., :1]
        else:
            copied = (shares * copied).sum(1)
            own = log_gates[..., 0] - F.cross_entropy(logits.mT, targets, reduction="none")
        return torch.logaddexp(own, copied.clamp(min=torch.finfo(copied.dtype).tiny).log())

    def _slots(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows and slots of the tokens [B, N]."""
        return torch.arange(len(index), device=index.device)[:, None], index % self.window

    def _remember(
        self, ring: Keys | None, new: Keys, index: Tensor, put: Callable[..., Tensor]
    ) -> Keys:
        """Return the last W tokens in their slots."""
        batch, heads, _, width = new.k.shape
        if ring is None:
            ring = Keys(
                new.k.new_zeros(batch, heads, self.window, width),
                *(new.indices.new_full((batch, self.window), x) for x in (0, _EMPTY, 0)),
            )
        new = _narrow(new, -self.window, None)
        rows, slots = self._slots(index[:, -self.window :])
        of_heads = torch.arange(heads, device=rows.device)[None, :, None]
        k = put(ring.k, (rows[..., None], of_heads, slots[:, None]), new.k)
        others = (put(old, (rows, slots), x) for old, x in zip(ring[1:], new[1:], strict=True))
        return Keys(k, *others)


def _exponentials(
    q: Tensor, k: Tensor, bias: Tensor | None, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log Σ_j exp(q·k_j + bias) of visible keys, [B, H, N], and their softmax."""
    scores = q @ k.mT
    scores = (scores if bias is None else scores + bias).masked_fill(~visible, _HIDDEN)
    highest = scores.amax(-1, keepdim=True).detach()
    weights = (scores - highest).exp()
    total = weights.sum(-1, keepdim=True)
    return (total.log() + highest).squeeze(-1), weights / total


class _Lookup(torch.autograd.Function):
    """The first result of `_exponentials`, and the weight of the keys that match: [B, H, N].

    The backward pass computes the weights again, so that nothing of size N × W is kept but masks.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, visible: Tensor, matches: Tensor
    ) -> tuple[Tensor, Tensor]:
        total, weights = _exponentials(q, k, None, visible)
        matching = (weights * matches).sum(-1)
        ctx.save_for_backward(q, k, visible, matches, matching)
        return total, matching

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, visible, matches, matching = ctx.saved_tensors
        of_total, of_matching = (gradient[..., None] for gradient in gradients)
        _, weights = _exponentials(q, k, None, visible)
        others = of_total - of_matching * matching[..., None]
        scores = weights * torch.where(matches, others + of_matching, others)
        return scores @ k, scores.mT @ q, None, None


def _narrow(keys: Keys, start: int | None, stop: int | None) -> Keys:
    return Keys(keys.k[:, :, start:stop], *(x[:, start:stop] for x in keys[1:]))


def _cat(a: Keys, b: Keys) -> Keys:
    others = (torch.cat(pair, dim=1) for pair in zip(a[1:], b[1:], strict=True))
    return Keys(torch.cat((a.k, b.k), dim=2), *others)
