"""Checks of parameter values, which raise `ParameterError`, and of the types in plain data."""

import inspect
import re
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from musicgen.errors import ParameterError, UserError

_LARGEST_INT = 2**31 - 1  # which every array and tensor holds
_LARGEST_FLOAT = 1e30  # products with usual numbers stay finite in single precision


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
        maximum: None: what 32 bits hold.
        none_means: what None stands for, or "" if that is obvious. Without it, None is refused.
    """
    is_integer = _is(Integral, value)
    if maximum is None and is_integer and value > _LARGEST_INT:
        maximum = _LARGEST_INT
    valid = is_integer and value >= minimum and (maximum is None or value <= maximum)
    bounds = f">= {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    _check(valid, name, value, f"expected an integer {bounds}", none_means)


def check_seed(name: str, value: Any) -> None:
    """Raise unless `value` is a seed: an integer of 63 bits."""
    check_int(name, value, 0, maximum=2**63 - 1)


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
    """Raise unless `value` is a finite number within the bounds; `above` replaces `minimum`.

    Larger numbers than 1e30 are refused, because computations in single precision overflow.
    """
    bounds = f">= {minimum:g}" if above is None else f"> {above:g}"
    is_number = _is(Real, value)
    if maximum is None and is_number and value > _LARGEST_FLOAT:
        maximum = _LARGEST_FLOAT
    valid = is_number and value >= -_LARGEST_FLOAT  # NaN is not
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


def check_pattern(name: str, value: Any) -> None:
    """Raise unless `value` is a regular expression."""
    try:
        re.compile(value)
    except (re.error, TypeError) as error:
        raise ParameterError(name, value, f"expected a regular expression: {error}") from None


def check_schema(schema: Any, data: Any, name: str | None = None) -> None:
    """Raise `UserError` unless plain data have the types of a schema, such as a `TypedDict`.

    The message names the first entry that is missing or has another type, and does not print it.

    Args:
        name: of the data, for the message.
    """
    from pydantic import TypeAdapter, ValidationError  # takes a while

    try:
        TypeAdapter(schema).validate_python(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        names = [name] if name else []
        entry = ".".join(map(str, [*names, *first["loc"]])) or "its content"
        raise UserError(f"{entry}: {first['msg']}") from None


def check_settings(name: str, settings: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise unless the settings of a parameter are all that a function needs and takes."""
    signature = inspect.signature(function)
    if not isinstance(settings, Mapping):
        raise ParameterError(name, settings, f"expected {', '.join(signature.parameters)}")
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
        raise ParameterError(name, visible(value), expected + alternative)


def visible(value: Any) -> Any:
    """Return a value for a message: a text that would look like a number gets quotes."""
    is_text = isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value)
    return repr(value) if is_text else value
