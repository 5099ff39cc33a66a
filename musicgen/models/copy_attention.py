"""Attention of a copy head to earlier tokens: scores, matches, mixture with copies, state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

HIDDEN = -1e30  # score of a key that a query does not see
LONGEST_MATCH = 128  # tokens
# A match of 1, 2, 4, … 128 tokens has level 1, 2, 3, … 8. Without a match, the level is 0.
NUM_LEVELS = LONGEST_MATCH.bit_length()
EMPTY = -(1 << 30)  # bar of a slot without a token


class CopySettings(NamedTuple):
    """Settings of a copy head in a decoding step, per sequence of a batch.

    The weight of each copied token, g_h a_hj in `CopyHead`, is multiplied by exp(lag bias). The
    temperature divides only the logits of the model without copies. If it also applied to copies,
    likely copies would become even more likely, and the music would loop.
    """

    lag_bias: Tensor  # [B, max_lag + 1], in nats, by the lag in bars
    temperature: Tensor  # [B, 1]


class CopyState(NamedTuple):
    """State of a copy head: a ring buffer of W keys, and the key of the last token.

    Slot n % W has token n as the successor, and the key and the bar of token n − 1.
    """

    keys: Tensor  # [B, H, W, K]
    bars: Tensor  # [B, W]; EMPTY where there is no token
    successors: Tensor  # [B, W], ids
    last_key: Tensor  # [B, H, K], key of the last token, whose successor is not known yet
    last_bar: Tensor  # [B], its bar
    embedded: Tensor  # [B, taps − 1, width], embeddings of the last tokens, for the convolution
    matches: Tensor  # [B, W], number of tokens up to the key that agree with the last ones, ≤ 128

    def write(self, tokens: Tensor, index: Tensor, *, overwrite: bool = True) -> CopyState:
        """Return the state with one more token per sequence as the successor of the last key.

        Args:
            tokens: ids [B].
            index: number of tokens before them [B].
            overwrite: write into this ring buffer; else into a copy.
        """
        sequences = torch.arange(len(tokens), device=tokens.device)
        slots = sequences, index % self.bars.shape[1]
        put = Tensor.index_put_ if overwrite else Tensor.index_put
        return self._replace(
            keys=put(self.keys.transpose(1, 2), slots, self.last_key).transpose(1, 2),
            bars=put(self.bars, slots, self.last_bar),
            successors=put(self.successors, slots, tokens),
        )

    def match(self, same: Tensor, index: Tensor) -> CopyState:
        """Return the state with `matches` updated for one more token per sequence.

        A key's match is one longer than the match of the key before it, or 0 if its token differs
        from the new one. For the oldest key it is 0, as the slot before it has the newest token.

        Args:
            same: whether each successor has the class of the new token, [B, W].
            index: number of tokens before the new ones [B].
        """
        slots = torch.arange(self.bars.shape[1], device=index.device)
        newest = index[:, None] % (slots[-1:] + 1)  # by a tensor, which ONNX needs
        same = same & (slots != newest)
        before = self.matches * (self.bars != EMPTY)
        matches = (before + 1).clamp(max=LONGEST_MATCH) * same
        return self._replace(matches=torch.cat((matches[:, -1:], matches[:, :-1]), dim=1))


class Block(NamedTuple):
    """Queries of a block, and the keys up to the last of them."""

    queries: slice
    keys: slice
    kinds: Tensor  # [B, N, keys], of each pair; indices into a table of biases
    longest: Tensor  # [B, N], level of each query's longest match


def match_levels(classes: Tensor, queries: slice, keys: slice) -> Tensor:
    """Return the level of the match between each query and key: classes [B, L] -> [B, N, keys]."""
    reach = LONGEST_MATCH
    query_classes, key_classes = (
        F.pad(classes, (reach, 0), value=value)[:, part.start : part.stop + reach]
        for part, value in ((queries, -1), (keys, -2))  # unequal: no match before the first token
    )
    batch, rows, columns = len(classes), queries.stop - queries.start, key_classes.shape[1]
    other = unequal(query_classes[:, :, None], key_classes[:, None]).to(torch.uint8).flatten(1)
    levels = other.new_full((batch, rows * columns), NUM_LEVELS)
    for level in range(NUM_LEVELS):
        if level > 0:  # shifted as a flat array: what comes from another row is in the padding
            shift = (1 << (level - 1)) * (columns + 1)
            other = other[:, shift:] | other[:, :-shift]
        levels -= other[:, -rows * columns :]
    return levels.view(batch, rows, columns)[..., reach:]


def unequal(a: Tensor, b: Tensor) -> Tensor:
    """Return 0 where integers are equal, else 1. On CPUs a comparison takes three times as long."""
    return (a - b).abs_().clamp_(max=1)


def gather_values(table: Tensor, index: Tensor) -> Tensor:
    """Return the values of a table [..., N] at indices [B, ..., W]: [B, ..., W].

    `gather` is one operation in ONNX Runtime and ten times as fast there as table[..., index].
    """
    shape = index.shape[0], *table.shape
    return table.expand(shape).gather(-1, index.expand(*shape[:-1], -1))


def attend(q: Tensor, k: Tensor, bias: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
    """Return log Σ_j exp(q·k_j + bias_j), [H, B, N], and the softmax over keys [H, B, N, keys].

    Args:
        q, k: [H, B, N, K] and [H, B, keys, K].
        bias: of each kind of pair, [H, kinds].
        kinds: of the pairs, [B, N, keys].
    """
    scores = bias.index_select(1, kinds.flatten()).view(-1, *kinds.shape[1:])
    scores.baddbmm_(q.flatten(0, 1), k.flatten(0, 1).mT)
    return total_and_softmax(scores.view(-1, *kinds.shape))


def total_and_softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return log Σ_j exp(score_j), [...], and the softmax of scores [..., keys]."""
    weights = scores.softmax(-1)
    return scores.amax(-1) - weights.amax(-1).log(), weights


class AttendToTargets(torch.autograd.Function):
    """log Σ_j exp(score_j) of `attend`, and the weight of keys that propose the target.

    The weights are kept for the backward pass, as to compute them again takes longer.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        bias: Tensor,
        targets: Tensor,
        successors: Tensor,
        blocks: Iterable[Block],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return both [H, B, N], and the levels of the longest matches [B, N].

        Args:
            q, k: of the last N tokens [H, B, N, K], and of all [H, B, L, K].
            bias: as in `attend`.
            targets: [B, N].
            successors: tokens that keys propose, [B, L].
            blocks: of all queries.
        """
        ctx.kept, totals, copied, longest = [], [], [], []
        targets, successors = targets.to(q.dtype), successors.to(q.dtype)
        first = k.shape[2] - q.shape[2]
        for block in blocks:
            queries = slice(block.queries.start - first, block.queries.stop - first)
            total, weights = attend(q[:, :, queries], k[:, :, block.keys], bias, block.kinds)
            others = unequal(targets[:, queries, None], successors[:, None, block.keys])
            matches = others.neg_().add_(1)
            if any(ctx.needs_input_grad):
                ctx.kept.append((queries, block.keys, block.kinds, matches, weights))
            totals.append(total)
            copied.append((weights * matches).sum(-1))
            longest.append(block.longest)
        outputs = torch.cat(totals, -1), torch.cat(copied, -1), torch.cat(longest, -1)
        ctx.mark_non_differentiable(outputs[2])
        ctx.save_for_backward(q, k, bias, outputs[1])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, bias, copied = ctx.saved_tensors
        of_total, of_copied = gradients[:2]
        of_others = (of_total - of_copied * copied)[..., None]
        of_matches = of_copied[..., None]
        grad_q, grad_k, grad_bias = (torch.zeros_like(x) for x in (q, k, bias))
        for queries, keys, kinds, matches, weights in ctx.kept:
            scores = matches * of_matches[:, :, queries]
            scores = scores.add_(of_others[:, :, queries]).mul_(weights)
            grad_q[:, :, queries] = scores @ k[:, :, keys]
            grad_k[:, :, keys] += scores.mT @ q[:, :, queries]
            for grad, of_head in zip(grad_bias, scores.flatten(1), strict=True):
                grad += kinds.flatten().bincount(of_head, minlength=len(grad))
        return grad_q, grad_k, grad_bias, None, None, None


def mix_with_copies(
    log_gates: Tensor, logits: Tensor, weights: Tensor, successors: Tensor
) -> Tensor:
    """Return log p of the mixture: [B, N, V].

    Args:
        log_gates: logarithms of the gates [B, N, 1 + H]; only the first, of the model, is used.
        logits: [B, N, V].
        weights: weights of copies, multiplied by their gates, [B, N, keys].
        successors: the tokens that keys propose, [B, 1, keys].
    """
    copied = torch.zeros_like(logits).scatter_add(2, successors.expand_as(weights), weights)
    return torch.logaddexp(logits.log_softmax(-1) + log_gates[..., :1], log_clamped(copied))


def log_clamped(p: Tensor) -> Tensor:
    return p.clamp(min=torch.finfo(p.dtype).tiny).log()
