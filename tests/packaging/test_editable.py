"""An editable installation is found beside a checkout that has the package's name."""

import shutil
import subprocess
import sys
from zipfile import ZipFile

from tests.conftest import ROOT


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path):
    checkout = tmp_path / "musicgen"
    (checkout / "musicgen").mkdir(parents=True)
    (checkout / "musicgen/__init__.py").write_text("load = None")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    build = f"from setuptools.build_meta import build_editable as build; print(build({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=checkout, capture_output=True, text=True
    )
    ZipFile(tmp_path / done.stdout.split()[-1]).extractall(tmp_path / "site")
    code = (
        f"import site; site.addsitedir({str(tmp_path / 'site')!r}); import musicgen; musicgen.load"
    )
    hidden = [sys.executable, "-S", "-c", code]
    subprocess.run(hidden, cwd=tmp_path, check=True, env={})
