"""A copy head: attention over earlier tokens, which proposes the tokens that followed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.errors import parameter_of
from musicgen.models.copy_attention import (
    EMPTY,
    HIDDEN,
    LONGEST_MATCH,
    NUM_LEVELS,
    AttendToTargets,
    Block,
    CopySettings,
    CopyState,
    attend,
    gather_values,
    log_clamped,
    match_levels,
    mix_with_copies,
    total_and_softmax,
    unequal,
)
from musicgen.models.layer import ShortConvolution
from musicgen.position.base import at_least_fp32
from musicgen.validation import check_choice, check_int, check_settings

_SCALE = 15.0  # factor on the cosine of query and key in the scores
_NUM_TAPS = 16  # tokens in the short convolution over token embeddings
_TOKEN_DIM = 32  # width of these embeddings
_BLOCK = 128  # queries in a block
_ROWS = 4  # of each bias; gradients that are added to one row one after another would be slow


class CopyHead(nn.Module):
    """Mixes the model's distribution with copies of tokens that followed similar earlier ones.

    It is a pointer network (Merity et al. 2017; See et al. 2017) with a bias by the lag in bars:

        p = g_0 p_model + Σ_h g_h Σ_j a_hj [token j + 1]
        a_h = softmax_j(15 q̂_h·k̂_hj + b_h[lag] + c_h[match])

    Key j proposes its successor, token j + 1. Queries and keys are computed from the output of the
    last layer and from the last 16 tokens. A match is the number of tokens up to the key that agree
    with the tokens up to the query. c grows with the match. The gates g are computed from the same
    inputs, and from the longest match, log Σ_j exp(score) and the number of keys.

    In decoding, `CopySettings` change the weights of copies.

    Args:
        dim: model width D.
        vocab_size: V.
        heads: number of heads H.
        width: width K of queries and keys.
        window: W, number of earlier tokens that can be copied; the size of the state.
        max_lag: largest lag of a copy, in bars. Later bars are never copied, although one voice may
            be written ahead of another.
        coordinate: `bar`; or `index` for tokens without bars, with `max_lag` equal parts of the
            window instead of bars.
        classes: the class of each token [V]. Tokens of one class count as equal in a match. None:
            each token is its own class.
    """

    lr_factors: ClassVar = {"lag_bias": 75.0, "match_steps": 40.0, "gate_steps": 40.0}
    """Factors on the learning rate of these parameters; `parameter_groups` reads them."""

    classes: Tensor  # [V]
    levels: Tensor  # [129], levels of matches of 0, 1, 2, 3, … 128 tokens: 0, 1, 2, 2, 3, …

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
        nn.init.normal_(self.conv.weight, std=0.25)  # not 0: keys of different contexts differ
        self.sizes = (heads * width, heads * width, 1 + heads)  # of queries, keys and gates
        self.projection = nn.Linear(dim + _TOKEN_DIM, sum(self.sizes))
        self.lag_bias = nn.Parameter(torch.zeros(heads, max_lag + 1))  # b, by the lag in bars
        self.match_weight = nn.Parameter(torch.zeros(2, heads))
        # Differences of c and of the gates' bias from one level to the next.
        self.match_steps = nn.Parameter(torch.full((heads, NUM_LEVELS), 2.0))
        self.gate_steps = nn.Parameter(torch.tensor(heads * [[-5.0, *NUM_LEVELS * [1.0]]]))
        classes = range(vocab_size) if classes is None else classes
        self.register_buffer("classes", torch.tensor([*classes]), persistent=False)
        levels = [length.bit_length() for length in range(LONGEST_MATCH + 1)]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)

    @property
    def match_bias(self) -> Tensor:
        """Biases c by the level of a match: [H, levels + 1]."""
        return at_least_fp32(F.pad(self.match_steps, (1, 0)))[0].cumsum(-1)

    def settings(self, batch: int) -> CopySettings:
        """Return neutral settings for a batch of this size, on the CPU."""
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
        """Return log p of the tokens that follow each of the last N tokens, and the state.

        Args:
            logits: logits of the model without copies [B, N, V].
            x: output of the last layer [B, L, D].
            tokens: ids [B, L].
            bars: the coordinate [1|B, L].
            start: number of tokens before these [B].
            targets: ids [B, N] of the next tokens, without a state. Only their log-probabilities
                are computed.
            key_mask: [B, L], false at padding.
            state: what an earlier call returned for the tokens before these.
            settings: used with a state; None: every lag bias is 0 and every temperature 1.
            return_state: also return the state after these tokens.
            overwrite: reuse the memory of `state`; without gradients only.

        Returns:
            log p [B, N, V]; with `targets` [2, B, N], for the mixture and for the model without
            copies. Then the state, or None without `return_state`.
        """
        with torch.autocast(x.device.type, enabled=False):
            before = None if state is None else state.embedded
            embedded, before = self.conv(self.embedding(tokens), key_mask, True, before)
            embedded = F.layer_norm(embedded, embedded.shape[-1:])
            features = torch.cat((x, embedded), dim=-1).to(self.projection.weight.dtype)
            logits, projected = at_least_fp32(logits, self.projection(features))
            qk, gates = projected.split((2 * self.sizes[0], self.sizes[2]), dim=-1)
            qk = F.normalize(qk.unflatten(-1, (2 * self.heads, -1)), dim=-1)
            q, k = qk.transpose(1, 2).chunk(2, dim=1)  # [B, H, L, K]
            k = _SCALE * k  # not q, as ONNX Runtime fuses a scaled query into a slow product
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
                same = gather_values(self.classes, state.successors) == classes[:, i, None]
                state = state.match(same, start + i)
                if i >= first:
                    output = self._step(
                        q[:, :, i : i + 1],
                        gates[:, i : i + 1],
                        logits[:, i - first, None],
                        bars[:, i : i + 1],
                        (start + i)[:, None],
                        state,
                        settings,
                    )
                    outputs.append(output)
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
        """Return log p for the last N tokens of whole sequences: [B, N, V], or [2, B, N].

        It is computed in blocks of queries. q and k are [B, H, L, K], gates [B, L, 1 + H] before
        they are normalised, `key_bars` [B, L] with `EMPTY` at padding; see `forward` for the rest.
        """
        length, first = tokens.shape[1], tokens.shape[1] - logits.shape[1]
        bias = self._biases().to(q.dtype)
        q, k = q[:, :, first:].transpose(0, 1), k.transpose(0, 1).contiguous()
        index = torch.arange(first, length, device=q.device)
        successors = F.pad(tokens[:, 1:], (0, 1))
        block_from = partial(self._block, classes.int(), bars.int(), key_bars.int())
        blocks = map(block_from, range(first, length, _BLOCK))
        if targets is not None:
            arguments = q.contiguous(), k, bias, targets, successors, blocks
            total, copied, longest = AttendToTargets.apply(*arguments)
            log_gates = self._log_gates(gates[:, first:], total.transpose(0, 1), index, longest)
            copied = (log_gates[..., 1:].exp() * copied.movedim(0, -1)).sum(-1)
            nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            without_copies = -nats.view_as(targets)
            mixed = torch.logaddexp(log_gates[..., 0] + without_copies, log_clamped(copied))
            return torch.stack((mixed, without_copies))
        outputs = []
        for block in blocks:
            queries = slice(block.queries.start - first, block.queries.stop - first)
            total, weights = attend(q[:, :, queries], k[:, :, block.keys], bias, block.kinds)
            total = total.transpose(0, 1)
            log_gates = self._log_gates(
                gates[:, block.queries], total, index[queries], block.longest
            )
            shares = log_gates[..., 1:].exp().movedim(-1, 0)
            weights = (shares[..., None] * weights).sum(0)
            proposed = successors[:, None, block.keys]
            outputs.append(mix_with_copies(log_gates, logits[:, queries], weights, proposed))
        return torch.cat(outputs, dim=1)

    def _biases(self) -> Tensor:
        """Return the bias b + c of each kind of pair: [H, kinds].

        A kind is a lag, a level and one of several equal rows. The first and the last lag are out
        of range: no key is visible.
        """
        lags = F.pad(self.lag_bias, (1, 1), value=HIDDEN)
        bias = (lags[..., None] + self.match_bias[:, None]).flatten(1)
        return bias.repeat_interleave(_ROWS, dim=1)

    def _block(self, classes: Tensor, bars: Tensor, key_bars: Tensor, start: int) -> Block:
        """Return the block of queries from `start`: classes, bars and key_bars [B, L], int32."""
        queries = slice(start, min(start + _BLOCK, classes.shape[1]))
        keys = slice(max(0, start - self.window), queries.stop)
        size, offset = queries.stop - start, start - keys.start
        levels = match_levels(classes, queries, keys)
        lags = (bars[:, queries, None] - key_bars[:, None, keys]).clamp_(-1, self.max_lag + 1)
        pairs = torch.ones(size, offset + size, dtype=torch.bool, device=bars.device)
        lags[..., offset:].masked_fill_(pairs[:, :size].triu(), -1)  # tokens from the query on
        if offset + size > self.window:  # tokens before the window
            far = pairs.tril(offset - self.window)
            levels.masked_fill_(far, 0)  # of the oldest key, too
            lags.masked_fill_(far.tril_(offset - self.window - 1), -1)
        levels = levels.int()
        hidden = unequal(lags, lags.clamp(0, self.max_lag))
        longest = levels.sub(hidden, alpha=NUM_LEVELS).amax(-1).clamp_(min=0)
        rows = torch.arange(levels.shape[-1], dtype=torch.int32, device=bars.device) % _ROWS
        kinds = lags.add_(1).mul_(NUM_LEVELS + 1).add_(levels).mul_(_ROWS).add_(rows)
        return Block(queries, keys, kinds, longest)

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
        """Return log p [B, 1, V] after one token.

        Args:
            q: query [B, H, 1, K].
            gates: [B, 1, 1 + H], before they are normalised.
            logits: [B, 1, V].
            bars, index: bar and index of the token, [B, 1] each.
            state: the keys up to this token.
            settings: None: every lag bias is 0 and every temperature 1.
        """
        # [B, W]; max_lag + 1 for keys that are not visible, in later bars or too far back
        lag = (bars - state.bars).clamp(-1, self.max_lag + 1) % (self.max_lag + 2)
        bias = F.pad(self.lag_bias, (0, 1), value=HIDDEN)
        visible_matches = state.matches * (lag <= self.max_lag)
        longest = self.levels[visible_matches.amax(-1, keepdim=True)]
        match_scores = self.match_bias[:, self.levels]
        scores = (q @ state.keys.mT).squeeze(2) + gather_values(bias, lag[:, None])
        scores = scores + gather_values(match_scores, state.matches[:, None])
        total, weights = total_and_softmax(scores)
        log_gates = self._log_gates(gates, total[..., None], index, longest)
        weights = log_gates[..., 1:].exp() @ weights
        successors = state.successors[:, None]
        if settings is None:
            return mix_with_copies(log_gates, logits, weights, successors)
        weights = weights * F.pad(settings.lag_bias, (0, 1)).exp().gather(1, lag)[:, None]
        total = (log_gates[..., :1].exp() + weights.sum(-1, keepdim=True)).log()
        logits = logits / settings.temperature[..., None]
        return mix_with_copies(log_gates, logits, weights, successors) - total

    def _log_gates(self, gates: Tensor, total: Tensor, index: Tensor, longest: Tensor) -> Tensor:
        """Return the logarithms of the gates g: [B, N, 1 + H].

        Args:
            gates: the projection's part [B, N, 1 + H].
            total: log Σ_j exp(score) of each head [B, H, N].
            index: token indices, [N] or [B, N].
            longest: level of the longest match [B, N].
        """
        total_weight, count_weight = self.match_weight
        total = total.transpose(1, 2)
        log_count = index.clamp(min=1, max=self.window)[..., None].log()
        level_bias = self.gate_steps.cumsum(-1).T[longest]
        heads = gates[..., 1:] + total * total_weight + log_count * count_weight + level_bias
        heads = heads.masked_fill(total < 0.5 * HIDDEN, -torch.inf)  # there is no key
        return torch.cat((gates[..., :1], heads), dim=-1).log_softmax(-1)

    def _ring(
        self, k: Tensor, tokens: Tensor, classes: Tensor, bars: Tensor, embedded: Tensor
    ) -> CopyState:
        """Return the state after whole sequences.

        Args:
            k: keys [B, H, L, K].
            tokens, classes, bars: [B, L].
            embedded: what the convolution needs for the next tokens, [B, taps − 1, _TOKEN_DIM].
        """
        batch, heads, length, width = k.shape
        successor_index = torch.arange(max(1, length - self.window), length, device=k.device)
        slots, key_index = successor_index % self.window, successor_index - 1
        keys = k.new_zeros(batch, heads, self.window, width).index_copy(
            2, slots, k[:, :, key_index]
        )
        empty = tokens.new_full((batch, self.window), EMPTY)
        key_bars = empty.index_copy(1, slots, bars[:, key_index])
        last_tokens = torch.arange(max(0, length - self.window), length, device=k.device)
        successors = torch.zeros_like(empty)
        successors = successors.index_copy(1, last_tokens % self.window, tokens[:, last_tokens])
        ends = F.pad(classes, (LONGEST_MATCH - 1, 0), value=-1).unfold(1, LONGEST_MATCH, 1)
        lengths = (ends == ends[:, -1:]).flip(-1).cumprod(-1).sum(-1)  # [B, L]
        matches = torch.zeros_like(empty).index_copy(1, slots, lengths[:, key_index])
        last_key, last_bar = k[:, :, -1].clone(), bars[:, -1].clone()
        return CopyState(keys, key_bars, successors, last_key, last_bar, embedded, matches)


def build_copy_head(
    settings: Mapping[str, Any], dim: int, vocab_size: int, classes: Sequence[int] | None
) -> CopyHead:
    """Return a copy head with the settings of `model.copy`; they are named if they are invalid."""
    build = partial(CopyHead, dim, vocab_size, classes=classes)
    check_settings("copy", settings, build)
    with parameter_of("copy"):
        return build(**settings)
