"""Ctrl-C while libraries are imported, which could catch its exception."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def exit_on_interrupt(folder: str | None = None) -> Iterator[None]:
    """End the process at once on Ctrl-C; remove `folder` if it is empty.

    Does nothing where Ctrl-C is ignored, or handled elsewhere.
    """

    def leave(*_: Any) -> None:
        with contextlib.suppress(OSError):
            if folder is not None:
                os.rmdir(folder)  # noqa: PTH106, as this runs before imports
        os.write(2, b"interrupted\n")
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
