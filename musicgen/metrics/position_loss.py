"""Cross-entropy by position in the sequence: does a model hold beyond its training length?

Liutkus et al. 2021 ("Relative positional encoding for Transformers with linear complexity"),
Figure 3 and Table 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.files import atomic_path
from musicgen.metrics.base import Summary

FloatArray = NDArray[np.floating]


class LossCurve(NamedTuple):
    """Loss by bucket of target positions.

    Attributes:
        position: the middle of each bucket. [num_buckets]
        loss: mean over all targets in the bucket, in nats; NaN where there is none. [num_buckets]
        num_targets: how many there are. [num_buckets]
    """

    position: NDArray[np.float64]
    loss: NDArray[np.float64]
    num_targets: NDArray[np.int64]


def loss_curve(losses: Sequence[FloatArray], bucket: int = 128) -> LossCurve:
    """Mean loss in each bucket of `bucket` positions, over all pieces.

    Args:
        losses: one array for each piece, [length], in nats: entry n belongs to the target at
            position n. NaN is padding or no target.
    """
    loss = np.concatenate([np.empty(0), *losses])
    index = np.concatenate([np.empty(0, np.int64), *(np.arange(len(x)) for x in losses)]) // bucket
    num_buckets = int(index.max(initial=-1)) + 1
    known = ~np.isnan(loss)
    count = np.bincount(index[known], minlength=num_buckets)
    total = np.bincount(index[known], weights=loss[known], minlength=num_buckets)
    mean = np.full(num_buckets, np.nan, np.float64)
    np.divide(total, count, out=mean, where=count > 0)
    return LossCurve(bucket * (np.arange(num_buckets, dtype=np.float64) + 0.5), mean, count)


def length_summaries(
    losses: Sequence[FloatArray], training_length: int, factors: Sequence[float] = (1.5, 2.0)
) -> dict[str, Summary]:
    """Loss within the training length and beyond it: each piece's mean, summarised over pieces.

    Args:
        losses: as for `loss_curve`.
        factors: for each, the positions from the training length up to this multiple of it.

    Returns:
        "trained", then "extrapolated 1.5x" and so on. A piece without targets there is skipped
        and counted.
    """
    spans = {"trained": (0, training_length)} | {
        f"extrapolated {factor:g}x": (training_length, round(factor * training_length))
        for factor in factors
    }
    return {
        name: Summary.of(_mean(loss[start:end]) for loss in losses)
        for name, (start, end) in spans.items()
    }


def _mean(losses: FloatArray) -> float:
    known = losses[~np.isnan(losses)]
    return float(known.mean()) if len(known) else np.nan


def plot_loss_curves(
    curves: Mapping[str, LossCurve], path: str | Path, *, training_length: int
) -> None:
    """Draw named curves, such as models and the trigram, with the training length marked.

    Written atomically; the suffix of `path` chooses the format (.png, .svg, .pdf).
    """
    from matplotlib.figure import Figure  # slow to import; no pyplot, hence no global state

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        axes.plot(curve.position, curve.loss, label=name)
    axes.axvline(training_length, color="grey", linestyle="--", label="training length")
    axes.set(xlabel="position", ylabel="cross-entropy (nats)")
    axes.grid(alpha=0.3)
    axes.legend()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
