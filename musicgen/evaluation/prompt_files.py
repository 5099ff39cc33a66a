"""The files that `prompt=` names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from musicgen.errors import UserError
from musicgen.midi import find_midi

SPLITS = ("val", "test")


def absolute_prompts(prompt: str | Sequence[str] | None) -> str | list[str] | None:
    """Return what `prompt_files` takes with absolute paths; a split and None as they are."""
    if prompt is None or prompt in SPLITS:
        return prompt
    if isinstance(prompt, str):
        return str(Path(prompt).expanduser().absolute())
    return [str(Path(name).expanduser().absolute()) for name in prompt]


def prompt_files(prompt: str | Sequence[str]) -> dict[str, Path]:
    """Return the MIDI files of a file or folder, or of several, by names that are unique.

    Raises:
        UserError: a file or folder is missing, or a folder holds no MIDI file.
    """
    found: list[tuple[str, Path]] = []
    for name in [prompt] if isinstance(prompt, str) else prompt:
        path = Path(name).expanduser()
        if path.is_dir():
            found += [(file.relative_to(path).as_posix(), file) for file in find_midi(path)]
        elif path.exists():
            found.append((path.name, path))
        else:
            raise UserError(f"{path}: cannot be read (no such file or folder)")
    count = Counter(_readable(name) for name, _ in found)
    names: dict[str, Path] = {}
    for name, path in found:
        unique = _readable(name if count[_readable(name)] == 1 else path.as_posix())
        while names.get(unique, path) != path:
            unique += " (again)"
        names[unique] = path
    return names


def _readable(name: str) -> str:
    """Return a file's name as valid Unicode: names need not be UTF-8."""
    return os.fsencode(name).decode(errors="replace")
