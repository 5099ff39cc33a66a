"""Output folders, and the settings of the CPU."""

import os
import time
from pathlib import Path
from tempfile import TemporaryFile

# Decoding steps with fewer multiplications gain little from a second thread.
WORK_FOR_THREADS = 2**25


def make_folder(name: str | None, default: str) -> Path:
    """Create and return the folder `out=name`; None: a new one in `default`, named by the time."""
    folder = Path(name or f"{default}/{time.strftime('%Y-%m-%d_%H-%M-%S')}").expanduser()
    while name is None and folder.exists():  # of a command in the same second
        folder = folder.with_name(f"{folder.name}_2")
    folder.mkdir(parents=True, exist_ok=True)
    TemporaryFile(dir=folder).close()  # it can be written to
    return folder


def set_up_cpu(decoded: int | None = None) -> None:
    """Set denormal numbers to 0, which are slow, and use one thread for small decoding steps.

    A number of threads in the environment stays as it is.

    Args:
        decoded: multiplications in a decoding step, sequences × parameters; None if tokens are not
            decoded one by one.
    """
    import torch

    torch.set_flush_denormal(True)
    chosen = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys()
    if decoded is not None and decoded < WORK_FOR_THREADS and not chosen:
        torch.set_num_threads(1)
