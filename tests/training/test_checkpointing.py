"""Checkpoint files are whole, whatever happens; what is private in Lightning is as it was."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch

from musicgen.errors import UserError
from musicgen.training.averaging import AverageWeights
from musicgen.training.checkpointing import AtomicCheckpointIO, validates_next


class Foresee(pl.Callback):
    """Record after which batches a validation is foreseen, and follows."""

    def __init__(self) -> None:
        self.foreseen: list[int] = []
        self.followed: list[int] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        self.batch = trainer.fit_loop.epoch_loop.total_batch_idx
        if validates_next(trainer):
            self.foreseen.append(self.batch)

    def on_validation_start(self, *args) -> None:
        self.followed.append(self.batch)


class Linear(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings",
    [
        {"val_check_interval": 3, "check_val_every_n_epoch": None},
        {"val_check_interval": 2},
        {"check_val_every_n_epoch": 2},
        {"val_check_interval": 3, "check_val_every_n_epoch": None, "accumulate_grad_batches": 2},
    ],
    ids=str,
)
def test_validations_are_foreseen(tmp_path, settings):
    record, data = Foresee(), torch.utils.data.DataLoader(torch.randn(5, 2))
    trainer = pl.Trainer(
        **settings,
        accelerator="cpu",
        max_epochs=4,
        num_sanity_val_steps=0,
        default_root_dir=tmp_path,
        callbacks=[record],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Linear(), data, data)
    assert record.foreseen == record.followed
    assert record.followed


def test_the_average_is_on_the_device_of_training():
    callback, module = AverageWeights(0.9), Linear()  # on the CPU until training has been set up
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("meta")))
    callback.setup(trainer, module, "fit")
    assert callback._average_model.module.layer.weight.is_meta


def num_weights(path: Path) -> int:
    return len(torch.load(path, weights_only=True)["weights"])


def test_a_checkpoint_is_staged_beside_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    path = tmp_path / "checkpoints" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(3)}, str(path))
    assert num_weights(path) == 3
    assert list(path.parent.iterdir()) == [path]


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


def test_what_a_killed_process_left_is_overwritten_and_files_of_others_stay(tmp_path):
    (tmp_path / ".last.ckpt.unfinished").write_bytes(b"half")
    others = {"best.ckpt", ".mine.ckpt", ".last-mine.ckpt", ".best.ckpt.unfinished"}
    for name in others:
        (tmp_path / name).write_bytes(b"whole")
    AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(3)}, tmp_path / "last.ckpt")
    assert {path.name for path in tmp_path.iterdir()} == {"last.ckpt", *others}
    assert num_weights(tmp_path / "last.ckpt") == 3
