"""Arguments as Hydra's grammar wants them: paths are quoted, and may be given alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from musicgen.errors import UserError

PATHS = frozenset(
    {
        *("prompt", "checkpoint", "out", "generated", "references", "soundfont", "chords", "keep"),
        *("init", "resume", "data.root", "data.group", "data.exclude", "loader.cache_dir"),
        *("paths.data_dir", "paths.output_dir"),
    }
)
"""Settings whose values may hold commas, brackets and ampersands, which Hydra's grammar rejects."""


def override_key(argument: str) -> str:
    """Return the setting or group that an argument names; "" for a flag and a word alone."""
    key, equals, _ = argument.partition("=")
    is_override = (equals and not key.startswith("-")) or key.startswith("~")
    return key.lstrip("+~") if is_override else ""


def quoted_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with quotes around the values that are paths."""
    texts = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        is_list = key in ("data.exclude", "keep") and value.startswith("[")
        texts.append(f"{key}={quoted(value)}" if key in PATHS and not is_list else argument)
    return texts


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
    flags = [argument.startswith("-") for argument in arguments]
    paths = [
        argument
        for argument, is_flag, follows_flag in zip(arguments, flags, [False, *flags], strict=False)
        if not is_flag and not follows_flag
        if not override_key(argument) or Path(argument).exists()
    ]
    if not paths:
        return list(arguments)
    if {one, several} & set(map(override_key, arguments)):
        raise UserError(f"{paths[0]}: give paths either alone or with {one}=, not both")
    value = quoted(paths[0]) if len(paths) == 1 else f"[{','.join(map(quoted, paths))}]"
    key = one if len(paths) == 1 else several
    return [*(argument for argument in arguments if argument not in paths), f"{key}={value}"]
