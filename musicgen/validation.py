"""Checks of parameter values, which raise `ParameterError`."""

import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from musicgen.errors import ParameterError


def check_int(
    name: str,
    value: Any,
    minimum: int = 1,
    *,
    maximum: int | None = None,
    none_means: str | None = None,
) -> None:
    """Raise unless `value` is an integer from `minimum` to `maximum`.

    Args:
        none_means: what None stands for, or "" if that is obvious. Without it, None is refused.
    """
    valid = _is(Integral, value) and value >= minimum and (maximum is None or value <= maximum)
    bounds = f">= {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    _check(valid, name, value, f"expected an integer {bounds}", none_means)


def check_float(
    name: str,
    value: Any,
    minimum: float = 0,
    *,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    none_means: str | None = None,
) -> None:
    """Raise unless `value` is a finite number within the bounds; `above` replaces `minimum`."""
    bounds = f">= {minimum:g}" if above is None else f"> {above:g}"
    valid = _is(Real, value) and math.isfinite(value)
    valid = valid and (value >= minimum if above is None else value > above)
    if maximum is not None:
        valid, bounds = valid and value <= maximum, f"{bounds} and <= {maximum:g}"
    if below is not None:
        valid, bounds = valid and value < below, f"{bounds} and < {below:g}"
    _check(valid, name, value, f"expected a number {bounds}", none_means)


def check_bool(name: str, value: Any) -> None:
    """Raise unless `value` is true or false."""
    _check(isinstance(value, bool), name, value, "expected true or false")


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Raise unless `value` is one of `choices`."""
    expected = f"expected one of {', '.join(map(str, choices))}"
    _check(value in list(choices), name, value, expected)


def check_settings(name: str, settings: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise unless the settings of a parameter are all that a function needs and takes."""
    signature = inspect.signature(function)
    try:
        signature.bind(**settings)
    except TypeError as error:
        expected = f"expected {', '.join(signature.parameters)}: {error}"
        raise ParameterError(name, settings, expected) from None


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _check(valid: bool, name: str, value: Any, expected: str, none: str | None = None) -> None:
    if not valid and (value is not None or none is None):
        alternative = f", or None: {none}" if none else ""
        raise ParameterError(name, value, expected + alternative)
