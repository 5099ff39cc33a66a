"""What a run records of its command, code and machine."""

import subprocess
import sys

import torch

from musicgen.cli.train import commit, provenance


def test_the_record_has_the_command_as_it_was_typed(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "data.root=my midi"])
    found = provenance()
    assert found["command"] == "python train.py 'data.root=my midi'"
    assert found["packages"]["torch"] == torch.__version__


def test_the_commit_is_that_of_the_checkout_and_says_whether_files_differ(tmp_path):
    def git(*arguments: str) -> str:
        user = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        command = ["git", "-C", str(tmp_path), *user, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert commit(tmp_path) is None
    git("init")
    assert commit(tmp_path) is None  # nothing is committed
    (tmp_path / "a.py").write_text("a = 1")
    git("add", "a.py")
    git("commit", "-m", "a")
    head = git("rev-parse", "HEAD")
    assert commit(tmp_path) == head
    (tmp_path / "a.py").write_text("a = 2")
    assert commit(tmp_path) == f"{head}-dirty"
