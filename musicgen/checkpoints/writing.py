"""Writing of checkpoint files, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from musicgen.files import atomic_path


def write_checkpoint(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint beside its place, to the disk, and then rename it.

    What a killed process left unfinished in the folder is removed.
    """
    for unfinished in path.parent.glob(f".*{path.suffix}"):
        unfinished.unlink(missing_ok=True)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())
