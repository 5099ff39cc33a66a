"""How torch computes on a CPU: the threads that pay on this machine, for this model, now.

While OpenMP's threads wait for each other they spin, so that a step takes up to a hundred times as
long if another program holds one of their cores. Sleeping at once (OMP_WAIT_POLICY=passive) more
than doubles the time of a step on a free machine; spinning for a shorter time first costs nothing
there (benchmarks/wait_policy.py). One thread waits for nobody.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from musicgen.console import log
from musicgen.text import pluralize

# A second thread gains little in a decoding step with fewer multiplications.
WORK_FOR_THREADS = 1 << 25
_SET_BY_USER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_LOADAVG = Path("/proc/loadavg")  # of Linux
_SPIN_COUNT = "20000"  # rounds, of 300,000 by default in GCC's OpenMP


def spin_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads spin for a shorter time, unless the user chose; call it before torch."""
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)


def set_up_cpu(decoded: int | None = None, recorded: int | None = None) -> None:
    """Set torch's threads to the cores that no other program uses, unless the user set them.

    The results of another number of threads differ by rounding. Numbers below 1e-38 become 0:
    attention weights of distant tokens are so small, and take a CPU many times as long.

    Args:
        decoded: multiplications in a decoding step, rows x parameters; None if tokens are not
            decoded one by one. Small steps take one thread.
        recorded: the threads of the run that is resumed, which it keeps.
    """
    import torch  # late: `spin_briefly` comes first

    torch.set_flush_denormal(True)
    most, cores = torch.get_num_threads(), os.cpu_count() or 1
    if recorded is not None and not any(name in os.environ for name in _SET_BY_USER):
        torch.set_num_threads(recorded)
        return
    number = num_threads(most, cores, busy_cores(), os.environ, decoded)
    if number < most and (decoded is None or decoded >= WORK_FOR_THREADS):
        log(
            f"other programs are busy: {pluralize(number, 'threads')} of {most}; OMP_NUM_THREADS "
            "sets another number"
        )
    torch.set_num_threads(number)


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
