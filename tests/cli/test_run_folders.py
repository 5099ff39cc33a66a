"""Whether a run is still training, and whether the latest one is worth using."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from musicgen.run_folders import LOCK, describe_latest, is_training


def test_a_run_trains_while_its_process_holds_the_folder(tmp_path):
    assert not is_training(tmp_path)
    with FileLock(tmp_path / LOCK):
        assert is_training(tmp_path)
    (tmp_path / LOCK).touch()  # as a killed process leaves it
    assert not is_training(tmp_path)


def test_latest_names_a_finished_model_if_the_run_took_few_steps():
    path = Path("outputs/default/run/checkpoints/best.ckpt")
    line = describe_latest(path, 2, begun=False)
    assert line is not None
    assert "took 2 steps only" in line
    assert "checkpoint=pop-piano-small" in line
    assert describe_latest(path, 1000, begun=False) is None
    assert describe_latest(path, 2, begun=True) is None  # those of a trained model
