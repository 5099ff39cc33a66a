"""Cross-entropy per note and per bar: comparable between tokenizers, as that per token is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from musicgen.metrics.position_loss import FloatArray, LossSummary


def unit_summary(
    losses: Sequence[FloatArray], counts: Sequence[int], *, seed: int = 0
) -> LossSummary:
    """Summarise the nats per unit: the sum over all pieces, divided by the number of units in them.

    Values of single pieces are linearised, R + (nats − R · units) / mean units for the ratio R, so
    that their mean is R, and their interval that of a ratio of sums (Cochran 1977, §6.4).

    Args:
        losses: as for `loss_curve`; without the losses of end tokens, which no unit contains.
        counts: number of units, such as notes, in each piece. [pieces]
        seed: of the bootstrap interval.
    """
    pieces = [piece.reshape((1,) * (3 - piece.ndim) + piece.shape) for piece in losses]
    nats = np.array([np.nansum(piece, axis=-1) for piece in pieces])  # [pieces, seeds, draws]
    units = np.array(counts, dtype=np.float64)[:, None, None]
    if not units.sum():
        return LossSummary.of_runs(np.full_like(nats, np.nan), seed=seed)
    ratio = nats.sum(0) / units.sum()
    return LossSummary.of_runs(ratio + (nats - ratio * units) / units.mean(), seed=seed)
