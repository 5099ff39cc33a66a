"""Logits processors: functions that change the model's logits before a token is drawn.

A processor takes the tokens so far, [B, L], and the logits of the next token, [B, V], and returns
new logits of the same shape. The sampler calls them one after another, each with the logits that
the one before it returned: first custom processors, then those of the sampling settings, such as
temperature and top_p. Before that, the grammar and the constraints have masked the tokens that may
not follow.

- A logit of −∞ excludes a token. At least one token of each sequence has a finite logit, and a
  processor must leave at least one.
- Sequences of a batch that are shorter than the longest are padded with PAD on the left.
- Logits are in fp64.

The functions here have further parameters, which `functools.partial` sets.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from musicgen.errors import ParameterError

Processor = Callable[[Tensor, Tensor], Tensor]
"""A logits processor: (tokens [B, L], logits [B, V]) -> logits [B, V]."""


class LogitsProcessor:
    """Base class of processors that keep a state per sequence, such as a running mean.

    The sampler calls `start` and `select` of its subclasses; they change the processor and return
    nothing. A processor without a state can be a plain function.
    """

    def start(self, batch: int) -> None:
        """Create the state of a new batch.

        Args:
            batch: the number of its sequences, B.
        """

    def select(self, index: Tensor) -> None:
        """Drop the states of sequences that have ended.

        Args:
            index: positions in the batch of the sequences that continue, in their order. [B']
        """

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Return the new logits.

        Args:
            tokens: prompt and generated tokens, padded on the left. [B, L]
            logits: of the next token. [B, V]

        Returns:
            The new logits. [B, V]
        """
        raise NotImplementedError


def process_checked(processor: Processor, tokens: Tensor, logits: Tensor) -> Tensor:
    """Return the logits of a custom processor.

    Raises:
        ParameterError: it does not return logits [B, V], or leaves a sequence without a token. The
            error names the processor.
    """
    found = processor(tokens, logits)
    if not isinstance(found, Tensor) or found.shape != logits.shape:
        what = f"shape {[*found.shape]}" if isinstance(found, Tensor) else type(found).__name__
        expected = f"expected it to return logits of shape {[*logits.shape]}, not {what}"
        raise ParameterError("logits_processors", _name(processor), expected)
    largest = found.amax(dim=-1)
    if not largest.isfinite().all():
        row = int((~largest.isfinite()).nonzero()[0, 0])
        value = "only -inf" if largest[row] == -torch.inf else "NaN or inf"
        expected = f"expected a finite logit in each sequence and no NaN; row {row} has {value}"
        raise ParameterError("logits_processors", _name(processor), expected)
    return found


def _name(processor: Processor) -> str:
    """Return the name of a function, or of the class of an object."""
    function = processor.func if isinstance(processor, partial) else processor
    return getattr(function, "__qualname__", type(function).__qualname__)


def greedy(tokens: Tensor, logits: Tensor) -> Tensor:
    """Keep only the most probable token of each sequence, for greedy decoding."""
    best = logits.argmax(-1, keepdim=True)
    return torch.full_like(logits, -torch.inf).scatter(-1, best, 0.0)


def temperature(tokens: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """Divide the logits by the temperature.

    Args:
        temperature: above 0. Below 1 makes probable tokens more probable; above 1 makes the
            distribution more even.
    """
    return logits / temperature


def top_k(tokens: Tensor, logits: Tensor, k: int) -> Tensor:
    """Keep the k most probable tokens.

    Args:
        k: the number of tokens to keep, at least 1; more than V keeps all. Tokens as probable as
            the k-th are kept, too.
    """
    if k >= logits.shape[-1]:
        return logits
    least = logits.topk(k).values[..., -1:]
    return logits.masked_fill(logits < least, -torch.inf)


def top_p(tokens: Tensor, logits: Tensor, p: float) -> Tensor:
    """Keep the most probable tokens whose cumulative probability reaches p (nucleus sampling).

    Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020.

    Args:
        p: in (0, 1]. The token with which the sum reaches p is kept.
    """
    probabilities, order = logits.softmax(-1).sort(descending=True, stable=True)
    return _keep_first(logits, probabilities, order, p)


def min_p(tokens: Tensor, logits: Tensor, p: float) -> Tensor:
    """Keep the tokens that are at least p times as probable as the most probable one.

    Nguyen et al., "Turning Up the Heat: Min-p Sampling", 2024.

    Args:
        p: in [0, 1]; larger values keep fewer tokens.
    """
    probabilities = logits.softmax(-1)
    least = p * probabilities.amax(-1, keepdim=True)
    return logits.masked_fill(probabilities < least, -torch.inf)


def typical_p(tokens: Tensor, logits: Tensor, p: float) -> Tensor:
    """Keep the tokens whose surprisal is nearest to the entropy (locally typical sampling).

    The surprisal of a token is −log of its probability; its mean is the entropy of the
    distribution. Tokens are kept in the order of the difference from the entropy until their
    cumulative probability reaches p. The most probable token may be excluded.

    Meister et al., "Locally Typical Sampling", 2023.

    Args:
        p: in (0, 1]. The token with which the sum reaches p is kept.
    """
    probabilities = logits.softmax(-1)
    surprise = -probabilities.log()
    entropy = torch.special.entr(probabilities).sum(-1, keepdim=True)
    order = (surprise - entropy).abs().argsort(stable=True)
    return _keep_first(logits, probabilities.gather(-1, order), order, p)


def top_p_of_others(
    tokens: Tensor,
    logits: Tensor,
    p: float,
    variation: float,
    top_k: int | None = None,
    min_p: float = 0.0,
) -> Tensor:
    """Keep the most probable token, and the most probable of the others.

    Where the most probable token has a probability above p, a nucleus of all tokens is this token
    alone. A passage that begins to repeat is then repeated to its end, although the model would
    leave it at some point. Here the nucleus is taken from the other tokens, whose probability
    stays.

    Args:
        p: cumulative probability of the tokens that are kept, as a share of all other tokens'.
        variation: factor on the total probability of the other tokens.
        top_k: keep k tokens at most, as in `top_k`; the total probability of the others stays.
        min_p: keep the others that are at least so many times as probable as the most probable
            token, as in `min_p`; their total probability stays if any is kept.
    """
    values = logits.numpy()  # a small array, which numpy handles faster than torch
    rows, num_possible = np.arange(len(values))[:, None], (values > -np.inf).sum(axis=1).max()
    order = np.argsort(-values, axis=1, kind="stable")[:, :num_possible]
    ordered = values[rows, order]
    probabilities = np.exp(ordered - ordered[:, :1])
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    others = probabilities[:, 1:]
    total = others.sum(axis=1, keepdims=True)
    before = others.cumsum(axis=1) - others
    is_kept = (before < p * total) & (others >= min_p * probabilities[:, :1])
    if top_k is not None:
        is_kept[:, top_k - 1 :] = False
    kept, new_total = others * is_kept, variation * total
    scale = new_total / np.maximum(kept.sum(axis=1, keepdims=True), np.finfo(kept.dtype).tiny)
    processed = np.full_like(values, -np.inf)
    with np.errstate(divide="ignore"):  # the logarithm of 0 is the -inf of an excluded token
        processed[rows, order] = np.log(np.concatenate([1 - new_total, kept * scale], axis=1))
    return torch.from_numpy(processed)


def _keep_first(logits: Tensor, probabilities: Tensor, order: Tensor, p: float) -> Tensor:
    """Keep tokens in a given order until their cumulative probability reaches p.

    Args:
        logits: in the order of the vocabulary. [B, V]
        probabilities: of the tokens, sorted as `order`. [B, V]
        order: token ids, the first to keep first. [B, V]
        p: the cumulative probability.

    Returns:
        The logits, −∞ for the tokens that are not kept. [B, V]
    """
    # The token that reaches p is kept: compare the sum of those before it.
    sum_before = probabilities.cumsum(-1) - probabilities
    is_kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, sum_before < p)
    return logits.masked_fill(~is_kept, -torch.inf)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """Draw a token of each sequence: [B, V] -> [B].

    Args:
        logits: in fp64, −∞ for tokens that may not come; at least one of each sequence may.
        uniform: fp64 in [0, 1); a token is a function of its logits and this number alone. [B]
    """
    cumulative = logits.softmax(-1).cumsum(-1)
    # Scale by the rounded sum, so that the draw cannot pass the last possible token. Tokens of
    # probability 0 are never drawn, as their cumulative sum equals the one before.
    threshold = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0]
