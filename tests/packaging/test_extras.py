"""The library generates music without the packages of its extras, and names the extra it lacks."""

import subprocess
import sys
import tomllib

from tests.conftest import ROOT

MODULES = {"pytorch-lightning": "pytorch_lightning", "pillow": "PIL"}
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({names}))  # an import of these fails
import musicgen
from musicgen.cli.commands import train
from musicgen.errors import UserError
from musicgen.midi import read

(music,) = musicgen.load().generate("example.mid", prompt_bars=1, bars=1, max_new_tokens=9)
print(len(music.tokens), "tokens")
try:
    read("score.mei")
except UserError as error:
    print(error)
sys.argv[1:] = ["trainer.max_steps=1"]
train()
"""


def test_generation_needs_no_extra(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    packages = [each.partition(">")[0] for name in ("train", "scores") for each in extras[name]]
    names = [MODULES.get(name, name) for name in packages]
    (tmp_path / "score.mei").write_text("<mei/>")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(names=names)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert " tokens" in done.stdout
    assert "score.mei: MEI and Humdrum need verovio; run: pip install -e '.[scores]'" in done.stdout
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()[-1:]
    assert line == "error: pytorch_lightning is not installed; run: pip install -e '.[train]'"
