"""The number of threads that pays on this machine, for this model, now.

While OpenMP's threads wait for each other they spin, so that a step takes up to a hundred times as
long if another program holds one of their cores. Sleeping instead (OMP_WAIT_POLICY=passive) doubles
the time of a step on a free machine (benchmarks/wait_policy.py). One thread waits for nobody.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import torch

# A second thread gains little in a decoding step with fewer multiplications.
WORK_FOR_THREADS = 1 << 25
_SET_BY_USER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_LOADAVG = Path("/proc/loadavg")  # of Linux


def use_free_cores(decoded: int | None = None) -> None:
    """Set torch's threads to the cores that no other program uses, unless the user set them.

    Args:
        decoded: multiplications in a decoding step, rows x parameters; None if tokens are not
            decoded one by one. Small steps take one thread.
    """
    most, cores = torch.get_num_threads(), os.cpu_count() or 1
    torch.set_num_threads(num_threads(most, cores, busy_cores(), os.environ, decoded))


def num_threads(
    most: int, cores: int, busy: float, environment: Mapping[str, str], decoded: int | None
) -> int:
    """Return the number of threads, at most `most`, where others use `busy` of so many cores."""
    if any(name in environment for name in _SET_BY_USER):
        return most
    if decoded is not None and decoded < WORK_FOR_THREADS:
        return 1
    return max(1, min(most, cores - round(busy)))


def busy_cores(num_samples: int = 7, seconds: float = 0.02) -> float:
    """Return the threads of other programs that want a core now; 0 where this is unknown.

    Load averages would also count the command before this one.
    """
    if not _LOADAVG.is_file():
        return 0.0
    counts = []
    for _ in range(num_samples):
        time.sleep(seconds)
        running = int(_LOADAVG.read_text().split()[3].partition("/")[0])
        counts.append(running - 1)  # without this one
    return statistics.median(counts)
