"""A trained run for the commands."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.command_line import SHORT, TINY, call_here
from tests.end_to_end.deaths import train

SPE = ("position=sine_spe", "attention=favor")  # one kernel, by SPE


@pytest.fixture(scope="session", autouse=True)
def _heed_ctrl_c() -> None:
    """Children inherit an ignored SIGINT, such as a background job's, but not a handled one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A folder with a run in `outputs/tiny`."""
    folder = tmp_path_factory.mktemp("trained")
    assert train(folder, *TINY, *SHORT, *SPE, "run_name=tiny") == 0, (folder / "stderr").read_text()
    (folder / "stderr").unlink()
    return folder


@pytest.fixture(scope="module")
def workplace(trained, tmp_path_factory) -> Path:
    """A copy of it that the tests of a file may change."""
    folder = tmp_path_factory.mktemp("workplace")
    return Path(shutil.copytree(trained, folder, dirs_exist_ok=True))


@pytest.fixture
def here(monkeypatch, capsys):
    """`here(folder, script, *arguments)`: a command in this process, see `call_here`."""
    return lambda folder, script, *arguments: call_here(
        folder, script, list(arguments), monkeypatch, capsys
    )


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("file systems are mounted by administrators alone")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
