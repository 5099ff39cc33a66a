"""Losses and gradients are means over tokens: over rows, micro-batches, processes and batches."""

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import FSDPStrategy
from torch.distributed.fsdp import FullyShardedDataParallel, fully_sharded_data_parallel
from torch.distributed.fsdp._common_utils import _FSDPDeviceHandle, clean_tensor_name
from torch.nn import functional as F

from musicgen.attention import ELU, FAVOR, LinearAttention, ReLU, SoftmaxAttention
from musicgen.checkpoints import CheckpointContent
from musicgen.midi import Score, Track, notes_from, write
from musicgen.position import Learnable, NoPosition, RoPE, SineSPE, TransformerXL
from musicgen.tokenization import REMI
from musicgen.training import tasks
from musicgen.training.guard import GuardSteps
from musicgen.training.module import TrainingModule
from musicgen.training.monitoring.progress import flops_per_token
from musicgen.training.tasks import LanguageModeling
from tests.data.builders import MidiFolder, MusicDataModule
from tests.end_to_end.deaths import call_in_two_processes
from tests.training.conftest import small_transformer

STEPS, CLIP = 6, 0.5
QUIET: dict[str, Any] = {"logger": False, "enable_checkpointing": False}
QUIET |= {"enable_progress_bar": False, "enable_model_summary": False}
POSITIONS = {  # without noise, which differs between processes
    "none": (NoPosition, ELU),
    "learnable": (partial(Learnable, max_length=64), ReLU),
    "rope": (RoPE, ELU),
    "transformer_xl": (TransformerXL, None),
}
# Positions without parameters of their own have nothing more to shard than others.
STRATEGIES = {"ddp": [*POSITIONS], "fsdp": ["learnable", "transformer_xl"]}


def write_corpus(folder: Path) -> None:
    """Write pieces of very different lengths."""
    rng = np.random.default_rng(0)
    for i in range(40):
        pitches = rng.integers(40, 90, 2 + i)
        rows = [(240 * n, 240, int(pitch), 64) for n, pitch in enumerate(pitches)]
        write(Score(480, [Track("Piano", notes=notes_from(rows))]), folder / f"{i}.mid")


def build(position=NoPosition, feature_map=ELU) -> TrainingModule:
    torch.manual_seed(0)
    attention: Any = partial(LinearAttention, feature_map=feature_map)
    if feature_map is None:
        attention = SoftmaxAttention
    model = small_transformer(len(REMI().vocabulary), position=position, attention=attention)
    content = CheckpointContent({}, {}, [], "", {})

    def optimizer(model):
        return torch.optim.SGD(model.parameters(), lr=1.0)

    constant = partial(torch.optim.lr_scheduler.ConstantLR, factor=1.0)
    return TrainingModule(model, LanguageModeling(), optimizer, constant, content, seed=0)


def datamodule(folder: Path, **settings: Any) -> Any:
    settings |= {"length": 64, "test_fraction": 0, "num_workers": 0}
    return MusicDataModule(MidiFolder(folder / "midi"), REMI(), cache_dir=folder / "c", **settings)


def fit(folder: Path, batch_size: int, module: TrainingModule | None = None, **kwargs) -> dict:
    """Train for a few steps; return the weights and the losses."""
    module = module or build()
    epoch = 4 * kwargs.get("accumulate_grad_batches", 1)  # of as many steps
    data = datamodule(folder, batch_size=batch_size, batches_per_epoch=epoch, val_fraction=0.02)
    losses: list[float] = []
    norms: list[float] = []

    class Record(pl.Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step > len(losses):
                losses.append(float(trainer.callback_metrics["train/loss"]))
                norms.append(float(trainer.callback_metrics["train/gradient_norm"]))

    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        gradient_clip_val=CLIP,
        use_distributed_sampler=False,
        callbacks=[GuardSteps(limit=3), Record()],
        num_sanity_val_steps=0,
        **QUIET,
        **kwargs,
    )
    trainer.fit(module, datamodule=data)
    if isinstance(trainer.strategy, FSDPStrategy):
        with FullyShardedDataParallel.summon_full_params(trainer.strategy.model):
            named = module.named_parameters()
            weights = {clean_tensor_name(name): tensor.clone() for name, tensor in named}
        units = sum(
            isinstance(m, FullyShardedDataParallel) for m in trainer.strategy.model.modules()
        )
        sizes = {"units": units, "flops": flops_per_token(module.model, 64)}
    else:
        weights, sizes = module.state_dict(), {}
    found = {
        "weights": weights,
        "train": losses,
        "norms": norms,
        "val": float(trainer.callback_metrics["val/loss"]),
    }
    return found | sizes


def assert_same(found: dict, expected: dict) -> None:
    assert found["train"] == pytest.approx(expected["train"], abs=1e-5)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert max(expected["norms"]) > CLIP
    assert len(found["weights"]) >= 20
    assert found["val"] == pytest.approx(expected["val"], abs=1e-5)
    for name, tensor in found["weights"].items():
        torch.testing.assert_close(tensor, expected["weights"][name], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    write_corpus(folder / "midi")
    return folder


@pytest.fixture(scope="module")
def one_process(folder) -> Callable[[str], dict]:
    """Train in this process with a positional encoding by its name."""
    return cache(lambda name: fit(folder, 8, build(*POSITIONS[name])))


@pytest.mark.filterwarnings("ignore")
def test_accumulated_gradients_are_those_of_the_whole_batch(folder, one_process):
    whole = one_process("none")
    assert len(whole["train"]) == STEPS
    assert_same(fit(folder, 2, accumulate_grad_batches=4), whole)


class ShardedOnCPU(FSDPStrategy):
    """FSDP, which Lightning and torch refuse on a CPU before they find what to call there."""

    def _setup_model(self, model):
        def init_device_handle(state, *_):
            state._device_handle = _FSDPDeviceHandle(torch.device("cpu"), torch.cpu)
            return state

        fully_sharded_data_parallel._init_device_handle = init_device_handle
        return super()._setup_model(model)


def train_with_each_strategy(folder: Path, out: Path) -> None:
    """Train as one of two processes; the first writes what it found to `out`."""
    torch.set_num_threads(1)
    for kind, names in STRATEGIES.items():
        for name in names:
            strategy = "ddp" if kind == "ddp" else ShardedOnCPU()
            found = fit(folder, 8, build(*POSITIONS[name]), devices=2, strategy=strategy)
            if int(os.environ["LOCAL_RANK"]) == 0:
                torch.save(found, out / f"{name}_{kind}.pt")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_processes_train_like_one(folder, one_process, tmp_path):
    """With one validation piece, fewer than processes; gradients are clipped by their norm."""
    assert call_in_two_processes(train_with_each_strategy, folder, tmp_path) == 0
    for kind, names in STRATEGIES.items():
        for name in names:
            found = torch.load(tmp_path / f"{name}_{kind}.pt")
            assert len(found["train"]) == STEPS
            assert_same(found, one_process(name))
            if kind == "fsdp":  # each layer, and what is outside of them
                assert found["units"] == 3
                assert found["flops"] == flops_per_token(build(*POSITIONS[name]).model, 64)


@pytest.mark.filterwarnings("ignore")
def test_the_validation_loss_is_total_nats_over_total_tokens(folder):
    module = build()
    losses, per_note, nats, tokens, note_nats, notes = [], [], 0.0, 0, 0.0, 0
    for batch_size in (1, 3, 7, 100):
        data = datamodule(folder, batch_size=batch_size, val_fraction=0.5)
        trainer = pl.Trainer(accelerator="cpu", **QUIET)
        (found,) = trainer.validate(module, datamodule=data, verbose=False)
        losses.append(found["val_all/loss"])
        per_note.append(found["val_all/nats_per_note"])
    for piece in data.encoded.split("val"):
        ids = torch.from_numpy(data.encoded.cache[piece][:65])
        logits = module.model(ids[None, :-1])[0]
        nats += float(F.cross_entropy(logits, ids[1:], reduction="sum"))
        tokens += len(ids) - 1
        names = [REMI().vocabulary.token(i) for i in ids[1:].tolist()]
        note_nats += float(F.cross_entropy(logits, ids[1:], reduction="sum"))
        if names[-1] == "EOS":
            note_nats -= float(F.cross_entropy(logits[-1], ids[-1]))
        notes += sum(name.startswith("Pitch") for name in names)
    assert losses == pytest.approx([nats / tokens] * 4, abs=1e-6)
    assert per_note == pytest.approx([note_nats / notes] * 4, rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_batches_of_a_validation_have_noise_of_their_own_and_the_next_has_the_same(
    folder, monkeypatch
):
    module = build(partial(SineSPE, num_realizations=8), FAVOR)
    keys, compute = [], tasks.logits_of

    def logits(model, batch, noise, **options):
        keys.append(noise.seed)
        return compute(model, batch, noise, **options)

    monkeypatch.setattr(tasks, "logits_of", logits)
    data = datamodule(folder, batch_size=2, val_fraction=0.2)
    trainer = pl.Trainer(accelerator="cpu", **QUIET)
    first, again = (
        trainer.validate(module, data, verbose=False)[0]["val_all/loss"] for _ in range(2)
    )
    half = len(keys) // 2
    assert half >= 4
    assert len({*keys}) == half
    assert keys[:half] == keys[half:]
    assert first == again
