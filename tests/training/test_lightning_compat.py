"""What training takes from private parts of Lightning and torch is still as it was."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch

from musicgen.training.averaging import AverageWeights
from musicgen.training.lightning_compat import validates_next


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
