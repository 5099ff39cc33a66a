"""Write samples of the model while it is trained: a MIDI file and a piano roll."""

import copy
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import TensorBoardLogger, WandbLogger
from pytorch_lightning.strategies import FSDPStrategy, ModelParallelStrategy

from musicgen.console import warn
from musicgen.data.loading import MusicDataModule
from musicgen.errors import UserError
from musicgen.generation.continuation import Continuation
from musicgen.generation.model import MusicModel
from musicgen.report.figures import plot_piano_roll
from musicgen.training.module import TrainingModule
from musicgen.validation import check_int

_NAME = "sample"  # of the image in loggers
# More than most bars have. A model may never end a bar early in its training.
_MAX_TOKENS_PER_BAR = 128


class LogSamples(pl.Callback):
    """Continue the first validation piece after every few validations.

    Writes `step_N.mid` and `step_N.png`, and shows the image in TensorBoard and W&B. The training
    is the same as without. Weights that are spread over devices are not sampled from.

    Args:
        folder: of the files.
        every: validations between samples; None: no samples.
        prompt_bars: bars of the piece to continue from.
        bars: bars to add.
        seed: of the draws, the same for all samples.
    """

    def __init__(
        self, folder: str, every: int | None, prompt_bars: int, bars: int, seed: int
    ) -> None:
        check_int("every", every, none_means="no samples")
        self.folder, self.every = Path(folder), every
        self.prompt_bars, self.bars, self.seed = prompt_bars, bars, seed
        self._num_validations = 0

    def state_dict(self) -> dict[str, Any]:
        return {"num_validations": self._num_validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._num_validations = state_dict["num_validations"]

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._num_validations += 1
        if self.every is None or self._num_validations % self.every or not trainer.is_global_zero:
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        spread = isinstance(trainer.strategy, FSDPStrategy | ModelParallelStrategy)
        if not isinstance(data, MusicDataModule) or spread:
            return  # a task that is not music, or no process has the whole model
        assert isinstance(pl_module, TrainingModule)
        try:
            self._write(self._sample(pl_module, data), trainer)
        except (UserError, OSError) as error:  # a failed sample must not end the training
            warn(f"no sample at step {trainer.global_step}: {error}")

    def _sample(self, module: TrainingModule, data: MusicDataModule) -> Continuation:
        # A copy, because tensors that sampling creates must not be used by the training.
        network = copy.deepcopy(module.model).float().eval()
        model = MusicModel(network, data.tokenizer, module.content, self.folder)
        pieces = data.encoded.cache.pieces("val")
        prompt = data.tokenizer.decode(data.encoded.cache[pieces[0]]) if pieces else None
        (piece,) = model.generate(
            prompt,
            prompt_bars=self.prompt_bars,
            bars=self.bars,
            max_new_tokens=self.bars * _MAX_TOKENS_PER_BAR,
            seed=self.seed,
            engine="eager",
        )
        return piece

    def _write(self, piece: Continuation, trainer: pl.Trainer) -> None:
        step = trainer.global_step
        path = self.folder / f"step_{step}.png"
        piece.save(path.with_suffix(".mid"))
        image = plot_piano_roll(piece.score, path, mark=piece.prompt.end.tick)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_image(_NAME, image, step, dataformats="HWC")
            elif isinstance(logger, WandbLogger):
                logger.log_image(_NAME, [str(path)], step)
