"""Output folders, and threads."""

import os
import time
from pathlib import Path
from tempfile import TemporaryFile

# A second thread gains little in a decoding step with fewer multiplications.
WORK_FOR_THREADS = 1 << 25


def make_folder(name: str | None, default: str) -> Path:
    """Create the folder `out=name`; null creates a new one in `default`, named by date and time."""
    folder = Path(name or f"{default}/{time.strftime('%Y-%m-%d_%H-%M-%S')}").expanduser()
    while name is None and folder.exists():  # another command's of this second
        folder = folder.with_name(f"{folder.name}_2")
    folder.mkdir(parents=True, exist_ok=True)
    TemporaryFile(dir=folder).close()  # it can be written to
    return folder


def set_up_cpu(decoded: int | None = None) -> None:
    """Let denormal numbers be 0, which take a CPU long, and small decoding steps take one thread.

    Args:
        decoded: multiplications in a decoding step, rows x parameters; None if tokens are not
            decoded one by one. A user's own number of threads stays.
    """
    import torch

    torch.set_flush_denormal(True)
    own = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys()
    if decoded is not None and decoded < WORK_FOR_THREADS and not own:
        torch.set_num_threads(1)
