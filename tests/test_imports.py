"""Imports follow the architecture's arrows, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "musicgen"
# What each package may import of the project; itself and these always.
ALWAYS = {"counts", "errors", "files", "values"}
ARROWS = {
    "midi": set(),
    "tokenization": {"midi"},
    "data": {"midi", "tokenization"},
    "position": set(),
    "attention": {"position"},
    "models": {"attention", "position"},
    "metrics": {"midi"},
    "report": {"midi"},
    "training": {"data", "tokenization", "models", "attention", "position"},
    "generation": {"data", "training", "tokenization", "midi", "models", "position"},
}
# These know nothing of configuration and training loops.
PURE = {"midi", "tokenization", "position", "attention", "models", "metrics", "report"}
STRANGERS = {"hydra", "omegaconf", "pytorch_lightning"}
MIDI_LIBRARIES = {"symusic", "miditoolkit", "muspy", "mido", "pretty_midi"}
EXCEPTIONS = {
    ("generation", "model.py"): {"miditoolkit", "muspy"},  # for annotations only
    ("data", "muspy_dataset.py"): {"muspy"},  # whose data sets it is there for
}


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_every_package_is_listed():
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert packages == set(ARROWS)


@pytest.mark.parametrize("package", ARROWS)
def test_imports_follow_the_arrows(package):
    for path in (PACKAGE / package).rglob("*.py"):
        names = imports(path)
        ours = {name.split(".")[1] for name in names if name.startswith("musicgen.")}
        assert ours <= ARROWS[package] | {package, *ALWAYS}, path
        top = {name.split(".")[0] for name in names}
        assert not (package in PURE and top & STRANGERS), path
        if path.name != "io.py":
            assert not top & (MIDI_LIBRARIES - EXCEPTIONS.get(path.parts[-2:], set())), path
