"""Imports follow the table in CONTRIBUTING.md, without cycles between modules."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "musicgen"
# Packages that know nothing of configuration and training loops.
PURE = {
    *("attention", "checkpoints", "composer", "generation", "metrics", "midi", "models"),
    *("plugins.beats", "plugins.page", "plugins.scores"),
    *("position", "report", "tokenization"),
}
FRAMEWORKS = {"hydra", "omegaconf", "pytorch_lightning"}
MIDI_LIBRARIES = {"symusic", "miditoolkit", "muspy", "mido", "pretty_midi"}
MAY_IMPORT_MIDI_LIBRARIES = {
    "musicgen.midi.io": MIDI_LIBRARIES,
    "musicgen.metrics.descriptors": {"muspy"},  # its metrics
}


def dependency_table() -> dict[str, set[str]]:
    """The top-level modules and packages that each may import."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```text dependencies\n(.*?)```", text, re.S)
    imported: dict[str, set[str]] = {}
    for line in block.strip().splitlines():
        names, _, others = line.partition("<-")
        for name in re.findall(r"[\w.]+", names):
            imported[name] = set(re.findall(r"[\w.]+", others))
    return {
        name: imported.keys() - {name} if others == {"all"} else others
        for name, others in imported.items()
    }


TABLE = dependency_table()
# The modules that the table's first line lists: every package may import them.
BASE = {name for name in TABLE if (PACKAGE / f"{name}.py").is_file()} | {"plugins"}


@cache
def modules() -> dict[str, Path]:
    """All modules of the package by their dotted names."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(path: Path) -> set[str]:
    """Modules that a file imports, inside functions and under TYPE_CHECKING too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner & modules().keys() or {node.module}
    return names


def room(module: str) -> str:
    """The part of musicgen in the table that a module belongs to; "" for musicgen itself."""
    parts = module.split(".")[1:3]
    return ".".join(parts if parts[:1] == ["plugins"] else parts[:1])


def test_the_table_lists_every_part():
    found = {room(module) for module in modules()} - {""}
    assert found == set(TABLE)


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_follow_the_table(module):
    imported = imports(modules()[module])
    rooms = {room(name) for name in imported if name.split(".")[0] == "musicgen"} - {""}
    here = room(module)
    allowed = TABLE[here] | {here} if here else {"generation", "run_folders"}
    assert rooms <= allowed | (BASE if here not in BASE else set())
    libraries = {name.split(".")[0] for name in imported}
    assert not (here in PURE and libraries & FRAMEWORKS)
    allowed_midi = MAY_IMPORT_MIDI_LIBRARIES.get(module, set())
    assert not libraries & (MIDI_LIBRARIES - allowed_midi)


def test_no_module_imports_itself_through_others():
    graph = {
        module: {name for name in imports(path) if name in modules()} - {module}
        for module, path in modules().items()
        if module != "musicgen"
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_the_framework_and_other_plugins_import_no_plugin():
    for module, path in modules().items():
        names = {name for name in imports(path) if name.startswith("musicgen.plugins.")}
        assert {room(name) for name in names} <= {room(module)}, module


def test_only_the_scripts_import_the_command_line():
    for module, path in modules().items():
        if room(module) != "cli":
            assert not any(name.startswith("musicgen.cli") for name in imports(path)), module
