"""Checks of a setting's value: one line says what was given, where, and what to give."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from musicgen.errors import UserError


def whole(
    name: str,
    value: Any,
    at_least: int = 1,
    *,
    at_most: int | None = None,
    null: str | None = None,
) -> None:
    """Refuse what is no whole number, or too small, or too large.

    Args:
        name: of the setting, as on the command line.
        null: what null, which is None here, is for; "" goes without saying, None refuses it.
    """
    fits, kind = _is(Integral, value) and value >= at_least, f"a whole number, {at_least} or more"
    if at_most is not None:
        fits, kind = fits and value <= at_most, f"{kind}, at most {at_most}"
    if not fits:
        _refuse(name, value, kind, null)


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float = 0,
    at_most: float | None = None,
    below: float | None = None,
    null: str | None = None,
) -> None:
    """Refuse what is no finite number, or not `above` (else `at_least`), `at_most`, `below`."""
    fits = _is(Real, value) and math.isfinite(value)
    kind = f"a number, {at_least:g} or more" if above is None else f"a number above {above:g}"
    fits = fits and (value >= at_least if above is None else value > above)
    if at_most is not None:
        fits, kind = fits and value <= at_most, f"{kind}, at most {at_most:g}"
    if below is not None:
        fits, kind = fits and value < below, f"{kind}, below {below:g}"
    if not fits:
        _refuse(name, value, kind, null)


def flag(name: str, value: Any) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        _refuse(name, value, "true or false", None)


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _refuse(name: str, value: Any, kind: str, null: str | None) -> None:
    if value is None and null is not None:
        return
    shown = "null" if value is None else value
    raise UserError(f"{name}={shown}: give {kind}" + (f", or null for {null}" if null else ""))
