"""Whether a run is still training."""

from __future__ import annotations

from filelock import FileLock

from musicgen.run_folders import LOCK, is_training


def test_a_run_trains_while_its_process_holds_the_folder(tmp_path):
    assert not is_training(tmp_path)
    with FileLock(tmp_path / LOCK):
        assert is_training(tmp_path)
    (tmp_path / LOCK).touch()  # as a killed process leaves it
    assert not is_training(tmp_path)
