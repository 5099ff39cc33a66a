"""How torch computes on a CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

# A second thread gains little in a decoding step with fewer multiplications.
WORK_FOR_THREADS = 1 << 25
_SET_BY_USER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_FASTER = 0.8  # the share of the time that fewer threads may take to be chosen
_SPIN_COUNT = "20000"  # rounds, of 300,000 by default in GCC's OpenMP


def spin_briefly() -> None:
    """Let waiting threads spin for a shorter time, unless the user chose; call it before torch.

    While OpenMP's threads spin, a step may take many times as long if another program holds one of
    their cores. Sleeping at once (OMP_WAIT_POLICY=passive) more than doubles the time of a small
    step on a free machine; spinning for a shorter time costs nothing (benchmarks/wait_policy.py).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)


def set_up_cpu(decoded: int | None = None) -> None:
    """Let denormal numbers be 0, and small decoding steps take one thread.

    Attention weights of distant tokens are below 1e-38, and take a CPU many times as long. The
    results of another number of threads differ by rounding: a user's own number stays.

    Args:
        decoded: multiplications in a decoding step, rows x parameters; None if tokens are not
            decoded one by one.
    """
    import torch  # late: `spin_briefly` comes first

    torch.set_flush_denormal(True)
    if decoded is not None and decoded < WORK_FOR_THREADS and not _given():
        torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread: many small operations, as of loading, wait for no others."""
    import torch

    number = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(number)


def fewer_threads() -> int | None:
    """Return how many threads train a small model faster than all do, as on a busy machine.

    Threads wait for each other after each operation: where another program holds a core, two may
    take three times as long as one.

    Returns:
        None: all are as fast, or the user chose.
    """
    import torch

    every = torch.get_num_threads()
    numbers = sorted({every, max(1, every // 2), 1}, reverse=True)
    if _given() or every == 1:
        return None
    x, weight = torch.randn(512, 192), torch.randn(192, 192, requires_grad=True)
    seconds = dict.fromkeys(numbers, 0.0)
    for number in numbers * 3:
        torch.set_num_threads(number)
        begin, y = time.perf_counter(), x
        for _ in range(64):
            y = torch.tanh(y @ weight)
        y.sum().backward()
        seconds[number] += time.perf_counter() - begin
    torch.set_num_threads(every)
    best = min(numbers, key=seconds.__getitem__)
    return best if seconds[best] < _FASTER * seconds[every] else None


def _given() -> bool:
    return any(name in os.environ for name in _SET_BY_USER)
