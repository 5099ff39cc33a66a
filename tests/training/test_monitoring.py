"""What a training shows of itself: learned values, samples, TensorBoard, W&B, speed, metrics.csv."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from musicgen.attention import SoftmaxAttention
from musicgen.midi import read
from musicgen.position import RoPE
from musicgen.training.monitoring.logger import CSVLogger
from musicgen.training.monitoring.progress import LogCost
from tests.training.conftest import assert_equal, saved, small_transformer

SAMPLES = ("callbacks.samples.every=1", "callbacks.samples.bars=2")
STEPS = ("trainer.max_steps=4", "trainer.val_check_interval=2")
ROPE = {"position": RoPE, "attention": SoftmaxAttention}
SPE = ("position=sine_spe", "attention=favor", "optimizer=adam")


def test_costs_count_steps_and_earlier_sessions():
    callback, logged = LogCost(), {}
    module = SimpleNamespace(device=torch.device("cpu"))
    module.log = lambda name, value, **_: logged.setdefault(name, []).append(value)
    batch = SimpleNamespace(tokens=torch.zeros(2, 8))
    for micro_batch in range(16):  # four per step
        trainer = SimpleNamespace(global_step=(micro_batch + 1) // 4, world_size=3)
        trainer.log_every_n_steps = 2
        callback.on_train_batch_start(trainer, module, batch, micro_batch)
        callback.on_train_batch_end(trainer, module, None, batch, micro_batch)
    assert [len(values) for values in logged.values()] == [2] * 3  # after steps 2 and 4
    assert logged["train/tokens"] == [384, 768]
    resumed = LogCost()
    resumed.load_state_dict(callback.state_dict() | {"seconds": 3600, "cpu_seconds": 7200})
    resumed.on_train_start(trainer, module)
    resumed.on_train_batch_start()
    resumed.on_train_batch_end(trainer, module, None, batch, 0)
    assert resumed.state_dict()["tokens"] == 768 + 48
    resumed.on_validation_epoch_end(trainer, module)
    assert 1 < logged["train/hours"][0] < 1.1
    assert 2 < logged["train/cpu_hours"][0] < 2.1
    assert 0.1 < logged["train/gigabytes"][0] < 100


@pytest.mark.parametrize(
    ("name", "precision", "products", "peak"),
    [
        ("NVIDIA H200", "bf16-mixed", "highest", 989e12),
        ("NVIDIA H200", "16-true", "high", 989e12),
        ("NVIDIA H200", "32-true", "highest", 67e12),
        ("NVIDIA H200", "32-true", "high", 495e12),
        ("NVIDIA A100-SXM4-80GB", "32-true", "medium", 156e12),
        ("NVIDIA L40S", "32-true", "highest", 91.6e12),
        ("NVIDIA L4", "bf16-true", "highest", 121e12),
        ("NVIDIA H200", "64-true", "highest", None),
        ("another", "bf16-mixed", "highest", None),
        ("NVIDIA L40", "bf16-mixed", "highest", None),
    ],
)
def test_mfu_is_of_the_peak_in_the_precision_of_the_products(
    name, precision, products, peak, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: products)
    callback, logged = LogCost(), {}
    module = SimpleNamespace(device=torch.device("cuda"), model=small_transformer(9, **ROPE))
    module.log = lambda name, value, **_: logged.update({name: value})
    trainer = SimpleNamespace(global_step=1, world_size=4, precision=precision, log_every_n_steps=1)
    callback.on_train_batch_start(trainer, module, None, 0)
    callback.on_train_batch_end(trainer, module, None, SimpleNamespace(tokens=torch.zeros(2, 8)), 0)
    if peak is None:
        assert "train/mfu" not in logged
        return
    # 2 layers of 16 × (48 + 16 + 16 + 16) weights and 2 heads of width 8, and a head of 16 × 9.
    flops = 6 * (2 * 16 * 96 + 16 * 9) + 2 * 3 * 2 * 2 * 8 * 8
    of_a_process = logged["train/tokens_per_second"] / 4
    assert logged["train/mfu"] == pytest.approx(flops * of_a_process / peak)


def test_the_rate_of_an_accumulated_step_is_logged_once(run, tmp_path, capsys):
    settings = ("trainer.max_steps=4", "loader.batches_per_epoch=5")
    run("run", *settings, "trainer.accumulate_grad_batches=3", "scheduler=constant")
    with (tmp_path / "run/metrics.csv").open(newline="") as file:
        rates = [row["step"] for row in csv.DictReader(file) if row["lr-MuonAdamW/matrices"]]
    assert rates == ["0", "1", "2", "3"]
    told = "accumulate_grad_batches=3: an epoch has 5 batches, so its last step takes only 2 of"
    assert told in capsys.readouterr().err
    run("all", *settings, "trainer.accumulate_grad_batches=5")
    assert "batches, so its last step" not in capsys.readouterr().err


def test_samples_are_written_and_change_nothing(run, tmp_path):
    plain, sampled = run("plain", *STEPS), run("sampled", *STEPS, *SAMPLES)
    for step in range(4):
        assert plain[step]["train/loss"] == sampled[step]["train/loss"]
    assert_equal(saved(tmp_path / "sampled"), saved(tmp_path / "plain"))
    folder = tmp_path / "sampled/samples"
    files = {"step_2.mid", "step_2.png", "step_4.mid", "step_4.png"}
    assert {path.name for path in folder.iterdir()} == files
    assert (folder / "step_2.png").read_bytes().startswith(b"\x89PNG")
    score = read(folder / "step_2.mid")
    bars = [bar for bar in score.bar_starts() if bar < score.end]
    assert 4 < len(bars) <= 7  # four of the prompt, two new ones, and what sounds past their end
    assert not (tmp_path / "plain/samples").exists()


def test_a_resumed_run_samples_after_the_same_validations(run, tmp_path):
    every = ("trainer.val_check_interval=1", "callbacks.samples.every=2")
    run("run", "trainer.max_steps=3", *every, "callbacks.samples.bars=1")
    assert {path.stem for path in (tmp_path / "run/samples").iterdir()} == {"step_2"}
    last = tmp_path / "run/checkpoints/last.ckpt"
    run("run", "trainer.max_steps=4", *every, "callbacks.samples.bars=1", resume=last)
    assert {path.stem for path in (tmp_path / "run/samples").iterdir()} == {"step_2", "step_4"}


def test_a_sample_that_fails_does_not_end_the_training(run, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/samples").write_text("a file where the folder would be")
    run("run", *STEPS, *SAMPLES)
    assert "no sample at step 2: " in capsys.readouterr().err
    assert (tmp_path / "run/checkpoints/last.ckpt").is_file()


def test_tensorboard_shows_curves_and_samples(run, tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard"
    )
    rows = run("run", *STEPS, *SPE, "logger=tensorboard", *SAMPLES)
    events = accumulator.EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    tags = events.Tags()
    assert set(tags["images"]) == {"sample"}
    assert [image.step for image in events.Images("sample")] == [2, 4]
    assert events.Images("sample")[0].encoded_image_string.startswith(b"\x89PNG")
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    assert losses == pytest.approx({step: float(rows[step]["train/loss"]) for step in range(4)})
    assert {"val/loss", "lr-Adam", "train/gradient_norm"} <= set(tags["scalars"])


def test_wandb_offline_keeps_its_run_on_resume(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="no wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    for steps, resume in ((2, None), (4, tmp_path / "run/checkpoints/last.ckpt")):
        overrides = (*STEPS, f"trainer.max_steps={steps}", "logger=wandb", "logger.wandb.id=mine")
        run("run", *overrides, *SPE, resume=resume)
        wandb.finish()
    files = sorted((tmp_path / "run/wandb").glob("offline-run-*/run-*.wandb"))
    assert [path.name for path in files] == ["run-mine.wandb"] * 2
    assert b"train/gradient_norm" in files[0].read_bytes()


def log(folder: Path, *rows: tuple[int, dict[str, float]]) -> list[tuple[int, str]]:
    """Log rows in a session of their own; return step and column of every value in the file."""
    logger = CSVLogger(folder, name="", version="")
    for step, values in rows:
        logger.log_metrics(values, step)
    logger.save()
    with (folder / "metrics.csv").open(newline="") as file:
        found = [{k: v for k, v in row.items() if v} for row in csv.DictReader(file)]
    return [(int(row.pop("step")), *row) for row in found]  # type: ignore[misc]


def test_a_profile_has_the_training_steps(run, tmp_path):
    steps = ("trainer.max_steps=8", "trainer.val_check_interval=8", "loader.batches_per_epoch=8")
    run("first", "debug=profile", *steps)
    assert "run_training_batch" in (tmp_path / "first/fit-profile.txt").read_text()


def test_a_resumed_run_repeats_no_rows(tmp_path):
    train = [(step, {"train/loss": 1.0}) for step in range(4)]
    validation = (1, {"val/loss": 1.0})
    log(tmp_path, *train[:2], validation, *train[2:])
    # Killed after step 4; the checkpoint is that of step 2, whose validation comes first.
    with (tmp_path / "metrics.csv").open("ab") as file:
        file.write(b"0,1.0,2,3,4\n\xff\n4")
    first = [(0, "train/loss"), (1, "train/loss", "val/loss")]
    assert log(tmp_path, validation, train[2]) == [*first, (2, "train/loss")]
    # Without a validation, the rows of the first step are replaced, with new columns too.
    assert log(tmp_path, (2, {"lr": 0.5}), train[2]) == [*first, (2, "lr", "train/loss")]
    # A test alone keeps all rows.
    assert log(tmp_path, (0, {"test/loss": 1.0}))[-2:] == [
        (2, "lr", "train/loss"),
        (0, "test/loss"),
    ]


def test_all_values_of_a_step_are_one_row(tmp_path):
    """Rate, loss and validation are logged and saved one after another."""
    logger = CSVLogger(tmp_path, name="", version="")
    for step in range(3):
        for name in ("lr", "train/loss", f"val/{step}"):
            logger.log_metrics({name: float(step)}, step)
            if name != "lr":
                logger.save()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [{k: v for k, v in row.items() if v} for row in rows] == [
        {"step": str(i), "lr": f"{i}.0", "train/loss": f"{i}.0", f"val/{i}": f"{i}.0"}
        for i in range(3)
    ]
