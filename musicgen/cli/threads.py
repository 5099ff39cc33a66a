"""How torch computes on a CPU."""

from __future__ import annotations

import os

# A second thread gains little in a decoding step with fewer multiplications.
WORK_FOR_THREADS = 1 << 25
_SET_BY_USER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
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
    given = any(name in os.environ for name in _SET_BY_USER)
    if decoded is not None and decoded < WORK_FOR_THREADS and not given:
        torch.set_num_threads(1)
