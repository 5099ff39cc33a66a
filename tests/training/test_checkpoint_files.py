"""Checkpoint files are whole, whatever happens while they are written."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

import pytest
import torch

from musicgen.errors import UserError
from musicgen.training.checkpoint_files import AtomicCheckpointIO


def saved(path: Path) -> int:
    return len(torch.load(path, weights_only=True)["weights"])


def test_a_checkpoint_is_staged_beside_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    path = tmp_path / "checkpoints" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(3)}, str(path))
    assert saved(path) == 3
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
    assert saved(path) == 3
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_overwritten_and_files_of_others_stay(tmp_path):
    (tmp_path / ".last.ckpt.unfinished").write_bytes(b"half")
    others = {"best.ckpt", ".mine.ckpt", ".last-mine.ckpt", ".best.ckpt.unfinished"}
    for name in others:
        (tmp_path / name).write_bytes(b"whole")
    AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(3)}, tmp_path / "last.ckpt")
    assert {path.name for path in tmp_path.iterdir()} == {"last.ckpt", *others}
    assert saved(tmp_path / "last.ckpt") == 3
