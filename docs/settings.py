"""The reference of every setting, from the comments of the configuration files.

`--help` explains the settings by the same comments.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from musicgen.cli.help import ConfigFile, read_config_file, shown
from musicgen.package_data import CONF

COMMANDS = ("train", "generate", "evaluate", "prepare")
# Files that set settings of other groups together; docs/papers.md has those of the papers.
COMBINATIONS = ("debug", "experiment", "hparams_search", "hydra")
INTRODUCTION = """# Settings

Made from the comments of `conf/`. `python train.py --help` prints the settings of a command, and
`python train.py position=rope --help` those of a choice. Settings are given as `NAME=VALUE`,
choices as `GROUP=CHOICE`. A value such as `${seed}` is that of another setting.
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
    """Return what a configuration file says of itself, and a table of its settings."""
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
        value = values
        for part in key.split("."):
            value = value[part]
        internal = key.split(".")[0] in ("defaults", "hydra") or "_target_" in key
        if not internal and not key.endswith("_") and not (value and isinstance(value, dict)):
            yield f"{file.package}.{key}".lstrip("."), escape(shown(value)), comment


def escape(text: str) -> str:
    return text.replace("|", "\\|")
