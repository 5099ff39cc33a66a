"""Worker processes that run tasks, with limits on the time and memory of each task."""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple


class Failure(NamedTuple):
    """The failure of a task."""

    reason: str
    repeatable: bool  # whether it would fail again: it exceeded a limit or crashed its process


def run_limited(
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    *,
    num_workers: int | None,
    max_seconds: float,
    max_gigabytes: float,
) -> Generator[tuple[int, Any]]:
    """Yield the index of a task and the result of `function(task)`, in order of completion.

    The result of a task that exceeds a limit, raises, or crashes its process is a `Failure`. The
    other tasks continue. The time limit needs a POSIX system, and the memory limit Linux.

    Args:
        function: it and its results can be pickled.
        num_workers: number of processes; None: one per core. There is at most one per 32 tasks.
        max_seconds: wall time of one task.
        max_gigabytes: memory of a process, in addition to its memory at the start.
    """
    waiting = iter(range(len(tasks)))
    workers: dict[Any, _Worker] = {}

    def start() -> None:
        if (index := next(waiting, None)) is not None:
            worker = _Worker(workers, function, max_seconds, max_gigabytes)
            workers[worker.connection] = worker
            worker.give(index, tasks[index])

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        for _ in range(min(num_workers or cores or 1, 1 + len(tasks) // 32)):
            start()
        while workers:
            for connection in wait(list(workers)):
                worker = workers[connection]
                done = worker.index
                try:
                    result = worker.connection.recv()
                    if (index := next(waiting, None)) is not None:
                        worker.give(index, tasks[index])
                    else:
                        workers.pop(connection).stop()
                except (EOFError, OSError):
                    result = workers.pop(connection).failure(max_seconds)
                    start()
                yield done, result
    finally:
        for worker in workers.values():
            worker.stop()


class _Worker:
    """One process that runs `_serve`, and the index of its task."""

    def __init__(self, siblings: Iterable[Connection], *settings: Any) -> None:
        # Forked processes need no imports, but forking is safe only on Linux.
        forks = sys.platform == "linux"
        context = multiprocessing.get_context("fork" if forks else "spawn")
        self.connection: Connection
        self.connection, child_end = context.Pipe()
        # A forked process inherits the ends of the parent, which would keep its siblings alive
        # without the parent.
        inherited = [*siblings, self.connection] if forks else []
        self.process: Any = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(child_end, inherited, *settings), daemon=True
        )
        self.process.start()
        child_end.close()
        self.index = -1  # index of its task

    def give(self, index: int, task: Any) -> None:
        """Send a task to the process."""
        self.index = index
        with suppress(OSError):  # the process has ended; the next `recv` reports it
            self.connection.send(task)

    def failure(self, max_seconds: float) -> Failure:
        """Stop the process and return why it ended."""
        self.stop()
        code = self.process.exitcode
        if hasattr(signal, "SIGALRM") and code == -signal.SIGALRM:
            return Failure(f"took longer than limits.max_seconds={max_seconds:g}", True)
        return Failure(f"crashed its reader (exit status {code}); export it again", True)

    def stop(self) -> None:
        """End the process."""
        self.connection.close()
        self.process.join(0.1)  # let it end by itself
        self.process.kill()
        self.process.join()


def _serve(
    connection: Connection,
    inherited: Sequence[Connection],
    function: Callable[[Any], Any],
    max_seconds: float,
    max_gigabytes: float,
) -> None:
    """Receive tasks and send their results, until the other end is closed."""
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    _limit_memory(max_gigabytes)
    alarms = hasattr(signal, "setitimer")
    if alarms:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process at once
    with suppress(EOFError, OSError):
        while True:
            task = connection.recv()
            if alarms:
                signal.setitimer(signal.ITIMER_REAL, max_seconds)
            result = _attempt(function, task, max_gigabytes)
            if alarms:
                signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send(result)


def _attempt(function: Callable[[Any], Any], task: Any, max_gigabytes: float) -> Any:
    """Return the result of a task, or a `Failure`."""
    try:
        return function(task)
    except MemoryError:
        return Failure(f"needs more than limits.max_gigabytes={max_gigabytes:g}", True)
    except Exception as error:  # a bad file must not stop the others
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        place = f"{Path(where.filename).name}, line {where.lineno}"
        return Failure(f"a bug in musicgen, please report it: {what} ({place})", False)


def _limit_memory(gigabytes: float) -> None:
    """Limit the memory that this process maps in addition to its present pages.

    With a GPU library, the present pages may be terabytes.
    """
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + int(gigabytes * 2**30)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
