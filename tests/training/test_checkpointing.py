"""Checkpoint files are whole, whatever happens; what is private in Lightning is as it was."""

import resource
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader

from musicgen.errors import UserError
from musicgen.training.callbacks import AverageWeights
from musicgen.training.checkpointing import AtomicCheckpointIO, validates_next


class Foresee(pl.Callback):
    """Record after which batches a validation is foreseen, and follows."""

    def __init__(self) -> None:
        self.foreseen: list[int] = []
        self.followed: list[int] = []

    def on_train_batch_end(self, trainer, *args) -> None:
        self.batch = trainer.fit_loop.epoch_loop.total_batch_idx
        self.foreseen += [self.batch] if validates_next(trainer) else []

    def on_validation_start(self, *args) -> None:
        self.followed.append(self.batch)


EVERY = {"val_check_interval": 3, "check_val_every_n_epoch": None}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings",
    [{"val_check_interval": 2}, {"check_val_every_n_epoch": 2}]
    + [EVERY | {"accumulate_grad_batches": batches} for batches in (1, 2)],
    ids=str,
)
def test_validations_are_foreseen(settings):
    record, data = Foresee(), DataLoader(RandomDataset(32, 5))
    options = settings | {"accelerator": "cpu", "max_epochs": 4, "num_sanity_val_steps": 0}
    options |= {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = pl.Trainer(**options, callbacks=[record], enable_checkpointing=False)
    trainer.fit(BoringModel(), data, data)
    assert record.foreseen == record.followed
    assert record.followed


def test_the_average_is_on_the_device_of_training():
    callback = AverageWeights(0.9)  # of a model on the CPU until training has been set up
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("meta")))
    callback.setup(trainer, BoringModel(), "fit")
    assert callback._average_model.module.layer.weight.is_meta


def num_weights(path: Path) -> int:
    return len(torch.load(path, weights_only=True)["weights"])


def test_a_checkpoint_is_staged_beside_its_place_and_files_of_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / ".last.ckpt.unfinished").write_bytes(b"half")  # by a process that was killed
    others = {"best.ckpt", ".mine.ckpt", ".last-mine.ckpt", ".best.ckpt.unfinished"}
    for name in others:
        (folder / name).write_bytes(b"whole")
    AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(3)}, str(folder / "last.ckpt"))
    assert {path.name for path in folder.iterdir()} == {"last.ckpt", *others}
    assert num_weights(folder / "last.ckpt") == 3


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    path = tmp_path / "last.ckpt"
    io = AtomicCheckpointIO()
    io.save_checkpoint({"weights": torch.zeros(3)}, path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # bytes that fit
    try:
        with pytest.raises(UserError, match=r"last\.ckpt: cannot be written \(File too large\)"):
            io.save_checkpoint({"weights": torch.zeros(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert num_weights(path) == 3
    assert list(tmp_path.iterdir()) == [path]
