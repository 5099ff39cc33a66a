"""Output folders, devices and command names."""

from __future__ import annotations

import os
import sys
import time
from itertools import count
from pathlib import Path

from musicgen.errors import UserError
from musicgen.validation import check_choice

# A second thread gains little in a decoding step with fewer multiplications.
WORK_FOR_THREADS = 1 << 25


def make_folder(name: str | None, default: str) -> Path:
    """Create the folder `out=name`; null creates a new one in `default`, named by date and time."""
    first = Path(name or f"{default}/{time.strftime('%Y-%m-%d_%H-%M-%S')}").expanduser()
    numbered = (first.with_name(f"{first.name}_{number}") for number in count(2))
    folder = first
    while name is None and folder.exists():
        folder = next(numbered)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be created ({error.strerror})"
    else:
        if os.access(folder, os.W_OK):
            return folder
        problem = "cannot be written to"
    raise UserError(f"out={folder}: {problem}; give another folder")


def find_device(name: str) -> str:
    """Return the torch device for `device=name`; `auto` takes the fastest available."""
    import torch  # slow to import: report errors in arguments first

    devices = ["cpu"]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    devices += ["cuda"] if torch.cuda.is_available() else []
    check_choice("device", str(name).partition(":")[0], ["auto", *devices])
    return devices[-1] if name == "auto" else name


def set_up_cpu(decoded: int | None = None) -> None:
    """Let denormal numbers be 0, and small decoding steps take one thread.

    Attention weights of distant tokens are below 1e-38, and take a CPU many times as long. The
    results of another number of threads differ by rounding: a user's own number stays.

    Args:
        decoded: multiplications in a decoding step, rows x parameters; None if tokens are not
            decoded one by one.
    """
    import torch

    torch.set_flush_denormal(True)
    own = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys()
    if decoded is not None and decoded < WORK_FOR_THREADS and not own:
        torch.set_num_threads(1)


def command(name: str) -> str:
    """Return how the user would call another command: a script, or an installed entry point."""
    return f"python {name}.py" if sys.argv[0].endswith(".py") else f"musicgen-{name}"
