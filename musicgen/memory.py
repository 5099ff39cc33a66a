"""The memory of this machine and of this process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")  # of Linux
_LIMITS = Path("/sys/fs/cgroup")  # of a container or a SLURM job


def total_memory() -> int | None:
    """Return the machine's memory in bytes; None if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # Windows
        return None


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that this process can still take; None if the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
    except OSError:
        return None
    free = int(lines["MemAvailable"].split()[0]) * 1024
    with suppress(OSError, ValueError):  # no limit
        limit, used = (int((_LIMITS / f"memory.{n}").read_text()) for n in ("max", "current"))
        free = min(free, limit - used)
    return free


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
