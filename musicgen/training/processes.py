"""The processes of one run: if one of them dies, the others end, and one line says so."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl

from musicgen.console import log
from musicgen.errors import UserError
from musicgen.training.lightning_compat import without_process_observer

_INTERVAL = 0.5  # seconds between looks at the others
_GRACE = 5.0  # seconds in which a lost connection may end this process in an orderly way
_OTHERS = ", and the others with it; the run continues from its last checkpoint"


@contextmanager
def end_together(trainer: pl.Trainer) -> Iterator[None]:
    """End this process if another process of the run dies in the block.

    A collective operation may wait for a dead process for half an hour, and Lightning's own
    observer kills the first process without a word, and the others never.

    Raises:
        UserError: another process died.
    """
    if trainer.world_size == 1:
        yield
        return
    over = threading.Event()
    parent = os.getppid() if trainer.local_rank > 0 else None  # which then started this one
    threading.Thread(target=_watch, args=(trainer, parent, over), daemon=True).start()
    try:
        with without_process_observer():
            yield
    except Exception:
        over.wait(_INTERVAL)  # the system may close connections before it tells of the end
        message = _loss(trainer, parent)
        _kill_children(trainer)
        if message is None:
            raise
        if not message:
            raise SystemExit(2) from None
        raise UserError(message) from None
    except BaseException:
        _kill_children(trainer)
        raise
    finally:
        over.set()


def _watch(trainer: pl.Trainer, parent: int | None, over: threading.Event) -> None:
    """End this process some time after another one, unless it has ended by itself."""
    while not over.wait(_INTERVAL):
        message = _loss(trainer, parent)
        if message is not None and not over.wait(_GRACE):
            _kill_children(trainer)
            if message:
                log(f"error: {message}", "red")
            os._exit(2)


def _loss(trainer: pl.Trainer, parent: int | None) -> str | None:
    """Say which process has died; "" if it gave the reason itself; None if all are alive."""
    for rank, child in enumerate(_children(trainer), 1):
        if status := child.poll():
            if status > 0:
                return ""
            name = signal.Signals(-status).name
            return f"process {rank} of this run was ended by {name}{_OTHERS}"
    if parent is not None and os.getppid() != parent:
        return f"the first process of this run ended{_OTHERS}"
    return None


def _children(trainer: pl.Trainer) -> list[Any]:
    return getattr(trainer.strategy.launcher, "procs", [])


def _kill_children(trainer: pl.Trainer) -> None:
    for child in _children(trainer):
        child.kill()  # does nothing after its end
