"""Commands answer before they import what takes seconds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from musicgen.composer import compose_pop
from musicgen.midi import write
from tests.end_to_end.command_line import ROOT

# Runs command lines, and prints which of the named libraries they imported.
CODE = """
import atexit, shlex, sys
from musicgen.cli import commands
slow = ("torch", "torch._dynamo", "pytorch_lightning", "scipy", "sympy", "matplotlib", "muspy", "miditoolkit")
atexit.register(lambda: print("imported:", *(name for name in slow if name in sys.modules)))
for line in sys.argv[1:]:
    name, *sys.argv[1:] = shlex.split(line)
    sys.argv[0] = f"musicgen-{name}"
    getattr(commands, name)()
"""


def run(folder: Path, *lines: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CODE, *lines]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    *_, last = done.stdout.splitlines()
    assert last.startswith("imported:"), done.stderr
    return done, set(last.split()[1:])


def test_help_imports_no_slow_library(tmp_path):
    done, imported = run(tmp_path, "train --help")
    assert (done.returncode, done.stderr, imported) == (0, "", set())
    assert "musicgen-train " in done.stdout
    assert "\noptimizer: adam, adamw, muon\n" in done.stdout
    assert "\nexperiment/spe2021: groove_ape, " in done.stdout


def test_a_missing_run_is_named_before_slow_imports(tmp_path):
    done, imported = run(tmp_path, "train resume=missing lr=1")
    assert (done.returncode, imported) == (2, set())
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: resume=missing")
    assert not list(tmp_path.glob("outputs/*/*"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("missing.mid num_samples=1", "missing.mid"),
        ("prompt=[example.mid,missing.mid]", "missing.mid"),
        ("prompt=.", "holds no MIDI file"),
        ("example.mid checkpoint=mine", "checkpoint=mine"),
        ("example.mid soundfont=mine.sf2", "mine.sf2"),
        ("example.mid beats=mine.txt", "mine.txt"),
        ("example.mid nam_samples=1", "num_samples"),
        ("example.mid out=used", "another folder with out=DIR"),
    ],
)
def test_a_wrong_name_is_told_before_slow_imports(tmp_path, arguments, named):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "generation.json").touch()
    done, imported = run(tmp_path, f"generate {arguments}")
    assert (done.returncode, imported) == (2, set())
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert named in line


def test_neither_generating_nor_evaluating_imports_lightning_or_other_readers_of_midi(workplace):
    write(compose_pop(3, 0), workplace / "one.mid")
    write(compose_pop(4, 0), workplace / "two.mid")
    generate = "generate one.mid two.mid prompt_bars=1 bars=1 out=from"
    evaluate = "evaluate metrics=position_loss max_pieces=1 out=measured"
    done, imported = run(workplace, generate)
    assert done.returncode == 0, done.stderr
    assert imported == {"torch"}  # without its compiler
    done, imported = run(workplace, evaluate)
    assert done.returncode == 0, done.stderr
    assert not {"pytorch_lightning", "muspy", "miditoolkit"} & imported
    names = {path.name for path in (workplace / "from").glob("*.mid")}
    assert names == {"one_0.mid", "two_0.mid"}
