"""Plugins: what hangs on the framework, found by the entry points of installed packages.

The framework imports no plugin. It asks this registry, which other packages may fill as well: a
reader of another format is one line in their metadata, see docs/plugins.md.
"""

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from musicgen.errors import UserError


@cache
def _modules(group: str) -> dict[str, str]:
    """The modules that are registered in a group of entry points, by name."""
    return {entry.name: entry.module for entry in entry_points(group=f"musicgen.{group}")}


@cache
def suffixes() -> frozenset[str]:
    """Return the suffixes of the files that readers are registered for, such as `.mxl`."""
    return frozenset(f".{name}" for name in _modules("readers"))


def reader(path: Path) -> Any:
    """Return the module that reads a file, by the suffix of the file.

    It has `read(path, *, repeats=False) -> Score`. A reader of files that hold several pieces also
    has `divide(path) -> list[Path]`: a path per piece, such as `book.abc/07`.

    Raises:
        UserError: the module is missing.
    """
    suffix = path.suffix.lower()
    return _load("readers", suffix[1:], f"{path}: reading {suffix}")


def plugin(name: str, purpose: str) -> Any:
    """Return the module of a plugin, such as `beats` or `page`.

    Args:
        purpose: what needs it, the first words of the error's message.

    Raises:
        UserError: the module is missing.
    """
    return _load("plugins", name, purpose)


def _load(group: str, name: str, purpose: str) -> Any:
    module = _modules(group).get(name, f"musicgen.plugins.{name}")
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not module.startswith(str(error.name)):  # a package that the plugin needs
            raise
        raise UserError(f"{purpose} needs {module}, which is not installed") from None
