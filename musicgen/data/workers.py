"""Processes that work through tasks under a time and a memory limit for each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

CHUNK = 16
"""Tasks that a process gets at once: enough that it seldom waits for more."""


class Failure(NamedTuple):
    """Why a task has no result; whether by a limit."""

    reason: str
    by_limit: bool


def run_limited(
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    *,
    num_workers: int,
    max_seconds: float,
    max_gigabytes: float,
) -> Generator[tuple[int, Any]]:
    """Results of `function(task)` as they come, each with its task's index.

    A task that takes longer, needs more memory, raises, or brings its process down gives a
    `Failure`; the others go on. The limits hold where the system can set them: time everywhere but
    on Windows, memory on Linux.

    Args:
        function: can be pickled, as can its results.
        max_seconds: of wall time, for one task.
        max_gigabytes: that a process may take beyond what it began with.
    """
    waiting = deque(enumerate(tasks))
    workers: list[_Worker] = []

    def start() -> _Worker:
        workers.append(_Worker(function, max_seconds, max_gigabytes, workers))
        return workers[-1]

    def hand_out(worker: _Worker) -> None:
        # Smaller towards the end, so that all end together.
        size = min(CHUNK, -(-len(waiting) // (4 * num_workers)))
        worker.give([waiting.popleft() for _ in range(size)])

    try:
        for _ in range(min(num_workers, len(waiting))):
            hand_out(start())
        while busy := {w.connection: w for w in workers if w.pending}:
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                try:
                    index, result = worker.connection.recv()
                    worker.pending.popleft()
                except (EOFError, OSError):
                    index, result = worker.pending.popleft()[0], worker.failure(max_seconds)
                    waiting.extendleft(reversed(worker.pending))
                    workers.remove(worker)
                    if waiting:
                        worker = start()
                if waiting and not worker.pending:
                    hand_out(worker)
                yield index, result
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """One process, and the tasks that it has not answered yet, in order."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        max_seconds: float,
        max_gigabytes: float,
        siblings: Sequence[_Worker],
    ) -> None:
        # A fork has the readers loaded; elsewhere it is not safe.
        forks = sys.platform == "linux"
        context = multiprocessing.get_context("fork" if forks else "spawn")
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        # A fork inherits our ends, and would keep its siblings waiting for us when we are gone.
        inherited = [worker.connection for worker in (*siblings, self)] if forks else []
        self.process: Any = context.Process(  # type: ignore[attr-defined]
            target=_serve,
            args=(theirs, inherited, function, max_seconds, max_gigabytes),
            daemon=True,
        )
        self.process.start()
        theirs.close()
        self.pending: deque[tuple[int, Any]] = deque()

    def give(self, tasks: list[tuple[int, Any]]) -> None:
        self.pending.extend(tasks)
        with suppress(OSError):  # it is gone, as the next `recv` finds out
            self.connection.send(tasks)

    def failure(self, max_seconds: float) -> Failure:
        """Why the process ended."""
        self.stop()
        code = self.process.exitcode
        if hasattr(signal, "SIGALRM") and code == -signal.SIGALRM:
            return Failure(f"took longer than {max_seconds:g} s; see data.limits", True)
        return Failure(f"brought its reader down (exit status {code}); export it again", True)

    def stop(self) -> None:
        self.connection.close()
        self.process.join(0.1)  # time to see that, or to end of its own
        self.process.kill()
        self.process.join()


def _serve(
    connection: Connection,
    inherited: Sequence[Connection],
    function: Callable[[Any], Any],
    max_seconds: float,
    max_gigabytes: float,
) -> None:
    """What a worker does: answer each task, until the other end is gone."""
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    _limit_memory(max_gigabytes)
    alarms = hasattr(signal, "setitimer")
    if alarms:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it is doing
    with suppress(EOFError, OSError):
        while True:
            for index, task in connection.recv():
                if alarms:
                    signal.setitimer(signal.ITIMER_REAL, max_seconds)
                result = _attempt(function, task, max_gigabytes)
                if alarms:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                connection.send((index, result))


def _attempt(function: Callable[[Any], Any], task: Any, max_gigabytes: float) -> Any:
    try:
        return function(task)
    except MemoryError:
        return Failure(f"needs more than {max_gigabytes:g} GB; see data.limits", True)
    except Exception as error:  # one file must not end the preparation of all
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Failure(
            f"an error of musicgen's own, please report it: {type(error).__name__}: "
            f"{' '.join(str(error).split())} ({Path(where.filename).name}, line {where.lineno})",
            False,
        )


def _limit_memory(gigabytes: float) -> None:
    """Allow so much beyond what is mapped now, which may be a GPU library's terabytes."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + int(gigabytes * 2**30)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
