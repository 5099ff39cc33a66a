"""Output folders, and threads of decoding."""

import os
import subprocess
import sys
import time

import pytest
import torch

from musicgen.cli.output import WORK_FOR_THREADS, make_folder, output_folder, set_up_cpu
from musicgen.errors import UserError


def test_default_folders_of_one_second_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: "2001-01-01_00-00-00")
    names = [make_folder(None, str(tmp_path / "generated")).name for _ in range(3)]
    assert names == [f"2001-01-01_00-00-00{end}" for end in ("", "_2", "_2_2")]


def test_a_folder_belongs_to_one_command_at_a_time(tmp_path):
    name = str(tmp_path / "mine")
    with output_folder(name, "") as out:
        message = r"mine: another command .* give another out=DIR"
        with pytest.raises(UserError, match=message), output_folder(name, ""):
            pass
        (out / "piece_0.mid").touch()
    with output_folder(name, "") as out:
        assert [path.name for path in out.iterdir() if path.name != ".lock"] == ["piece_0.mid"]
    assert [path.name for path in out.iterdir()] == ["piece_0.mid"]


def test_folders_without_files_are_removed(tmp_path):
    with output_folder(str(tmp_path / "mine"), ""):
        pass
    with output_folder(None, str(tmp_path / "generated")):
        pass
    assert not [*tmp_path.iterdir()]


def test_files_are_not_folders(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(FileExistsError, match="mine"):
        make_folder(str(tmp_path / "mine"), "")


@pytest.mark.parametrize(
    ("decoded", "given", "expected"),
    [
        (WORK_FOR_THREADS - 1, None, [1]),
        (WORK_FOR_THREADS, None, []),
        (None, None, []),
        (WORK_FOR_THREADS - 1, "2", []),
    ],
)
def test_small_decoding_steps_take_one_thread(monkeypatch, decoded, given, expected):
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    set_up_cpu(decoded=decoded)
    assert used == expected


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU keeps denormal numbers")
def test_denormal_numbers_become_zero_in_all_threads():
    code = (
        "import torch; from musicgen.cli.output import set_up_cpu; set_up_cpu(); "
        "assert not (torch.full((1 << 20,), 1e-38) / 8).any()"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"OMP_NUM_THREADS": "2"}
    )
