"""Cross-entropy by position in the sequence: how a model extrapolates beyond its training length.

Liutkus et al. 2021 ("Relative positional encoding for Transformers with linear complexity"),
Figure 3 and Table 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.summary import Summary, mean_of_valid

FloatArray = NDArray[np.floating]


class LossCurve(NamedTuple):
    """Loss by bucket of target positions: [num_buckets] each."""

    position: NDArray[np.float64]  # the middle of the bucket
    loss: NDArray[np.float64]  # mean over the bucket's targets in nats; NaN without targets
    num_targets: NDArray[np.int64]


def loss_curve(losses: Sequence[FloatArray], bucket: int = 128) -> LossCurve:
    """Compute the mean loss over all pieces in each bucket of `bucket` positions.

    Args:
        losses: one array [length] for each piece, in nats: entry n belongs to the target at
            position n. NaN marks padding.
    """
    loss = np.concatenate([np.empty(0), *losses])
    index = np.concatenate([np.empty(0, np.int64), *(np.arange(len(x)) for x in losses)]) // bucket
    num_buckets = int(index.max(initial=-1)) + 1
    valid = ~np.isnan(loss)
    count = np.bincount(index[valid], minlength=num_buckets)
    total = np.bincount(index[valid], weights=loss[valid], minlength=num_buckets)
    mean = np.full(num_buckets, np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return LossCurve(bucket * (np.arange(num_buckets, dtype=np.float64) + 0.5), mean, count)


def length_summaries(
    losses: Sequence[FloatArray],
    training_length: int,
    factors: Sequence[float] = (1.5, 2.0),
    *,
    seed: int = 0,
) -> dict[str, Summary]:
    """Summarise each piece's mean loss in ranges of positions: "trained", "extrapolated 1.5x", ….

    Pieces without targets in a range count as skipped.

    Args:
        losses: as for `loss_curve`.
        factors: for each factor f, one range from N to f·N of the training length N.
        seed: of the bootstrap intervals.
    """
    ranges = {"trained": (0, training_length)} | {
        f"extrapolated {factor:g}x": (training_length, round(factor * training_length))
        for factor in factors
    }
    return {
        name: Summary.of((mean_of_valid(loss[start:end]) for loss in losses), seed=seed)
        for name, (start, end) in ranges.items()
    }
