"""The music files that prompts name."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from musicgen.errors import UserError
from musicgen.midi import divide_book, file_of, find_music, music_name
from musicgen.package_data import own_or_example

HELD_OUT = ("val", "test")
"""Splits of the corpus of a model that no model is trained on; prompts may name them."""


def prompt_files(prompt: str | Sequence[str]) -> dict[str, Path]:
    """Return the music files in one or several files and folders, by unique names.

    Each tune of a tune book in ABC notation is a file of its own.

    Raises:
        UserError: a file or folder is missing, or a folder has no music file.
    """
    found: list[tuple[str, Path]] = []
    for name in [prompt] if isinstance(prompt, str) else prompt:
        if not str(name).strip():  # it would be the current folder
            raise UserError("an empty name of a prompt; give a file or a folder")
        path = _in_home(name)
        if path.is_dir():
            found += [(file.relative_to(path).as_posix(), file) for file in find_music(path)]
        elif file_of(path).exists():
            found += [(music_name(music), music) for music in divide_book(path)]
        else:
            raise UserError(f"{path}: cannot be read (no such file or folder)")
    count = Counter(name for name, _ in found)
    unique = {name if count[name] == 1 else path.as_posix(): path for name, path in found}
    # File names need not be UTF-8.
    return {os.fsencode(k).decode(errors="backslashreplace"): path for k, path in unique.items()}


def absolute_prompts(prompt: str | Sequence[str] | None) -> str | list[str] | None:
    """Return the argument of `prompt_files` with absolute paths; splits and None are unchanged."""
    if prompt is None or prompt in HELD_OUT:
        return prompt
    names = [prompt] if isinstance(prompt, str) else prompt
    return [str(_in_home(name).absolute()) for name in names]


def _in_home(name: str) -> Path:
    """Return a path with `~` replaced by the home folder, if there is such a user."""
    try:
        return own_or_example(Path(name).expanduser())
    except RuntimeError:  # no user has this name
        return Path(name)
