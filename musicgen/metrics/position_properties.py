"""Properties of positional kernels: half width, monotonicity, symmetry, period and others.

A kernel p_d(τ), d < K', is a function of the lag τ = m − n of a query at m and a key at n; τ > 0
looks back. Its profile p(τ) summarises the dimensions. Wang et al. 2021 ("On position embeddings
in BERT") study monotonicity, symmetry and translation invariance of position embeddings; a function
of τ is translation invariant by construction. The formulas are defined here, but for monotonicity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.metrics.attention_invariance import monotonicity

FloatArray = NDArray[np.floating]
# Variation below this share of a kernel's energy is rounding error.
_ROUNDING = 1e-10


class KernelProperties(NamedTuple):
    """Properties of a batch of kernels, each an array [...]. N is the training length.

    Ratios with a zero denominator, as in constant kernels, are NaN.

    Attributes:
        at_zero: p(0).
        half_width: the first lag τ ≥ 0 at which |p(τ)| ≤ |p(0)| / 2, linearly interpolated;
            infinite if there is none, NaN if p(0) = 0.
        variation: Σ_d Var p_d / Σ_d mean p_d² over 0 ≤ τ < N: 0 if the kernel ignores the lag.
        monotonicity: share of pairs of lags 0 ≤ τ < τ' < N with p(τ') > p(τ), as Wang et al.'s:
            0 if p never rises with the distance, 1 if it always does.
        symmetry: Σ e_d² / Σ (e_d² + o_d²) of the even and odd parts of p_d minus its mean, over
            |τ| < N and all d: 1 if p_d(−τ) = p_d(τ), 0 if p_d(−τ) = −p_d(τ). Causal models do not
            use τ < 0: for them it describes the formula only.
        period: period in positions, up to N / 4, of the strongest peak in the power spectrum,
            summed over d, of p_d over 0 ≤ τ < N; NaN without a peak.
        periodicity: share of the spectrum in that peak: 1 for a sine wave.
        beyond: Σ p_d² over τ ≥ N / Σ p_d² over τ ≥ 0.
    """

    at_zero: FloatArray
    half_width: FloatArray
    variation: FloatArray
    monotonicity: FloatArray
    symmetry: FloatArray
    period: FloatArray
    periodicity: FloatArray
    beyond: FloatArray


def kernel_properties(
    lags: NDArray[np.int64], values: FloatArray, profile: FloatArray, training_length: int
) -> KernelProperties:
    """Compute the properties of kernels.

    Args:
        lags: consecutive integers that cover −(training_length − 1) to training_length − 1. [N']
        values: p_d. [..., K', N']
        profile: p. [..., N']
        training_length: N.
    """
    zero, length = int(np.flatnonzero(lags == 0)[0]), training_length
    assert length - 1 <= zero <= len(lags) - length, "lags within the training length are missing"
    values, profile = values.astype(np.float64), profile.astype(np.float64)
    back = values[..., zero:]
    trained = back[..., :length]
    energy = np.square(trained).mean(-1).sum(-1)
    variance = trained.var(-1).sum(-1)
    of_lag = profile[..., None, zero : zero + length]
    rounding = 1e-6 * np.abs(profile).max(-1)
    constant = np.ptp(of_lag[..., 0, :], axis=-1) <= rounding
    around = values[..., zero - length + 1 : zero + length]
    around = around - around.mean(-1, keepdims=True)
    even, odd = (np.square(around + sign * around[..., ::-1]).sum((-1, -2)) / 4 for sign in (1, -1))
    power = np.where(even + odd < _ROUNDING * length * energy, 0, even + odd)
    period, periodicity = _strongest_period(trained)
    return KernelProperties(
        at_zero=profile[..., zero],
        half_width=_half_width(np.abs(profile[..., zero:])),
        variation=_ratio(variance, energy),
        monotonicity=np.where(constant, np.nan, monotonicity(of_lag, rounding)),
        symmetry=_ratio(even, power),
        period=period,
        periodicity=periodicity,
        beyond=_ratio(np.square(back[..., length:]).sum((-1, -2)), np.square(back).sum((-1, -2))),
    )


def property_rows(properties: Sequence[KernelProperties]) -> list[dict[str, Any]]:
    """Return one row for all layers and heads, one for each layer and one for each head.

    A row of several heads holds the medians of the values that are not NaN.

    Args:
        properties: for each layer the properties of its heads, [H] each.
    """
    table = np.stack(properties, 1)  # [properties, layers, H]
    layers, heads = table.shape[1:]

    def row(layer: int | str, head: int | str) -> dict[str, Any]:
        selection: Any = tuple(slice(None) if i == "all" else i for i in (layer, head))
        medians = KernelProperties._make(_median(values[selection]) for values in table)
        return {"layer": layer, "head": head, **medians._asdict()}

    rows = [row("all", "all")]
    if layers > 1:
        rows += [row(layer, "all") for layer in range(layers)]
    if heads > 1:
        all_layers = range(layers) if layers > 1 else ["all"]
        rows += [row(layer, head) for layer in all_layers for head in range(heads)]
    return rows


def _median(values: FloatArray) -> float:
    valid = values[~np.isnan(values)]
    return float(np.median(valid)) if valid.size else np.nan


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    nan = np.full(np.shape(denominator), np.nan)
    return np.divide(numerator, denominator, out=nan, where=denominator > 0)


def _half_width(size: FloatArray) -> FloatArray:
    """Compute the half width of |p| at the lags 0, 1, …: [..., N] -> [...]."""
    half = size[..., :1] / 2
    fallen = size <= half
    after = np.where(fallen.any(-1), fallen.argmax(-1), 1)[..., None]
    here, before = (np.take_along_axis(size, after - i, -1) for i in (0, 1))
    width = (after - _ratio(half - here, before - here))[..., 0]
    width = np.where(fallen.any(-1), width, np.inf)
    return np.where(half[..., 0] > 0, width, np.nan)


def _strongest_period(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Compute period and periodicity [...] of p_d at the lags 0, 1, …: [..., K', N]."""
    length, padding = values.shape[-1], 4
    window = np.hanning(length + 2)[1:-1]
    mean = (values * window).sum(-1, keepdims=True) / window.sum()
    spectrum = np.fft.rfft((values - mean) * window, padding * length)
    power = np.square(np.abs(spectrum)).sum(-2)  # [..., F]
    total = power.sum(-1)
    constant = total < _ROUNDING * length * np.square(values).sum((-1, -2))
    edges = np.pad(power, [(0, 0)] * (power.ndim - 1) + [(1, 1)])
    is_peak = (power >= edges[..., :-2]) & (power > edges[..., 2:])
    is_peak[..., : 4 * padding] = False  # periods above N / 4
    peak = np.where(is_peak, power, 0).argmax(-1)
    lobe = np.abs(np.arange(power.shape[-1]) - peak[..., None]) <= 1.5 * padding  # the window's
    found = is_peak.any(-1) & ~constant
    period = np.where(found, padding * length / np.maximum(peak, 1), np.nan)
    return period, np.where(found, _ratio((power * lobe).sum(-1), total), np.nan)
