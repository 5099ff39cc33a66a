"""Write the reference of every setting from the comments of the configuration files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf

from musicgen.package_data import CONF

COMMANDS = ("train", "generate", "evaluate", "prepare")
# Files that set settings of other groups together; docs/papers.md has those of the papers.
COMBINATIONS = ("debug", "experiment", "hparams_search", "hydra")
INTRODUCTION = """# Settings

Made from the comments of `conf/`; `python train.py --help` prints the values. Settings are given
as `NAME=VALUE`, choices as `GROUP=CHOICE`. A value such as `${seed}` is that of another setting.
"""


def reference() -> str:
    """Return the page in Markdown: the commands, then the choices of each group."""
    parts = [INTRODUCTION]
    for command in COMMANDS:
        path = CONF / f"{command}.yaml"
        parts.append(section(f"## `musicgen-{command}`", path, ""))
    for group in groups():
        parts.append(f"## `{group}=`\n")
        for path in sorted((CONF / group).glob("*.yaml")):
            parts.append(section(f"### `{group}={path.stem}`", path, group))
    return "\n".join(parts)


def groups() -> list[str]:
    """Return the groups of conf/ whose files hold settings of their own."""
    folders = [path.name for path in sorted(CONF.iterdir()) if path.is_dir()]
    return [name for name in folders if name not in COMBINATIONS]


def section(title: str, path: Path, package: str) -> str:
    """Return the description of a configuration file, and a table of its settings."""
    file = read_config_file(path, package)
    lines = [title, "", *(f"{line}  " for line in file.header), ""]
    if file.parents:
        lines += [f"Settings of {', '.join(f'`{name}`' for name in file.parents)}, and:", ""]
    if rows := list(settings(file, path)):
        lines += ["| setting | default | |", "|---|---|---|"]
        lines += [f"| `{name}` | `{value}` | {escape(text)} |" for name, value, text in rows]
    return "\n".join([*lines, ""])


def settings(file: ConfigFile, path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the value and the explanation of each setting of a file."""
    values: Any = OmegaConf.to_container(OmegaConf.load(path))
    for key, comment in file.comments.items():
        if key.split(".")[0] in ("defaults", "hydra") or "_target_" in key:
            continue
        value = values
        for part in key.split("."):
            value = value[part]
        if not key.endswith("_") and not (value and isinstance(value, dict)):
            yield f"{file.package}.{key}".lstrip("."), escape(shown(value)), comment


class ConfigFile(NamedTuple):
    """The comments of a configuration file."""

    header: list[str]  # its first lines
    package: str  # where its keys stand in the configuration; "" for the top
    comments: dict[str, str]  # by key: the one behind it, else above it, else its section's
    parents: list[str]  # the files of its group that it extends


def read_config_file(path: Path, package: str) -> ConfigFile:
    """Read the comments of a configuration file."""
    text = path.read_text(encoding="utf-8")
    header: list[str] = []
    above: list[str] = []
    comments: dict[str, str] = {}
    sections: list[tuple[int, str, str]] = []  # indent, key and comment of those around a line
    for line in text.splitlines():
        code, _, comment = line.partition("#")
        indent, (name, colon, _) = len(code) - len(code.lstrip()), code.strip().partition(":")
        if comment.startswith(" @package "):
            package = comment.split()[1].replace("_global_", "")
        elif not code.strip():
            above.append(comment.strip())
        else:
            if not comments:
                header, above = above, []
            while sections and sections[-1][0] >= indent:
                sections.pop()
            if colon and not name.startswith("- "):
                inherited = sections[-1][2] if sections else ""
                explained = " ".join([*above, comment.strip()]).strip() or inherited
                sections.append((indent, name, explained))
                comments[".".join(key for _, key, _ in sections)] = explained
            above = []
    parents = [x for x in (yaml.safe_load(text) or {}).get("defaults", []) if isinstance(x, str)]
    header = [line for line in (header or above) if line]
    return ConfigFile(header, package, comments, [name for name in parents if name != "_self_"])


def shown(value: Any) -> str:
    """Return a value as on the command line."""
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(shown, value))}]"
    return str(value)


def escape(text: str) -> str:
    return text.replace("|", "\\|")
