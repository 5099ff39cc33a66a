"""The memory that a training step takes, estimated before the first one from one and two rows."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import FSDPStrategy
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode  # torch counts no bytes on a CPU
from torch.utils._pytree import tree_iter

from musicgen.batches import Batch
from musicgen.console import log, warn
from musicgen.errors import UserError
from musicgen.memory import free_memory
from musicgen.random import NoiseKey

_CURES = (
    "a smaller loader.batch_size (find=batch_size names the largest) with a larger "
    "trainer.accumulate_grad_batches makes steps of the same size; recompute=true, "
    "trainer.precision=bf16-mixed, a shorter loader.length or a smaller model also take less"
)


class PeakMemory(TorchDispatchMode):
    """Count the bytes of the tensors that are made inside and still alive.

    Attributes:
        peak: the most at one time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        known = {_storage(t) for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and _storage(tensor) not in known | self._alive:
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        self._alive.add(storage.data_ptr())
        self._now += storage.nbytes()
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._free, storage.data_ptr(), storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self._now -= size


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class EstimateMemory(pl.Callback):
    """Say before the first step how much memory a step takes; warn, with cures, if it has not.

    A step of one row and one of two rows, whose gradients are thrown away, are measured.
    """

    def __init__(self) -> None:
        self._done = False

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        if self._done or not trainer.is_global_zero or isinstance(trainer.strategy, FSDPStrategy):
            return
        self._done = True
        free = free_memory(pl_module.device)
        if free is None:
            return
        needed = step_memory(pl_module, batch)
        text = f"a step takes about {needed / 1e9:.3g} GB of memory; {free / 1e9:.3g} GB are free"
        if needed <= free:
            log(text)
        else:
            warn(f"{text}: {_CURES}")


def step_memory(module: Any, batch: Batch) -> int:
    """Estimate the bytes that a step takes beside the weights."""
    before = [buffer.clone() for buffer in module.buffers()]
    one, two = (_measure(module, _examples(batch, n)) for n in (1, 2))
    for buffer, value in zip(module.buffers(), before, strict=True):
        buffer.copy_(value)  # such as the running means of batch norm
    weights = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    # The optimizer keeps two moments of each weight; DDP adds the gradients in another copy.
    copies = 2 + (module.trainer.world_size > 1)
    return one + (len(batch.targets) - 1) * max(0, two - one) + copies * weights


def _examples(batch: Batch, number: int) -> Batch:
    """Return a batch of the first examples, repeated if there are fewer."""
    count = len(batch.targets)  # of which each has a row of tokens, or one for each tower
    index = torch.arange(number, device=batch.tokens.device) % count
    return Batch(
        **{
            name: value
            if value is None or (name == "positions" and len(value) == 1)
            else value.unflatten(0, (-1, count))[:, index].flatten(0, 1)
            for name, value in vars(batch).items()
        }
    )


def _measure(module: Any, batch: Batch) -> int:
    """Return the most bytes that the gradients of a batch take at one time, with what they need."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    devices = [module.device] if module.device.type == "cuda" else []
    with torch.random.fork_rng(devices), PeakMemory() as memory:
        with module.trainer.precision_plugin.train_step_context():  # of the forward only
            loss = module.task.loss(module.model, batch, NoiseKey((0,)))
        # Not `backward`, after which DDP would begin to add the gradients of all processes.
        torch.autograd.grad(loss, parameters, allow_unused=True)
    return memory.peak


@contextmanager
def out_of_memory_named() -> Iterator[None]:
    """Raise `UserError`, with cures, where a device or the machine has no memory left."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise UserError(f"a step takes more memory than there is: {_CURES}") from None
        raise
