"""Log the tokens per second, time and memory of a training, and show a progress bar.

Lightning's progress bars restart every epoch.
"""

import re
import sys
import time
from datetime import timedelta
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ProgressBar
from rich.progress import MofNCompleteColumn, Progress, TextColumn
from torch import nn

from musicgen.attention import LinearAttention
from musicgen.batches import Batch
from musicgen.console import log, progress_bar
from musicgen.models import Transformer
from musicgen.training.clock import EndInTime

# Dense products, in FLOPs a second, by a word of the device's name (makers' data sheets): in 16
# bits, in TF32, and in fp32.
_PEAKS = {
    "H200": (989e12, 495e12, 67e12),
    "H100": (989e12, 495e12, 67e12),
    "A100": (312e12, 156e12, 19.5e12),
    "L40S": (362e12, 183e12, 91.6e12),
    "L4": (121e12, 60e12, 30.3e12),
}
_SHOWN = {
    "train/loss": ", loss {:.3f}",
    "train/tokens_per_second": ", {:,.0f} tokens/s",
    "train/mfu": ", MFU {:.1%}",
}


class LogCost(pl.Callback):
    """Log tokens per second as often as the loss, and hours and gigabytes at each validation.

    Tokens are counted over all processes, padding included. `train/tokens_per_cpu_second` is per
    second of processor time of all threads, on which other programs have little effect. Both rates
    leave out the time of validations. `train/mfu` is the model's FLOPs, by formula, over the
    device's peak in the precision of the products (Chowdhery et al. 2022), on GPUs whose peak is
    known. Tokens and hours are summed over the sessions of a resumed run. Gigabytes are the peak
    memory so far: of tensors on a GPU, otherwise of the whole process.
    """

    def __init__(self) -> None:
        self._tokens, self._step, self._start = 0, 0, _clocks()  # since the last log
        self._session = _clocks()
        self._total_tokens = 0.0
        self._earlier = {"seconds": 0.0, "cpu_seconds": 0.0}  # spent in earlier sessions

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._session = _clocks()

    def on_train_batch_start(self, *args: Any) -> None:
        if self._tokens == 0:
            self._start = _clocks()

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
        self._total_tokens += tokens * trainer.world_size
        if trainer.global_step == self._step:
            return  # gradients are still being accumulated
        self._step = trainer.global_step
        if self._step % cast("Any", trainer).log_every_n_steps == 0:
            spent = {name: now - self._start[name] for name, now in _clocks().items()}
            rates = {
                "tokens_per_second": self._tokens * trainer.world_size / spent["seconds"],
                "tokens_per_cpu_second": self._tokens / max(spent["cpu_seconds"], 1e-9),
                "tokens": self._total_tokens,
            }
            precision = str(getattr(trainer, "precision", ""))
            if (peak := peak_flops(pl_module.device, precision)) is not None:
                model = cast("Transformer", pl_module.model)
                per_token = flops_per_token(model, batch.tokens.shape[1])
                rates["mfu"] = per_token * self._tokens / spent["seconds"] / peak
            for name, value in rates.items():
                pl_module.log(f"train/{name}", value, rank_zero_only=True)
            self._tokens = 0

    def on_validation_start(self, *args: Any) -> None:
        self._tokens = 0

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        spent = self.state_dict()
        pl_module.log("train/hours", spent["seconds"] / 3600, rank_zero_only=True)
        pl_module.log("train/cpu_hours", spent["cpu_seconds"] / 3600, rank_zero_only=True)
        if (memory := peak_memory(pl_module.device)) is not None:
            pl_module.log("train/gigabytes", memory / 1e9, rank_zero_only=True)

    def state_dict(self) -> dict[str, float]:
        spent = {
            name: self._earlier[name] + now - self._session[name] for name, now in _clocks().items()
        }
        return {"tokens": self._total_tokens, **spent}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self._earlier = dict(state_dict)
        self._total_tokens = self._earlier.pop("tokens")


def flops_per_token(model: Transformer, length: int) -> float:
    """Return the FLOPs per token of a training step's matrix products, forward and backward.

    6 per weight of a matrix (Kaplan et al. 2020), and 3 times those of attention:
    with H heads and values of width V, linear attention takes 4·M·V per head, and
    FAVOR+ 2·E·M for its features; causal softmax attention takes 2·K·L.

    The sizes are those that the model was built with, as a process may hold a part of its weights.
    """
    modules = (module for part in (model.layers, model.head) for module in part.modules())
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    per_token = 6.0 * sum(module.in_features * module.out_features for module in linear)
    for layer in list[Any](model.layers):
        attention, width = layer.attention, layer.out.in_features // layer.num_heads
        if isinstance(attention, LinearAttention):
            features = 4 * attention.feature_dim * width
            directions = attention.feature_map.directions
            features += 0 if directions is None else 4 * directions.numel()
        else:
            features = 2 * length * width
        per_token += 3 * layer.num_heads * features
    return per_token


def peak_flops(device: torch.device | str, precision: str = "bf16-mixed") -> float | None:
    """Return the peak of a device in products, in FLOPs a second; None if it is unknown.

    Args:
        precision: Lightning's, such as `32-true`; fp32 products are in TF32 unless
            `torch.set_float32_matmul_precision` is `highest`.
    """
    if torch.device(device).type != "cuda" or precision.startswith("64"):
        return None
    name = torch.cuda.get_device_name(device)
    words = re.split(r"[ -]", name)
    peaks = next((peaks for model, peaks in _PEAKS.items() if model in words), None)
    if peaks is None:
        return None
    in_16_bits, in_tf32, in_fp32 = peaks
    if not precision.startswith("32"):
        return in_16_bits
    return in_fp32 if torch.get_float32_matmul_precision() == "highest" else in_tf32


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory in bytes, or None on a system that does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def _clocks() -> dict[str, float]:
    return {"seconds": time.perf_counter(), "cpu_seconds": time.process_time()}


class RunProgress(ProgressBar):
    """Show one bar up to the last step with loss and speed, and log a line per validation."""

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None
        self._clock: EndInTime | None = None

    def disable(self) -> None:
        """Do nothing: the bar starts on the first process only."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            state = TextColumn("steps{task.fields[state]},")
            left = TextColumn("left {task.fields[left]}, elapsed", style="progress.remaining")
            self._progress = progress_bar(MofNCompleteColumn(), state, left)
            self._bar = self._progress.add_task("training", total=None, state="", left="-:--:--")
            self._progress.start()
            self._start = time.monotonic(), trainer.global_step
            settings: Any = trainer
            self._every = settings.log_every_n_steps
            clocks = (each for each in settings.callbacks if isinstance(each, EndInTime))
            self._clock = next((clock for clock in clocks if clock.seconds is not None), None)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        if self._progress is None:
            return
        done, last = trainer.global_step, trainer.max_steps  # which a clock may change
        total = last if last > 0 else None
        changes: dict[str, Any] = {}
        if done % self._every == 0:  # a GPU waits whenever a value is read
            found = ((trainer.callback_metrics.get(name), text) for name, text in _SHOWN.items())
            shown = (text.format(float(value)) for value, text in found if value is not None)
            changes["state"] = "".join(shown)
        if (left := self._seconds_left(done, total)) is not None:
            changes["left"] = str(timedelta(seconds=round(left)))
        self._progress.update(self._bar, completed=done, total=total, **changes)

    def _seconds_left(self, done: int, total: int | None) -> float | None:
        """Return the seconds until the end: of the clock, or at the speed so far."""
        if self._clock is not None and self._clock.seconds is not None:
            return max(0.0, self._clock.seconds - self._clock.elapsed)
        start, first = self._start
        if total is None or done == first:
            return None
        return (time.monotonic() - start) / (done - first) * (total - done)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loss = trainer.callback_metrics.get("val/loss")
        if self._progress is not None and loss is not None:
            log(f"step {trainer.global_step}: validation loss {float(loss):.4f}")

    def on_train_end(self, *args: Any) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def on_exception(self, *args: Any) -> None:
        self.on_train_end()
