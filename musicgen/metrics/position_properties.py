"""Properties of positional kernels: half width, monotonicity and symmetry.

A kernel p_d(τ), d < K', is a function of the lag τ = m − n of a query at m and a key at n; τ > 0
looks back. Its profile p(τ) summarises the dimensions. Wang et al. 2021 ("On position embeddings
in BERT") study monotonicity, symmetry and translation invariance of position embeddings; a function
of τ is translation invariant by construction. The formulas are defined here, but for monotonicity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.attention_invariance import monotonicity

FloatArray = NDArray[np.floating]


def kernel_properties(
    lags: NDArray[np.int64], values: FloatArray, profile: FloatArray, training_length: int
) -> dict[str, FloatArray]:
    """Compute properties of kernels, each an array [...], with the training length N.

    - `half width`: the first lag τ ≥ 0 at which |p(τ)| ≤ |p(0)| / 2, linearly interpolated;
      infinite if there is none, NaN if p(0) = 0.
    - `monotonicity`: share of pairs of lags 0 ≤ τ < τ' < N with p(τ') > p(τ), as Wang et al.'s:
      0 if p never rises with the distance, 1 if it always does; NaN of constant kernels.
    - `symmetry`: Σ e_d² / Σ (e_d² + o_d²) of the even and odd parts of p_d minus its mean, over
      |τ| < N and all d: 1 if p_d(−τ) = p_d(τ), 0 if p_d(−τ) = −p_d(τ); NaN of constant kernels.
      Causal models do not use τ < 0: for them it describes the formula only.

    Args:
        lags: consecutive integers that cover −(training_length − 1) to training_length − 1. [N']
        values: p_d. [..., K', N']
        profile: p. [..., N']
        training_length: N.
    """
    zero, length = int(np.flatnonzero(lags == 0)[0]), training_length
    assert length - 1 <= zero <= len(lags) - length, "lags within the training length are missing"
    values, profile = values.astype(np.float64), profile.astype(np.float64)
    of_lag = profile[..., None, zero : zero + length]
    rounding = 1e-6 * np.abs(profile).max(-1)
    constant = np.ptp(of_lag[..., 0, :], axis=-1) <= rounding
    around = values[..., zero - length + 1 : zero + length]
    around = around - around.mean(-1, keepdims=True)
    even, odd = (np.square(around + sign * around[..., ::-1]).sum((-1, -2)) / 4 for sign in (1, -1))
    energy = np.square(values[..., zero : zero + length]).sum((-1, -2))
    power = np.where(even + odd < 1e-10 * energy, 0, even + odd)  # less is rounding error
    return {
        "half width": _half_width(np.abs(profile[..., zero:])),
        "monotonicity": np.where(constant, np.nan, monotonicity(of_lag, rounding)),
        "symmetry": _ratio(even, power),
    }


def _half_width(size: FloatArray) -> FloatArray:
    """Compute the half width of |p| at the lags 0, 1, …: [..., N] -> [...]."""
    half = size[..., :1] / 2
    fallen = size <= half
    after = np.where(fallen.any(-1), fallen.argmax(-1), 1)[..., None]
    here, before = (np.take_along_axis(size, after - i, -1) for i in (0, 1))
    width = (after - _ratio(half - here, before - here))[..., 0]
    width = np.where(fallen.any(-1), width, np.inf)
    return np.where(half[..., 0] > 0, width, np.nan)


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    nan = np.full(np.shape(denominator), np.nan)
    return np.divide(numerator, denominator, out=nan, where=denominator > 0)
