"""The process that engraves scores: one serves all files that this process reads."""

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock, Timer
from typing import Any

MAX_SECONDS = 120
"""The longest wait for a score; see `engrave` for its other limits."""


class Engraver:
    """Runs `engrave.py` in a process, which damaged scores crash; the next score starts another.

    Attributes:
        process: None before the first score, and after a crash.
    """

    def __init__(self) -> None:
        self.process: Any = None
        self._lock = Lock()
        atexit.register(self.stop)

    def engrave(self, text: str, form: str, expand: str) -> tuple[str, list[dict[str, Any]]]:
        """Return the MEI and the events of a score, see `engrave.engrave`.

        Raises:
            ValueError: it is damaged, or takes too much time or memory.
        """
        mei, events = self._call("engrave", text, form, expand)
        return mei, events

    def draw(self, text: str, widths: Sequence[int]) -> list[list[str]]:
        """Return the systems of a score in MusicXML at each width, see `engrave.draw`.

        Raises:
            ValueError: as `engrave` does.
        """
        drawings: list[list[str]] = self._call("draw", text, widths)
        return drawings

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return what a function of `engrave.py` returns."""
        request = json.dumps([name, *arguments]).encode() + b"\n"
        with self._lock:
            is_used = self.process is not None
            reply = self._ask(request)
            if not reply and is_used:  # earlier scores may have left too little memory
                reply = self._ask(request)
        if not reply:
            raise ValueError("damaged")
        return json.loads(reply)

    def stop(self) -> None:
        """End the process, if there is one."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.stdout.close()
            process.wait()

    def _ask(self, request: bytes) -> bytes:
        """Return the reply to a request, one line each; nothing if the process crashed.

        Raises:
            ValueError: it takes too long.
        """
        if self.process is None:
            self.process = _start()
        process, start, reply = self.process, time.monotonic(), b""
        timer = Timer(MAX_SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            reply = process.stdout.readline()
        except OSError:
            pass  # it has ended
        finally:
            timer.cancel()
            if not reply.endswith(b"\n"):  # also if Ctrl-C interrupts it
                self.stop()
        if self.process is not None:
            return reply
        if time.monotonic() - start >= MAX_SECONDS:
            raise ValueError(f"engraving it takes more than {MAX_SECONDS} seconds")
        if process.returncode == -getattr(signal, "SIGXCPU", 0):
            raise ValueError("engraving it takes too long")
        return b""


def _start() -> Any:
    program = Path(__file__).with_name("engrave.py")
    return subprocess.Popen(
        [sys.executable, "-P", str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def engraver() -> Engraver:
    """Return the engraver of this process."""
    return _engraver_of(os.getpid())


@cache
def _engraver_of(process: int) -> Engraver:
    """Return the engraver of a process by its id: a forked one does not share its parent's."""
    return Engraver()
