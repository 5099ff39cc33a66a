"""Entry points of the commands, which import libraries late to respond fast to Ctrl-C."""

from __future__ import annotations

import importlib
import os
import signal
from functools import partial
from typing import Any


def _exit(*_: Any) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)  # the module that is being imported could catch an exception


def _run(name: str) -> None:
    # Otherwise Ctrl-C is ignored, or handled elsewhere.
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, _exit)
    try:
        from musicgen.cli.runner.run import run

        command = importlib.import_module(f"musicgen.cli.{name}")
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    run(command.main, name)


train = partial(_run, "train")
generate = partial(_run, "generate")
evaluate = partial(_run, "evaluate")
prepare = partial(_run, "prepare")
