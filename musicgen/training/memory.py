"""A step that takes more memory than there is: one line, with what takes less."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from musicgen.errors import UserError

_CURES = (
    "a smaller loader.batch_size with a larger "
    "trainer.accumulate_grad_batches makes steps of the same size; recompute=true, "
    "trainer.precision=bf16-mixed, a shorter loader.length or a smaller model also take less"
)


@contextmanager
def out_of_memory_named() -> Iterator[None]:
    """Raise `UserError`, with cures, where a device or the machine has no memory left."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise UserError(f"a step takes more memory than there is: {_CURES}") from None
        raise
