"""Arguments as Hydra's grammar wants them: paths are quoted, and prompts may be given alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from musicgen.errors import UserError

# Hydra's grammar rejects commas, brackets, ampersands and sharps, which names of files, regular
# expressions and keys contain.
PATHS = frozenset(
    {
        *("prompt", "checkpoint", "out", "generated", "references", "soundfont"),
        *("init", "resume"),
        *(
            "key",
            "chords",
            "keep",
            "tracks",
            "data.root",
            "data.group",
            "data.exclude",
            "loader.cache_dir",
            "paths.data_dir",
            "paths.output_dir",
        ),
    }
)


def is_override(argument: str) -> bool:
    """Return whether an argument is a setting, not a flag of Hydra or a word after one."""
    return argument.startswith("~") or ("=" in argument and not argument.startswith("-"))


def override_key(override: str) -> str:
    return override.partition("=")[0]


def quoted_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with quotes around the values that are paths."""
    return [
        f"{key}={quoted(value)}"
        if equals and key in PATHS and not _is_list(key, value)
        else argument
        for argument in arguments
        for key, equals, value in [argument.partition("=")]
    ]


def _is_list(key: str, value: str) -> bool:
    """Return whether a value of a key that takes several is a list already."""
    several = key in ("data.exclude", "keep", "tracks")
    return several and value.startswith("[") and value.endswith("]")


def quoted(value: str) -> str:
    """Quote a value for Hydra's grammar, unless it is null or quoted already."""
    if value in ("", "null") or (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
        return value
    # Inside quotes, only backslashes before a quote and interpolations need escaping.
    head = value.rstrip("\\")
    value = head.replace("'", "\\'") + "\\\\" * (len(value) - len(head))
    return "'" + value.replace("${", "\\${") + "'"


def named_values(arguments: Sequence[str], one: str, several: str) -> list[str]:
    """Return the arguments with a key for paths that are given alone: `generate song.mid`.

    Args:
        one, several: the key of one path, and that of a list of them.
    """
    paths = [
        argument
        for before, argument in zip(["", *arguments], arguments, strict=False)
        if not argument.startswith("-") and not before.startswith("-")  # a word after a flag
        if not is_override(argument) or Path(argument).exists()
    ]
    if not paths:
        return list(arguments)
    key = one if len(paths) == 1 else several
    if any(override_key(argument) in (one, several) for argument in arguments):
        raise UserError(f"{paths[0]}: give paths either alone or with {key}=, not both")
    value = quoted(paths[0]) if len(paths) == 1 else f"[{','.join(map(quoted, paths))}]"
    return [*(argument for argument in arguments if argument not in paths), f"{key}={value}"]
