"""Position loss: cross-entropy by position in the sequence, and per note and bar.

The loss by position shows how a model extrapolates beyond its training length, as in Liutkus et al.
2021 ("Relative positional encoding for Transformers with linear complexity"), figure 3 and table 6.
Losses per note can be compared between tokenizers; losses per token cannot.
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import ArrayLike

from musicgen.metrics.intervals import Summary, mean_of_valid
from musicgen.midi.score import FloatArray, IntArray

ORDER = 3  # n of the n-gram model


def loss_summary(values: FloatArray) -> dict[str, float]:
    """Return the summary of the losses of pieces; each is a mean over seeds and draws of the noise.

    If each piece has its own draws, the interval over pieces includes the variation by noise. It
    does not include the variation over seeds of training, which is `seed_std`.

    Args:
        values: losses by piece, seed and draw [pieces, seeds, draws]; pieces with NaN are skipped.

    Returns:
        The fields of `Summary`, and the standard deviations of means with the divisor n - 1:
        `draw_std` over `draws` (of the mean over pieces; the root mean square over seeds), and
        `seed_std` over `seeds` (of the mean over pieces and draws).
    """
    over_pieces = np.apply_along_axis(mean_of_valid, 0, values)
    seeds, draws = over_pieces.shape
    return {
        **asdict(Summary.of(values.mean((1, 2)))),
        "draws": draws,
        "draw_std": float(np.sqrt(over_pieces.var(1, ddof=1).mean())) if draws > 1 else np.nan,
        "seeds": seeds,
        "seed_std": float(over_pieces.mean(1).std(ddof=1)) if seeds > 1 else np.nan,
    }


def loss_curve(losses: Sequence[FloatArray], bucket: int = 128) -> dict[str, list[float]]:
    """Return the mean loss over all pieces in each bucket of `bucket` positions.

    Args:
        losses: losses in nats, an array [length], [draws, length] or [seeds, draws, length] per
            piece. Entry n is the loss of the target at position n. NaN is padding.

    Returns:
        Lists of a value per bucket, by name: `position`, the middle of the bucket; `loss`, NaN
        without targets; `low` and `high`, its interval over pieces, NaN with fewer than two
        pieces; and `num_targets`.
    """
    pieces = [piece.reshape(-1, piece.shape[-1]).mean(0) for piece in losses]
    names = "position", "loss", "low", "high", "num_targets"
    curve: dict[str, list[float]] = {name: [] for name in names}
    for start in range(0, max(map(len, pieces), default=0), bucket):
        parts = [piece[start : start + bucket] for piece in pieces]
        parts = [part for part in parts if not np.isnan(part).all()]  # as an empty part is, too
        counts = [int((~np.isnan(part)).sum()) for part in parts]
        summary = Summary.of(unit_values(parts, counts)[:, 0, 0] if parts else [])
        values = start + bucket / 2, summary.mean, summary.low, summary.high, sum(counts)
        for name, value in zip(names, values, strict=True):
            curve[name].append(value)
    return curve


def range_means(losses: Sequence[FloatArray], start: int, end: int) -> FloatArray:
    """Return the mean loss of each piece at the positions [start, end).

    Args:
        losses: as in `loss_curve`.

    Returns:
        [pieces, seeds, draws]; NaN without targets.
    """
    pieces = [np.array(piece, ndmin=3) for piece in losses]
    means = [np.apply_along_axis(mean_of_valid, -1, piece[..., start:end]) for piece in pieces]
    return np.array(means)


def unit_values(losses: Sequence[FloatArray], counts: Sequence[int]) -> FloatArray:
    """Return a value per piece, so that their mean is the nats per unit over all pieces.

    R is the sum of nats over all pieces divided by the sum of units. The value of a piece is
    R + (nats − R · units) / mean units. The mean of these values is R, and their interval is that
    of a ratio of sums (Cochran 1977, §6.4).

    Args:
        losses: as in `loss_curve`, without end tokens, which belong to no unit.
        counts: number of units, such as notes, per piece [pieces].

    Returns:
        [pieces, seeds, draws]
    """
    nats = np.array([np.nansum(np.array(piece, ndmin=3), axis=-1) for piece in losses])
    units = np.array(counts, dtype=np.float64)[:, None, None]
    if not units.sum():
        return np.full_like(nats, np.nan)
    ratio = nats.sum(0) / units.sum()
    return ratio + (nats - ratio * units) / units.mean()


def witten_bell_losses(
    vocab_size: int, training: Sequence[ArrayLike], sequences: Sequence[ArrayLike]
) -> list[FloatArray]:
    """Return the losses of a trigram model with Witten-Bell interpolation, fitted to training data.

        p(w | h) = (c(h w) + t(h) · p(w | h')) / (c(h) + t(h))

    c(h) is the number of tokens after the context h, and t(h) the number of distinct ones. h' is h
    without its oldest token; p(w) is interpolated with the uniform distribution (Witten & Bell
    1991, method C; Chen & Goodman 1999, section 2.4).

    Args:
        vocab_size: V.
        training: the training sequences, [length] each.
        sequences: [length] each.

    Returns:
        −log p in nats of every token given the two tokens before it, [length] per sequence.
        The first token has its unigram probability, the second its bigram probability.
    """
    # Three tokens are packed into one int64.
    assert 0 < vocab_size**ORDER < 2**63, f"vocab_size={vocab_size}"

    def pack(sequence: ArrayLike) -> IntArray:
        """Return all n-grams as numbers in base V, oldest token first: [L] -> [L − order + 1]."""
        tokens = np.asarray(sequence, np.int64)
        length = max(0, len(tokens) - order + 1)
        packed = np.zeros(length, np.int64)
        for offset in range(order):
            packed = packed * vocab_size + tokens[offset : offset + length]
        return packed

    probabilities = [np.full(np.shape(sequence), 1 / vocab_size) for sequence in sequences]
    for order in range(1, ORDER + 1):
        packed = np.concatenate([np.empty(0, np.int64), *map(pack, training)])
        ngrams, counts = np.unique(packed, return_counts=True)
        before = np.append(0, counts.cumsum())  # occurrences of all n-grams before each
        ngrams = np.append(ngrams, 2**63 - 1)  # an upper bound
        for sequence, probability in zip(sequences, probabilities, strict=True):
            packed = pack(sequence)
            context = packed - packed % vocab_size  # the first n-gram with the same context
            index = np.searchsorted(ngrams, packed)
            count = before[index + (ngrams[index] == packed)] - before[index]
            start, end = np.searchsorted(ngrams, [context, context + vocab_size])
            total, types = before[end] - before[start], end - start
            lower = probability[order - 1 :]  # a view: the first tokens keep their lower order
            seen = total > 0
            lower[seen] = ((count + types * lower) / np.maximum(1, total + types))[seen]
    return [-np.log(probability) for probability in probabilities]
