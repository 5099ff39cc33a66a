"""The wheel, installed into a clean environment, works from any folder."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from musicgen import __version__
from musicgen.midi import read
from tests.end_to_end.command_line import TINY

ROOT = Path(__file__).parents[2]
SOURCES = ("musicgen", "conf", "pyproject.toml", "setup.py", "README.md", "LICENSE")


def run(folder: Path, *command: str | Path) -> str:
    hidden = ("PYTHONPATH", "HYDRA_FULL_ERROR")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    # A copy of the sources, as building leaves files beside them.
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, source)
    model = source / "musicgen/pretrained/a-model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index")
    run(source, *pip, "--no-build-isolation", "--wheel-dir", "dist", ".")
    (path,) = (source / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def scripts(wheel, tmp_path_factory) -> Path:
    """The scripts of an environment with the wheel and this environment's other packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    paths = {"base": str(folder), "platbase": str(folder)}
    target = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    scripts = Path(sysconfig.get_path("scripts", "venv", vars=paths))
    # A path in a .pth file is not searched for further .pth files, such as an editable install's.
    (target / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", scripts / "python", "install")
    run(folder, *pip, "--no-deps", "--no-index", "--ignore-installed", wheel)
    return scripts


def test_the_wheel_carries_configurations_and_models(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert wheel.name.startswith(f"musicgen_symbolic-{__version__}-")  # the import stays musicgen
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert "musicgen/data/corpora/bach_chorales.json" in names
    assert "musicgen/plugins/page/scripts/page.html" in names
    assert "musicgen/examples/example.mid" in names
    assert "musicgen/pretrained/a-model/model.safetensors" in names
    assert not any(name.startswith("notebooks/") for name in names)
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert f"musicgen/{path.relative_to(ROOT).as_posix()}" in names


@pytest.mark.slow
def test_installed_commands_run_in_any_folder(scripts, tmp_path):
    where = "import musicgen, musicgen.package_data as r; print(musicgen.__file__, r.CONF)"
    found = run(tmp_path, scripts / "python", "-c", where).split()
    assert all(Path(path).is_relative_to(scripts.parent) for path in found)

    assert "ready: 6 pieces in" in run(tmp_path, scripts / "musicgen-prepare", "data.num_pieces=6")
    # Two processes, so that the second one is started by the installed script too.
    ddp = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "trainer.precision=32")
    limits = ("run_name=tiny", "trainer.max_steps=2", "trainer.val_check_interval=2")
    log = run(tmp_path, scripts / "musicgen-train", *TINY, *limits, *ddp)
    assert "to generate with it: musicgen-generate checkpoint=" in log
    short = ("bars=1", "prompt_bars=1", "out=new")
    run(tmp_path, scripts / "musicgen-generate", "checkpoint=latest", "prompt=test", *short)
    assert any(read(path).num_notes for path in (tmp_path / "new").glob("*.mid"))
    run(tmp_path, scripts / "musicgen-evaluate", "metrics=position_loss", "out=measures")
    assert (tmp_path / "measures/position_loss.csv").is_file()
