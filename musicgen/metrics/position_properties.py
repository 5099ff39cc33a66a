"""What a positional encoding does with the lag: its kernels in numbers.

A kernel p_d(τ), d < K', is a function of the lag τ = m − n of a query at m and a key at n, and
looks back where τ > 0; p(τ) is its profile, one number for all dimensions. Monotonicity, symmetry
and translation invariance are what Wang et al. 2021 ("On position embeddings in BERT") ask of
position embeddings. The last is what makes a function of τ of it; the formulas here are our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating]
# Below this share of a kernel's energy, what varies is rounding.
_ROUNDING = 1e-10


@dataclass(frozen=True)
class KernelProperties:
    """Of each of some kernels, [...] each. N is the training length.

    Attributes:
        at_zero: p(0).
        half_width: the first lag τ ≥ 0 at which |p(τ)| ≤ |p(0)| / 2, between whole lags by linear
            interpolation; infinite where there is none, NaN where p(0) = 0.
        variation: what is not constant, Σ_d Var p_d / Σ_d mean p_d², over 0 ≤ τ < N: 0 where
            position does not matter.
        monotonicity: Σ falls / Σ |p(τ + 1) − p(τ)|, over 0 ≤ τ < N − 1: 1 where p never rises with
            the distance, 0 where it never falls.
        symmetry: Σ e_d² / Σ (e_d² + o_d²) of the even and odd parts of p_d less its mean, over
            |τ| < N and all d: 1 where p_d(−τ) = p_d(τ), 0 where it is the opposite. A causal model
            uses no τ < 0; of it, this is a property of the formula.
        period: in positions, of the strongest peak in the power spectra of all p_d over 0 ≤ τ < N,
            of periods up to N / 4; NaN where there is no peak.
        periodicity: the share of these spectra in that peak: 1 for one sine wave, small where no
            period stands out.
        beyond: Σ p_d² over lags N and above / Σ p_d² over all lags from 0 on: 0 where nothing is
            left beyond the training length.

    What divides by nothing, as in constant kernels, is NaN.
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
    """The properties of kernels.

    Args:
        lags: successive whole numbers, from −(training_length − 1) or below to at least
            training_length − 1. [N']
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
    steps = np.diff(profile[..., zero : zero + length])
    travelled = np.abs(steps).sum(-1)
    travelled = np.where(travelled < 1e-6 * length * np.abs(profile).max(-1), 0, travelled)
    around = values[..., zero - length + 1 : zero + length]
    around = around - around.mean(-1, keepdims=True)
    even, odd = (np.square(around + sign * around[..., ::-1]).sum((-1, -2)) / 4 for sign in (1, -1))
    varied = np.where(even + odd < _ROUNDING * length * energy, 0, even + odd)
    period, periodicity = _strongest_period(trained)
    return KernelProperties(
        at_zero=profile[..., zero],
        half_width=_half_width(np.abs(profile[..., zero:])),
        variation=_ratio(variance, energy),
        monotonicity=_ratio(-steps.clip(max=0).sum(-1), travelled),
        symmetry=_ratio(even, varied),
        period=period,
        periodicity=periodicity,
        beyond=_ratio(np.square(back[..., length:]).sum((-1, -2)), np.square(back).sum((-1, -2))),
    )


def property_rows(properties: Sequence[KernelProperties]) -> list[dict[str, Any]]:
    """Rows for `write_csv`, of each layer's properties of its heads, [H] each.

    Of all layers and heads, of each layer, and of each head: where there are several, medians of
    those that are not NaN.
    """
    table = {
        name: np.stack([asdict(layer)[name] for layer in properties])  # [layers, H]
        for name in asdict(properties[0])
    }
    layers, heads = table["at_zero"].shape

    def row(layer: int | str, head: int | str) -> dict[str, Any]:
        place: Any = tuple(slice(None) if i == "all" else i for i in (layer, head))
        values = {name: _median(column[place]) for name, column in table.items()}
        return {"layer": layer, "head": head, **values}

    rows = [row("all", "all")]
    if layers > 1:
        rows += [row(layer, "all") for layer in range(layers)]
    if heads > 1:
        known = range(layers) if layers > 1 else ["all"]
        rows += [row(layer, head) for layer in known for head in range(heads)]
    return rows


def _median(values: FloatArray) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else np.nan


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=whole > 0)


def _half_width(size: FloatArray) -> FloatArray:
    """Of |p| at the lags 0, 1, …: [..., N] -> [...]."""
    half = size[..., :1] / 2
    fallen = size <= half
    after = np.where(fallen.any(-1), fallen.argmax(-1), 1)[..., None]
    here, before = (np.take_along_axis(size, after - i, -1) for i in (0, 1))
    width = (after - _ratio(half - here, before - here))[..., 0]
    width = np.where(fallen.any(-1), width, np.inf)
    return np.where(half[..., 0] > 0, width, np.nan)


def _strongest_period(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of p_d at the lags 0, 1, …: [..., K', N] -> period and periodicity, [...] each."""
    length, padding = values.shape[-1], 4
    window = np.hanning(length + 2)[1:-1]
    mean = (values * window).sum(-1, keepdims=True) / window.sum()
    spectrum = np.fft.rfft((values - mean) * window, padding * length)
    power = np.square(np.abs(spectrum)).sum(-2)  # [..., F]
    total = power.sum(-1)
    constant = total < _ROUNDING * length * np.square(values).sum((-1, -2))
    edges = np.pad(power, [(0, 0)] * (power.ndim - 1) + [(1, 1)])
    is_peak = (power >= edges[..., :-2]) & (power > edges[..., 2:])
    is_peak[..., : 4 * padding] = False  # slow change is no period
    peak = np.where(is_peak, power, 0).argmax(-1)
    lobe = np.abs(np.arange(power.shape[-1]) - peak[..., None]) <= 1.5 * padding  # the window's
    found = is_peak.any(-1) & ~constant
    period = np.where(found, padding * length / np.maximum(peak, 1), np.nan)
    return period, np.where(found, _ratio((power * lobe).sum(-1), total), np.nan)
