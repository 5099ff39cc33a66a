"""Where the time of a training step goes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.profiler import ProfilerActivity, profile

from musicgen.console import log
from musicgen.files import atomic_path, write_text
from musicgen.validation import check_int

_WARM_UP = 5  # steps
_NUM_OPERATIONS = 12  # in the table
_PHASES = ("batch", "forward", "backward", "optimizer")


class ProfileSteps(pl.Callback):
    """Measure the phases of some steps, then the operations of some more; print both.

    The phases are the loading of a batch, forward, backward, and the optimizer's step with the
    checks and the clipping before it. Two files are written: the table, and a trace of all
    operations for chrome://tracing or Perfetto.

    Args:
        folder: of `profile.txt` and `trace.json`.
        timed: steps whose phases are measured, after five others.
        traced: steps whose operations are measured, which takes longer.
    """

    def __init__(self, folder: str, timed: int, traced: int) -> None:
        check_int("timed", timed)
        check_int("traced", traced)
        self.folder, self.timed, self.traced = Path(folder), timed, traced
        self._seconds: dict[str, float] = dict.fromkeys(_PHASES, 0.0)
        self._last: float | None = None
        self._profiler: profile | None = None

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        self._end_phase("batch", pl_module.device)
        if trainer.global_step == _WARM_UP + self.timed and trainer.is_global_zero:
            activities = [ProfilerActivity.CPU]
            if pl_module.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._profiler = profile(activities=activities)
            self._profiler.start()

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        self._end_phase("forward", pl_module.device)

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._end_phase("backward", pl_module.device)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        self._end_phase("optimizer", pl_module.device)
        step = trainer.global_step
        self._last = time.perf_counter() if _WARM_UP <= step < _WARM_UP + self.timed else None
        if self._profiler is not None and step == _WARM_UP + self.timed + self.traced:
            self._profiler.stop()
            self._write(self._profiler)
            self._profiler = None

    def _end_phase(self, name: str, device: torch.device) -> None:
        if self._last is None:
            return
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        self._seconds[name] += now - self._last
        self._last = now

    def _write(self, profiler: profile) -> None:
        text = "\n".join([*self._phases(), "", *self._operations(profiler)])
        write_text(self.folder / "profile.txt", text + "\n")
        with atomic_path(self.folder / "trace.json") as path:
            profiler.export_chrome_trace(str(path))
        log(text)

    def _phases(self) -> list[str]:
        total = sum(self._seconds.values())
        lines = [f"a step takes {1000 * total / self.timed:.1f} ms, the mean of {self.timed}"]
        for name in _PHASES:
            seconds = self._seconds[name]
            lines.append(f"  {name:12}{1000 * seconds / self.timed:9.1f} ms{seconds / total:7.1%}")
        return lines

    def _operations(self, profiler: profile) -> list[str]:
        events = profiler.key_averages()
        on_gpu = any(event.self_device_time_total for event in events)
        times = {
            event.key: event.self_device_time_total if on_gpu else event.self_cpu_time_total
            for event in events
        }
        counts = {event.key: event.count for event in events}
        total = sum(times.values())
        lines = [f"operations of a step, by their own time, traced over {self.traced}"]
        for name in sorted(times, key=lambda key: -times[key])[:_NUM_OPERATIONS]:
            milliseconds = times[name] / 1000 / self.traced
            calls = counts[name] / self.traced
            share = times[name] / total
            lines.append(f"  {name[:44]:46}{milliseconds:9.2f} ms{share:7.1%}{calls:8.0f} calls")
        return lines
