"""A copy head: attention to the tokens so far, which proposes what came after similar ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.models.copy_state import EMPTY, LONGEST_MATCH, CopySettings, CopyState
from musicgen.models.short_conv import ShortConvolution
from musicgen.position.base import at_least_fp32
from musicgen.validation import check_choice, check_int

_SCALE = 15.0  # of the cosines in the logits
_NUM_TAPS, _TOKEN_DIM = 16, 32  # tokens that a key sees itself, and the width of their embedding
# A match of 1, 2, 4, … 128 tokens has level 1, 2, 3, … 8, and no match has level 0.
_NUM_LEVELS = LONGEST_MATCH.bit_length()
_BLOCK = 256  # queries at a time
_HIDDEN = -1e30  # logit of a key that a query does not see


class CopyHead(nn.Module):
    """Mix the model's distribution with those of heads that copy what followed earlier tokens.

    p = g_0 p_model + Σ_h g_h Σ_j a_hj [token j + 1], with
    a_h = softmax_j(15 q̂_h·k̂_hj + b_h[lag] + c_h[match]) over the last tokens: a pointer network
    (Merity et al. 2017; See et al. 2017) with a bias by the lag in bars. Queries and keys see the
    last layer's output and the last 16 tokens themselves; the gates g also see how well keys match,
    log Σ_j exp(logit), and how many there are, and both see matches: the longer what is behind a
    key agrees with what is behind the query, the larger its c, and so are the gates for the longest
    match. In decoding, `CopySettings` weigh the copies.

    Args:
        dim: model width D.
        heads: H.
        width: K of a query or key.
        window: W, tokens that can be copied from; the size of the state.
        max_lag: bars that one can copy from, before its own; not later ones, of voices that lead.
        coordinate: `bar`, or `index` for tokens without bars: the window has `max_lag` equal parts.
        classes: of each token, [V]: those of one class are the same in a match; None: only equals.
    """

    lr_factors: ClassVar = {"lag_bias": 75.0, "match_steps": 40.0, "gate_steps": 40.0}
    """Factors of the learning rate of parameters, which `parameter_groups` reads."""

    classes: Tensor  # [V]
    levels: Tensor  # of matches of 0, 1, 2, … 128 tokens: 0, 1, 2, 2, 3, …

    def __init__(
        self,
        dim: int,
        vocab_size: int,
        *,
        heads: int = 2,
        width: int = 24,
        window: int = 2048,
        max_lag: int = 32,
        coordinate: str = "bar",
        classes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_int("heads", heads)
        check_int("width", width)
        check_int("window", window)
        check_int("max_lag", max_lag)
        check_choice("coordinate", coordinate, ("bar", "index"))
        self.heads, self.window, self.max_lag, self.coordinate = heads, window, max_lag, coordinate
        self.tokens_per_bar = -(-window // max_lag) if coordinate == "index" else 1
        self.embedding = nn.Embedding(vocab_size, _TOKEN_DIM)
        self.conv = ShortConvolution(_TOKEN_DIM, _NUM_TAPS)
        nn.init.normal_(self.conv.weight, std=0.25)  # keys tell contexts apart from the beginning
        self.sizes = (heads * width, heads * width, 1 + heads)
        self.projection = nn.Linear(dim + _TOKEN_DIM, sum(self.sizes))
        self.lag_bias = nn.Parameter(torch.zeros(heads, max_lag + 1))  # b, by lag in bars
        self.match_weight = nn.Parameter(torch.zeros(2, heads))
        self.match_steps = nn.Parameter(torch.full((heads, _NUM_LEVELS), 2.0))
        self.gate_steps = nn.Parameter(torch.tensor(heads * [[-5.0, *_NUM_LEVELS * [1.0]]]))
        classes = range(vocab_size) if classes is None else classes
        self.register_buffer("classes", torch.tensor([*classes]), persistent=False)
        levels = [length.bit_length() for length in range(LONGEST_MATCH + 1)]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)

    @property
    def match_bias(self) -> Tensor:
        """c, by the level of a match: [H, levels + 1]."""
        return at_least_fp32(F.pad(self.match_steps, (1, 0)))[0].cumsum(-1)

    def settings(self, batch: int) -> CopySettings:
        """Return the settings that change nothing, for so many sequences, on the CPU."""
        return CopySettings(torch.zeros(batch, self.max_lag + 1), torch.ones(batch, 1))

    def forward(  # noqa: PLR0913
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
        settings: CopySettings | None = None,
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
            targets: ids [B, N] after whole sequences; then the log-probabilities of these alone are
                computed, of the mixture and of the model without copies: [2, B, N].
            key_mask: [B, L], false at padding.
            state: that of the tokens before these.
            settings: with a state; None: every lag bias is 0 and every temperature 1.
            overwrite: reuse the memory of `state`; without gradients only.
        """
        with torch.autocast(x.device.type, enabled=False):
            before = None if state is None else state.embedded
            embedded, before = self.conv(self.embedding(tokens), key_mask, True, before)
            embedded = F.layer_norm(embedded, embedded.shape[-1:])
            seen = torch.cat((x, embedded), dim=-1).to(self.projection.weight.dtype)
            logits, projected = at_least_fp32(logits, self.projection(seen))
            qk, gates = projected.split((2 * self.sizes[0], self.sizes[2]), dim=-1)
            qk = F.normalize(qk.unflatten(-1, (2 * self.heads, -1)), dim=-1)
            q, k = qk.transpose(1, 2).chunk(2, dim=1)  # [B, H, L, K]
            k = _SCALE * k  # not q: ONNX Runtime fuses a scaled query into a slow product
            if self.tokens_per_bar > 1:
                bars = bars // self.tokens_per_bar
            bars = bars.expand(tokens.shape[0], -1)
            key_bars = bars if key_mask is None else bars.masked_fill(~key_mask, EMPTY)
            classes = self.classes[tokens]
            if state is None:
                inputs = q, k, gates, logits, tokens, classes, bars, key_bars, targets
                log_p = self._parallel(*inputs)
                after = self._ring(k, tokens, classes, key_bars, before) if return_state else None
                return log_p, after
            state, outputs = state._replace(embedded=before), []
            first = tokens.shape[1] - logits.shape[1]
            for i in range(tokens.shape[1]):
                state = state.write(tokens[:, i], start + i, overwrite=overwrite)
                same = _look_up(self.classes, state.successors) == classes[:, i, None]
                state = state.match(same, start + i)
                if i >= first:
                    one, own = slice(i, i + 1), logits[:, i - first, None]
                    parts = q[:, :, one], gates[:, one], own, bars[:, one]
                    outputs.append(self._step(*parts, (start + i)[:, None], state, settings))
                state = state._replace(last_key=k[:, :, i], last_bar=key_bars[:, i])
            return torch.cat(outputs, dim=1), state

    def _parallel(
        self,
        q: Tensor,
        k: Tensor,
        gates: Tensor,
        logits: Tensor,
        tokens: Tensor,
        classes: Tensor,
        bars: Tensor,
        key_bars: Tensor,
        targets: Tensor | None,
    ) -> Tensor:
        """Compute log p of the last tokens of whole sequences, in blocks of queries."""
        length, num_queries = tokens.shape[1], logits.shape[1]
        num_lags = self.max_lag + 1
        index = torch.arange(length, device=q.device)
        successors = F.pad(tokens[:, 1:], (0, 1))[:, None]
        # The bias in products with one-hot vectors, as the gradient of indexing is slow.
        residues = torch.arange(num_lags, device=q.device)
        bias = self.lag_bias[:, (bars[..., None] - residues) % num_lags].transpose(0, 1)
        one_hot = (key_bars[:, None, :, None] % num_lags == residues).to(k.dtype)
        q = torch.cat((q, bias.to(q.dtype)), dim=-1)
        k = torch.cat((k, one_hot.expand(-1, self.heads, -1, -1)), dim=-1)
        outputs = []
        for first in range(length - num_queries, length, _BLOCK):
            block = slice(first, min(first + _BLOCK, length))
            near = slice(max(0, first - self.window), block.stop)
            rows = slice(first - length + num_queries, block.stop - length + num_queries)
            behind = index[block, None] - index[near]
            key_bar, bar = key_bars[:, None, near], bars[:, block, None]
            visible = (behind >= 1) & (behind <= self.window)
            visible = visible & (key_bar <= bar) & (key_bar > bar - num_lags)
            levels = _match_levels(classes, block, near).masked_fill(behind == self.window, 0)
            longest = levels.masked_fill(~visible, 0).amax(-1).int()  # [B, N]
            pairs = levels.nonzero().T
            one_hot = F.one_hot(levels[*pairs].long(), _NUM_LEVELS + 1).to(k.dtype)
            match_scores = self.match_bias @ one_hot.T
            arguments = q[:, :, block], k[:, :, near], visible[:, None], match_scores, pairs
            if targets is None:
                total, weights = _attend(*arguments)
            else:
                matches = successors[..., near] == targets[:, rows, None]
                total, copied = _Lookup.apply(matches[:, None], *arguments)
            log_gates = self._log_gates(gates[:, block], total, index[block], longest)
            shares = log_gates[..., 1:].exp().transpose(1, 2)
            if targets is None:
                weights = (shares[..., None] * weights).sum(1)
                outputs.append(_mix(log_gates, logits[:, rows], weights, successors[..., near]))
            else:
                own = -F.cross_entropy(logits[:, rows].mT, targets[:, rows], reduction="none")
                copied = (shares * copied).sum(1)
                mixed = torch.logaddexp(log_gates[..., 0] + own, _log(copied))
                outputs.append(torch.stack((mixed, own), dim=-1))
        log_p = torch.cat(outputs, dim=1)
        return log_p if targets is None else log_p.movedim(-1, 0)

    def _step(
        self,
        q: Tensor,
        gates: Tensor,
        logits: Tensor,
        bars: Tensor,
        index: Tensor,
        state: CopyState,
        settings: CopySettings | None,
    ) -> Tensor:
        """Compute log p [B, 1, V] of queries [B, H, 1, K] at the tokens [B, 1]; they see a ring."""
        # [B, W]; of keys which are not seen, in later bars or too far back: max_lag + 1
        lag = (bars - state.bars).clamp(-1, self.max_lag + 1) % (self.max_lag + 2)
        bias = F.pad(self.lag_bias, (0, 1), value=_HIDDEN)
        seen = state.matches * (lag <= self.max_lag)
        longest = self.levels[seen.amax(-1, keepdim=True)]
        match_scores = self.match_bias[:, self.levels]
        scores = (q @ state.keys.mT).squeeze(2) + _look_up(bias, lag[:, None])
        scores = scores + _look_up(match_scores, state.matches[:, None])
        total, weights = _softmax(scores)
        log_gates = self._log_gates(gates, total[..., None], index, longest)
        weights = log_gates[..., 1:].exp() @ weights
        successors = state.successors[:, None]
        if settings is None:
            return _mix(log_gates, logits, weights, successors)
        weights = weights * F.pad(settings.lag_bias, (0, 1)).exp().gather(1, lag)[:, None]
        total = (log_gates[..., :1].exp() + weights.sum(-1, keepdim=True)).log()
        logits = logits / settings.temperature[..., None]
        return _mix(log_gates, logits, weights, successors) - total

    def _log_gates(self, gates: Tensor, total: Tensor, index: Tensor, longest: Tensor) -> Tensor:
        """Return log g [B, N, 1 + H] of `projected` gates, totals [B, H, N], indices and levels."""
        weight, per_count = self.match_weight
        total = total.transpose(1, 2)
        count = index.clamp(min=1, max=self.window)[..., None].log()
        gains = self.gate_steps.cumsum(-1).T[longest]  # by the level of the longest match
        match = gates[..., 1:] + total * weight + count * per_count + gains
        match = match.masked_fill(total < 0.5 * _HIDDEN, -torch.inf)  # there is no key
        return torch.cat((gates[..., :1], match), dim=-1).log_softmax(-1)

    def _ring(
        self, k: Tensor, tokens: Tensor, classes: Tensor, bars: Tensor, embedded: Tensor
    ) -> CopyState:
        """Return the ring after whole sequences."""
        batch, heads, length, width = k.shape
        kept = torch.arange(max(1, length - self.window), length, device=k.device)
        slots = kept % self.window
        keys = k.new_zeros(batch, heads, self.window, width).index_copy(2, slots, k[:, :, kept - 1])
        empty = tokens.new_full((batch, self.window), EMPTY)
        ring = empty.index_copy(1, slots, bars[:, kept - 1])
        last_tokens = torch.arange(max(0, length - self.window), length, device=k.device)
        successors = torch.zeros_like(empty)
        successors = successors.index_copy(1, last_tokens % self.window, tokens[:, last_tokens])
        ends = F.pad(classes, (LONGEST_MATCH - 1, 0), value=-1).unfold(1, LONGEST_MATCH, 1)
        lengths = (ends == ends[:, -1:]).flip(-1).cumprod(-1).sum(-1)  # [B, L]
        matches = torch.zeros_like(empty).index_copy(1, slots, lengths[:, kept - 1])
        last_key, last_bar = k[:, :, -1].clone(), bars[:, -1].clone()
        return CopyState(keys, ring, successors, last_key, last_bar, embedded, matches)


def _match_levels(classes: Tensor, queries: slice, keys: slice) -> Tensor:
    """Return the levels of the matches between queries and keys, [B, N, W], of classes [B, L]."""
    reach = LONGEST_MATCH - 1
    query_classes, key_classes = (
        F.pad(classes, (reach, 0), value=value)[:, part.start : part.stop + reach]
        for part, value in ((queries, -1), (keys, -2))  # nothing is the same before the first token
    )
    same = query_classes[:, :, None] == key_classes[:, None]
    levels = torch.zeros_like(same[:, reach:, reach:], dtype=torch.uint8)
    for level in range(_NUM_LEVELS):
        if level > 0:
            half = 1 << (level - 1)
            same = same[:, half:, half:] & same[:, :-half, :-half]
        first = reach + 1 - (1 << level)
        levels += same[:, first:, first:]
    return levels


def _look_up(table: Tensor, index: Tensor) -> Tensor:
    """Return the values [B, ..., W] of a table [..., N] at indices [B, ..., W], by one operation.

    ONNX Runtime is ten times slower at table[..., index].
    """
    shape = index.shape[0], *table.shape
    return table.expand(shape).gather(-1, index.expand(*shape[:-1], -1))


def _attend(
    q: Tensor, k: Tensor, visible: Tensor, bias: Tensor, pairs: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log Σ_j exp(q·k_j + bias) over visible keys, [B, H, N], and their softmax.

    The bias [H, n] is that of n pairs (row of the batch, query, key) [3, n], as few match.
    """
    scores = q @ k.mT
    scores.transpose(0, 1)[:, *pairs] += bias
    return _softmax(scores.masked_fill_(~visible, _HIDDEN))


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return log Σ_j exp(score_j) and the softmax."""
    weights = scores.softmax(-1)
    return scores.amax(-1) - weights.amax(-1).log(), weights


class _Lookup(torch.autograd.Function):
    """The total of `_attend`, and the weight of the keys that match: [B, H, N] each.

    The backward pass computes the weights again, so that nothing of size N × W is kept but masks.
    """

    @staticmethod
    def forward(ctx: Any, matches: Tensor, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        total, weights = _attend(*arguments)
        matching = (weights * matches).sum(-1)
        ctx.save_for_backward(matching, matches, *arguments)
        return total, matching

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        matching, matches, q, k, visible, bias, pairs = ctx.saved_tensors
        grad_total, grad_matching = (gradient[..., None] for gradient in gradients)
        _, weights = _attend(q, k, visible, bias, pairs)
        others = grad_total - grad_matching * matching[..., None]
        scores = weights * torch.where(matches, others + grad_matching, others)
        grad_bias = scores.transpose(0, 1)[:, *pairs]
        return None, scores @ k, scores.mT @ q, None, grad_bias, None


def _mix(log_gates: Tensor, logits: Tensor, weights: Tensor, successors: Tensor) -> Tensor:
    """Return log p [B, N, V] from logits and the weights [B, N, keys] of the keys' successors."""
    copied = torch.zeros_like(logits).scatter_add(2, successors.expand_as(weights), weights)
    return torch.logaddexp(logits.log_softmax(-1) + log_gates[..., :1], _log(copied))


def _log(p: Tensor) -> Tensor:
    return p.clamp(min=torch.finfo(p.dtype).tiny).log()
