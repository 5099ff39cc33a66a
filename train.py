"""Train a model: python train.py [position=conv_spe data=midi_folder data.root=/my/midi ...]."""

from __future__ import annotations

if __name__ == "__main__":
    import musicgen.startup  # noqa: F401, before what takes seconds to import

import contextlib
import logging
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from musicgen import cli
from musicgen.counts import counted
from musicgen.data.datamodule import MusicData
from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.models import check_compatible
from musicgen.tokenization.base import Tokenizer
from musicgen.training.checkpoint import CheckpointContent, check_resume, parameter_count
from musicgen.training.module import TrainingModule
from musicgen.values import whole


def main(cfg: DictConfig) -> float | None:
    """Compose, check, fit, test. Returns the best validation loss, if there is one, for sweeps.

    Raises:
        UserError: settings that do not go together, missing data, a checkpoint that does not fit.
    """
    try:
        return _run(cfg)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(cfg.paths.output_dir).rmdir()  # Hydra made it; a run that failed leaves it empty
        raise


def _run(cfg: DictConfig) -> float | None:
    # Advice of the libraries about each other, on which a user could not act.
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|torch.jit")
    logging.getLogger("pytorch_lightning.utilities.rank_zero").setLevel(logging.WARNING)
    check_compatible(
        instantiate(cfg.model.position),
        instantiate(cfg.model.attention),
        instantiate(cfg.model.span),
        causal=cfg.model.causal,
    )
    whole("seed", cfg.seed, at_least=0, at_most=2**32 - 1)
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    tokenizer: Tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    data: MusicData = instantiate(cfg.data, tokenizer=tokenizer)
    model = instantiate(cfg.model, vocab_size=len(tokenizer.vocabulary))
    data.with_positions = model.position.needs_positions
    max_length = model.position.max_length
    if max_length is not None and cfg.data.length > max_length:
        raise UserError(
            f"data.length={cfg.data.length} is more than model.position.max_length={max_length}; "
            f"set model.position.max_length={cfg.data.length} or more"
        )
    content = _content(cfg, tokenizer)
    module = TrainingModule(
        model,
        instantiate(cfg.task),
        instantiate(cfg.optimizer),
        instantiate(cfg.scheduler),
        content,
        cfg.seed,
    )
    if cfg.resume is not None:
        check_resume(Path(cfg.resume), content, model)
    record = _Record(cfg)
    callbacks = [instantiate(callback) for callback in cfg.callbacks.values() if callback]
    trainer: pl.Trainer = instantiate(
        cfg.trainer,
        callbacks=[record, *callbacks],
        logger=[instantiate(logger) for logger in (cfg.logger or {}).values()],
    )
    if trainer.is_global_zero:
        if cfg.resume is None:
            _take(record.folder)
            record.write()
        cli.say(f"{parameter_count(model):,} parameters; the run's folder is {record.folder}")
    if cfg.train:
        _fit(trainer, module, data, cfg.resume, record)
    best = getattr(trainer.checkpoint_callback, "best_model_path", "")
    if cfg.test:
        trainer.test(
            module, datamodule=data, ckpt_path=best or None, verbose=trainer.is_global_zero
        )
    score = getattr(trainer.checkpoint_callback, "best_model_score", None)
    return None if score is None else float(score)


class _Record(pl.Callback):
    """How a run was started, in its folder: of a resumed run once it has taken a step.

    A resume that is refused, or fails at once, so leaves the run as it was.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg, self.folder = cfg, Path(cfg.paths.output_dir)
        self.steps_taken = False

    def write(self) -> None:
        write_text(self.folder / "config.yaml", OmegaConf.to_yaml(self.cfg, resolve=True))
        cli.save_overrides(self.folder)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if self.steps_taken:
            return
        self.steps_taken = True
        if trainer.is_global_zero and self.cfg.resume is not None:
            self.write()

    def discard(self) -> None:
        """Remove the folder if it holds nothing but this."""
        if {path.name for path in self.folder.iterdir()} <= {"config.yaml", ".hydra"}:
            shutil.rmtree(self.folder)


def _take(folder: Path) -> None:
    """Refuse a folder that another run has: it would be written over."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / "config.yaml").touch(exist_ok=False)
    except FileExistsError:
        raise UserError(
            f"{folder} holds another run; go on with it by resume={folder}, or start again in a "
            "folder of its own"
        ) from None


def _fit(
    trainer: pl.Trainer,
    module: TrainingModule,
    data: MusicData,
    resume: str | None,
    record: _Record,
) -> None:
    """Fit, and say where it stopped if it was interrupted."""
    began = time.monotonic()
    try:
        trainer.fit(module, datamodule=data, ckpt_path=resume)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        saved = (record.folder / "checkpoints" / "last.ckpt").is_file()
        if trainer.is_global_zero:
            if saved and (record.steps_taken or interrupted):
                cli.say(f"to go on: python train.py resume={record.folder}")
            elif not saved and not record.steps_taken:
                record.discard()
        if isinstance(error, SystemExit):  # Lightning's own way out of Ctrl-C
            raise KeyboardInterrupt from None
        raise
    if trainer.is_global_zero:
        loss = trainer.callback_metrics.get("val/loss")
        validation = "" if loss is None else f", validation loss {float(loss):.4f} nats a token"
        seconds = time.monotonic() - began
        duration = f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
        cli.say(f"{counted(trainer.global_step, 'steps')} in {duration}{validation}")
        cli.say(f"next: python generate.py checkpoint={record.folder} prompt=song.mid")


def _content(cfg: DictConfig, tokenizer: Tokenizer) -> CheckpointContent:
    """What a checkpoint needs to be opened anywhere: plain data, interpolations resolved."""
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    return CheckpointContent(
        model=config["model"],
        tokenizer=config["tokenizer"],
        vocabulary=list(tokenizer.vocabulary.tokens),
        vocabulary_hash=tokenizer.vocabulary.hash,
        config=config,
    )


if __name__ == "__main__":
    cli.run(main, "train", Path(__file__).parent / "conf")
