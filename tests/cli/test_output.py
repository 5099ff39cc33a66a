"""Output folders: one process each."""

from __future__ import annotations

import time

import pytest

from musicgen.cli.output import claimed_folder, make_folder
from musicgen.errors import UserError


def test_default_folders_of_one_second_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: "2001-01-01_00-00-00")
    names = [make_folder(None, str(tmp_path / "generated")).name for _ in range(3)]
    assert names == [f"2001-01-01_00-00-00{end}" for end in ("", "_2", "_3")]


def test_a_folder_is_claimed_by_one_process(tmp_path):
    out = str(tmp_path / "mine")
    with claimed_folder(out, "") as folder:
        (folder / "piece.mid").touch()
        with (
            pytest.raises(UserError, match=r"mine: another process is writing there"),
            claimed_folder(out, ""),
        ):
            pass
    assert [path.name for path in folder.iterdir()] == ["piece.mid"]
    with claimed_folder(out, ""):
        pass
    assert folder.exists()


def test_an_empty_folder_is_removed(tmp_path):
    with pytest.raises(KeyError), claimed_folder(str(tmp_path / "mine"), ""):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_files_are_not_folders(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match=r"mine: cannot be created \(File exists\)"):
        make_folder(str(tmp_path / "mine"), "")
