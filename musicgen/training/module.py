"""The LightningModule, which trains a model on a task with an optimizer."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import FSDPStrategy
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from musicgen.batches import Batch
from musicgen.checkpoints import CONTENT_KEY, CheckpointContent
from musicgen.console import warn
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.models import Transformer
from musicgen.models.layer import Layer
from musicgen.random import NoiseKey, RandomStream
from musicgen.training.schedules import warn_of_long_warmup
from musicgen.training.tasks import Task


class TrainingModule(pl.LightningModule):
    """Train a model on a task.

    Args:
        optimizer: builds an optimizer of the model, see `parameter_groups`.
        scheduler: builds a learning-rate schedule, stepped every step, from the optimizer.
        content: what checkpoints store with the weights.
        seed: of the positional encoding's noise and of dropout.
        compiled: whether `torch.compile` compiles the layers, once for all of them.
    """

    def __init__(
        self,
        model: Transformer,
        task: Task,
        optimizer: Callable[..., Optimizer],
        scheduler: Callable[..., LRScheduler],
        content: CheckpointContent,
        seed: int,
        *,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        if task.causal is not None and model.causal != task.causal:
            expected = f"expected {str(task.causal).lower()} for {type(task).__name__}"
            raise ParameterError("model.causal", model.causal, expected)
        self.model, self.task = model, task
        for layer in model.layers if compiled else ():
            layer.compile()
        self._optimizer, self._scheduler = optimizer, scheduler
        self._new_optimizer()  # freezes what does not train, before a strategy wraps the model
        self.content, self.seed = content, seed
        # Of the current step: total loss and tokens of this rank, and the tokens of the first
        # micro-batch as a mean over ranks.
        self._totals: Tensor | None = None
        self._unit = torch.ones(())
        self._settings_changed = False

    def setup(self, stage: str) -> None:
        """Let FSDP gather the weights of one layer at a time, unless it has another policy."""
        strategy = self.trainer.strategy
        if isinstance(strategy, FSDPStrategy):
            strategy.kwargs.setdefault("auto_wrap_policy", ModuleWrapPolicy({Layer}))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        # The key depends on the step alone, so that a resumed run draws the same noise.
        number = self.trainer.accumulate_grad_batches
        micro_batch = batch_idx % number
        self._ends_step = micro_batch == number - 1 or self.trainer.is_last_batch
        noise = NoiseKey((self.seed, self.trainer.global_step, micro_batch, self.global_rank))
        # Dropout draws from torch's global generator, which checkpoints do not store.
        torch.manual_seed(noise.fold(RandomStream.DROPOUT).seed)
        draws = self.model.draw(noise, batch.tokens, batch.positions)
        loss = self.task.loss(self.model, batch, draws)
        count = batch.num_targets.to(loss.dtype)
        totals = torch.stack((loss.detach() * count, count))
        if self._totals is None:  # the first micro-batch of a step
            self._unit = self._sum_over_ranks(count) / self.trainer.world_size
            self._totals = torch.zeros_like(totals)
        self._totals += totals
        return loss * (count / self._unit)

    def on_after_backward(self) -> None:
        """Scale the gradient of a step to that of the mean loss over its tokens, and log the loss.

        So far it is the total over micro-batches, averaged over ranks and divided by `_unit` and by
        the number of micro-batches of a complete step.
        """
        if not self._ends_step:
            return
        assert self._totals is not None
        nats, tokens = self._sum_over_ranks(self._totals)
        self._totals = None
        micro_batches = self.trainer.accumulate_grad_batches
        if micro_batches > 1:
            factor = micro_batches * self.trainer.world_size * self._unit / tokens
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor.to(parameter.grad.dtype))
        self.log("train/loss", nats / tokens, prog_bar=True)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradient norm as Lightning does, and under FSDP over all shards."""
        strategy = self.trainer.strategy
        by_norm = gradient_clip_algorithm in (None, "norm")
        if isinstance(strategy, FSDPStrategy) and by_norm and gradient_clip_val:
            assert isinstance(strategy.model, FullyShardedDataParallel)
            strategy.model.clip_grad_norm_(gradient_clip_val)
        else:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if batch_idx == 0:
            self._sums: Counter[str] = Counter()
        # Each batch has its own noise, which is the same in every validation.
        noise = NoiseKey((self.seed, RandomStream.EVALUATION, self.global_rank, batch_idx))
        # Compiled layers are for the one shape of training batches.
        with torch.compiler.set_stance("force_eager"):
            losses, sums = self.task.evaluate(self.model, batch, noise)
        totals = {"nats": losses.sum(), "tokens": batch.num_targets, **sums}
        self._sums.update({name: float(total) for name, total in totals.items()})
        data = getattr(self.trainer, "datamodule", None)
        tokenizer = getattr(data, "tokenizer", None)  # tasks that are not music have none
        if tokenizer is not None:
            is_end = batch.targets == tokenizer.vocabulary.id("EOS")
            notes = tokenizer.num_notes(batch.targets.cpu().numpy())
            self._sums.update({"note_nats": float(losses[~is_end].sum()), "notes": notes})

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        # Validations while training may leave out pieces, see `MusicDataModule`.
        fits = self.trainer.state.fn == TrainerFn.FITTING
        self._log_means("val" if fits else "val_all")

    def on_test_epoch_end(self) -> None:
        self._log_means("test")

    def _log_means(self, split: str) -> None:
        """Log the losses per token and note and the task's measures, over all batches and ranks."""
        names = ("nats", "tokens", "note_nats", "notes", *self.task.means)
        totals = torch.tensor([float(self._sums[name]) for name in names], device=self.device)
        nats, tokens, note_nats, notes, *others = self._sum_over_ranks(totals)
        self.log(f"{split}/loss", nats / tokens, prog_bar=True)
        if notes:
            self.log(f"{split}/nats_per_note", note_nats / notes)
        for name, total in zip(self.task.means, others, strict=True):
            self.log(f"{split}/{name}", total / tokens)
        for name, value in self.task.measures(float(nats / tokens)).items():
            self.log(f"{split}/{name}", value)

    def _sum_over_ranks(self, values: Tensor) -> Tensor:
        reduced = self.trainer.strategy.reduce(values.clone(), reduce_op="sum")
        assert isinstance(reduced, Tensor)
        return reduced

    def configure_optimizers(self) -> Any:
        optimizer = self._new_optimizer()
        try:
            with parameter_of("scheduler"):
                scheduler = self._scheduler(optimizer)
        except ValueError as error:  # torch's
            if isinstance(error, UserError):
                raise
            raise UserError(f"scheduler: {error}") from None
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def _new_optimizer(self) -> Optimizer:
        with parameter_of("optimizer"):
            return self._optimizer(self.model)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the content.

        Raises:
            UserError: a weight is NaN or infinite; no checkpoint is written over a good one.
        """
        for name, parameter in self.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise UserError(
                    f"the weights became NaN or infinite ({name}), and are not saved: a lower "
                    "optimizer.lr or trainer.gradient_clip_val helps; an earlier last.ckpt is "
                    "unchanged"
                )
        checkpoint[CONTENT_KEY] = self.content.to_plain()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = CheckpointContent.from_plain(checkpoint)
        self._settings_changed = any(
            saved.config.get(section) != self.content.config.get(section)
            for section in ("optimizer", "scheduler")
        )

    def is_comparable(self, checkpoint: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint's losses are of the corpus and length of this run."""
        configs = checkpoint[CONTENT_KEY]["config"], self.content.config
        saved, here = ((x["data"]["_target_"], x["loader"]["length"]) for x in configs)
        return saved == here

    def on_train_start(self) -> None:
        if self._settings_changed:
            self._apply_new_settings()
        batches, number = self.trainer.num_training_batches, self.trainer.accumulate_grad_batches
        if batches % number and self.trainer.is_global_zero:
            warn(
                f"trainer.accumulate_grad_batches={number}: an epoch has {batches} batches, so its "
                f"last step takes only {batches % number} of them; "
                f"loader.batches_per_epoch={max(1, batches // number) * number} makes all steps "
                "equal"
            )
        if self.trainer.is_global_zero:
            scheduler = self.content.config.get("scheduler") or {}
            steps = self.trainer.estimated_stepping_batches
            warn_of_long_warmup(scheduler.get("warmup_steps", 0), steps)

    def _apply_new_settings(self) -> None:
        """Apply the settings that are new in a resumed run, whose state was restored before.

        The optimizer keeps its moments, and the schedule its step.

        Raises:
            UserError: the learning rate of the schedule's step cannot be computed from the step.
        """
        (scheduler,) = (config.scheduler for config in self.trainer.lr_scheduler_configs)
        if not isinstance(scheduler, LambdaLR):
            raise UserError(
                f"scheduler={type(scheduler).__name__}: a resumed run cannot change the settings "
                "of this schedule or of the optimizer; begin a new run from its weights with init="
            )
        groups = scheduler.optimizer.param_groups
        for group, new in zip(groups, self._new_optimizer().param_groups, strict=True):
            group.update({**new, "params": group["params"], "initial_lr": new["lr"]})
        scheduler.base_lrs = [group["initial_lr"] for group in groups]
        for group, factor in zip(groups, scheduler.lr_lambdas, strict=True):
            group["lr"] = group["initial_lr"] * factor(scheduler.last_epoch)
