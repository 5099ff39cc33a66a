"""Imported first by the entry points: Ctrl-C while the libraries load ends in one line too."""

from __future__ import annotations

import os
import signal
from typing import Any


def _end(*_: Any) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)  # an exception could be caught, or told, by whatever is being imported


def done() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
    signal.signal(signal.SIGINT, _end)
