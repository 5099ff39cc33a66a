"""The memory of this machine and of this process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import torch


def total_memory() -> int | None:
    """Return the machine's memory in bytes; None if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # Windows
        return None


def peak_memory(device: torch.device) -> int | None:
    """Return the most memory in bytes that was in use since `reset_peak_memory`.

    That of tensors on a GPU, otherwise of the whole process; None on a system that does not say.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def reset_peak_memory(device: torch.device) -> None:
    """Begin to count anew; systems other than Linux keep the peak of the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # see proc_pid_clear_refs(5)
