"""Readers with settings, as the preparation takes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from musicgen.midi import Score


def reader(read: Callable[..., Score], **settings: Any) -> Callable[[Path], Score]:
    """`read` with keyword arguments, which are part of its name: so they are of a cache's, too.

    It can be pickled where `read` and the settings can.
    """
    bound = partial(read, **settings)
    named = [f"{key}={_name(value)}" for key, value in sorted(settings.items())]
    vars(bound).update(
        __module__=read.__module__, __qualname__=f"{read.__qualname__}({', '.join(named)})"
    )
    return bound


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else repr(value)
