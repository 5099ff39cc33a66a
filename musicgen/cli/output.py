"""Output folders, devices and command names."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from musicgen.errors import UserError
from musicgen.validation import check_choice


def make_folder(name: str | None, default: str) -> Path:
    """Create the folder `out=name`; null creates one in `default`, named by date and time."""
    folder = Path(name or f"{default}/{time.strftime('%Y-%m-%d_%H-%M-%S')}").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"out={folder}: cannot be created ({error.strerror}); give another folder"
        ) from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"out={folder}: cannot be written to; give another folder")
    return folder


def find_device(name: str) -> str:
    """Return the torch device for `device=name`; `auto` takes the fastest available."""
    import torch  # slow to import: report errors in arguments first

    devices = ["cpu"]
    if torch.backends.mps.is_available():
        devices.append("mps")
    if torch.cuda.is_available():
        devices.append("cuda")
    if name == "auto":
        return devices[-1]
    check_choice("device", name.partition(":")[0], ["auto", *devices])
    return name


def command(name: str) -> str:
    """Return how the user would call another command: a script, or an installed entry point."""
    return f"python {name}.py" if sys.argv[0].endswith(".py") else f"musicgen-{name}"
