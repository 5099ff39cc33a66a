"""Imports and sizes follow the tables in CONTRIBUTING.md, without cycles between modules."""

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
    *("position", "report", "tokenization"),
}
SUFFIXES = (".py", "/**/*.py")
FRAMEWORKS = {"hydra", "omegaconf", "pytorch_lightning"}
MIDI_LIBRARIES = {"symusic", "miditoolkit", "muspy", "mido", "pretty_midi"}
MAY_IMPORT_MIDI_LIBRARIES = {
    "musicgen.midi.roles": {"pretty_midi"},
    "musicgen.midi.io": MIDI_LIBRARIES,
    "musicgen.midi.audio": {"symusic"},
    "musicgen.metrics.descriptors": {"muspy"},  # its metrics
}


def table(name: str) -> list[str]:
    """The lines of a table in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"```text {name}\n(.*?)```", text, re.S)
    return block.strip().splitlines()


def dependency_table() -> tuple[dict[str, set[str]], dict[tuple[str, ...], int]]:
    """Top-level modules and packages: what each may import, and the lines that each may have."""
    imported, lines = {}, {}
    for line in table("dependencies"):
        names, size, others = re.fullmatch(r"(.+?) +(\d+) +<-(.*)", line).groups()
        group = tuple(name.strip() for name in names.split(","))
        lines[group] = int(size)
        imported |= {name: set(re.findall(r"[\w.]+", others)) for name in group}
    everything = set(imported)
    return {
        name: everything - {name} if "all" in others else others
        for name, others in imported.items()
    }, lines


TABLE, LINES = dependency_table()
# The modules that the table's first line lists: every package may import them.
BASE = {name for name in TABLE if (PACKAGE / f"{name}.py").is_file()}


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
    if module.startswith("musicgen.data.non_music"):
        return "data.non_music"
    return module.split(".")[1] if "." in module else ""


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


def test_only_the_scripts_import_the_command_line():
    for module, path in modules().items():
        if room(module) != "cli":
            assert not any(name.startswith("musicgen.cli") for name in imports(path)), module


def num_lines(*patterns: str) -> int:
    paths = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


@pytest.mark.parametrize(("names", "most"), LINES.items(), ids=lambda x: str(x))
def test_packages_keep_to_their_lines(names, most):
    found = num_lines(*(f"musicgen/{x.replace('.', '/')}{end}" for x in names for end in SUFFIXES))
    assert found <= most, f"{', '.join(names)}: {found} lines of Python"


@pytest.mark.parametrize("line", table("lines"))
def test_the_repository_keeps_to_its_lines(line):
    most, *patterns = line.split()
    assert num_lines(*patterns) <= int(most)
