"""What training costs: tokens per second, time and memory."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl

from musicgen.batches import Batch
from musicgen.memory import peak_memory, reset_peak_memory


class Throughput(pl.Callback):
    """Log tokens per second of training, over all processes, and their number, every `every` steps.

    And per second of processor time, of all threads, which other programs hardly change. The time
    of validations is left out. The number is of the whole run, over the sessions of a resumed one.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self._tokens, self._start, self._cpu_start, self._step = 0, 0.0, 0.0, 0
        self._total = 0

    def on_train_batch_start(self, *args: Any) -> None:
        if self._tokens == 0:
            self._start, self._cpu_start = time.perf_counter(), time.process_time()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        tokens = batch.tokens.shape[:2].numel()
        self._tokens += tokens
        self._total += tokens * trainer.world_size
        if trainer.global_step == self._step:
            return  # gradients are still being accumulated
        self._step = trainer.global_step
        if self._step % self.every == 0:
            rate = self._tokens / max(time.process_time() - self._cpu_start, 1e-9)
            pl_module.log("train/tokens_per_cpu_second", rate, rank_zero_only=True)
            rate = self._tokens * trainer.world_size / (time.perf_counter() - self._start)
            pl_module.log("train/tokens_per_second", rate, rank_zero_only=True)
            pl_module.log("train/tokens", float(self._total), rank_zero_only=True)
            self._tokens = 0

    def on_validation_start(self, *args: Any) -> None:
        self._tokens = 0

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self._total}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._total = state_dict["tokens"]


class Resources(pl.Callback):
    """Log with each validation how long training has taken, and how much memory.

    Hours are the wall clock's, and of this process's threads on the CPU, with validations, summed
    over the sessions of a resumed run. Memory
    is the most so far in this session: of tensors on a GPU, otherwise of the whole process. On GPUs
    and on Linux, that of earlier runs in the same process, as in a multirun, does not count.
    """

    def __init__(self) -> None:
        self._before = {"seconds": 0.0, "cpu_seconds": 0.0}
        self._start = _clocks()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._start = _clocks()
        reset_peak_memory(pl_module.device)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        spent = self.state_dict()
        pl_module.log("train/hours", spent["seconds"] / 3600, rank_zero_only=True)
        pl_module.log("train/cpu_hours", spent["cpu_seconds"] / 3600, rank_zero_only=True)
        if (memory := peak_memory(pl_module.device)) is not None:
            pl_module.log("train/gigabytes", memory / 1e9, rank_zero_only=True)

    def state_dict(self) -> dict[str, float]:
        now = _clocks()
        return {name: self._before[name] + now[name] - self._start[name] for name in now}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self._before |= state_dict


def _clocks() -> dict[str, float]:
    return {"seconds": time.monotonic(), "cpu_seconds": time.process_time()}
