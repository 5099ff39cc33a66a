"""Changes of checkpoints that exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from musicgen.checkpoints.content import CONTENT_KEY
from musicgen.checkpoints.reading import read_checkpoint
from musicgen.files import atomic_path


def store_sampling(path: Path, sampling: dict[str, Any]) -> None:
    """Store the sampling that suits a model in its checkpoint, atomically.

    Raises:
        UserError: the file is not a checkpoint.
    """
    checkpoint = read_checkpoint(path)
    checkpoint[CONTENT_KEY] = {**checkpoint[CONTENT_KEY], "sampling": sampling}
    with atomic_path(path) as temporary:
        torch.save(checkpoint, temporary)
