"""What this machine has: devices, kernels, a compiler, optional packages."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version

import torch

# Package, what it is for, and its extra or distribution.
_OPTIONAL = (
    ("triton", "kernels on NVIDIA GPUs"),
    ("flash-linear-attention", "the fastest causal product on NVIDIA GPUs"),
    ("pytorch-fast-transformers", "another causal product"),
    ("wandb", "logger=wandb"),
    ("tensorboard", "logger=tensorboard"),
    ("muspy", "data=muspy_dataset, and objects of muspy"),
)


def describe_environment() -> dict[str, str]:
    """Return lines about the machine by topic."""
    memory = total_memory()
    lines = {
        "python": f"{platform.python_version()} on {platform.platform()}",
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads",
        "CPU": f"{os.cpu_count()} cores" + (f", {memory / 2**30:.0f} GiB" if memory else ""),
        "CUDA": _cuda(),
        "MPS": "available" if torch.backends.mps.is_available() else "none",
        "compiler": _compiler(),
        "fluidsynth": "built in: generate.py soundfont=FILE.sf2 writes WAV files",
    }
    for package, purpose in _OPTIONAL:
        try:
            lines[package] = f"{version(package)}: {purpose}"
        except PackageNotFoundError:
            lines[package] = f"not installed: {purpose}"
    return lines


def total_memory() -> int | None:
    """Return the machine's memory in bytes; None if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _cuda() -> str:
    if not torch.cuda.is_available():
        return "none"
    gpus = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        gpus.append(f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB, sm_{gpu.major}{gpu.minor})")
    bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
    return f"{', '.join(gpus)}; CUDA {torch.version.cuda}, {bf16}"


def _compiler() -> str:
    names = filter(None, (os.environ.get("CXX"), "g++", "clang++", "cl"))
    return (
        next(filter(None, map(shutil.which, names)), None)
        or "none: decoding runs uncompiled; install g++ or clang++"
    )
