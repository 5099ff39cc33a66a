"""`--help`: a command's settings, explained by the comments of its configuration files."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hydra
import yaml
from omegaconf import DictConfig, OmegaConf

from musicgen.cli.arguments import is_override
from musicgen.cli.output import command
from musicgen.package_data import CONF, choices

_INDENT = 30  # column of the explanations
_FLAGS = {
    "--cfg job": "print the configuration instead of running",
    "-m, --multirun": "run every combination of values that commas separate",
}


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


def help_text(config_name: str, arguments: Sequence[str]) -> str:
    """Return the help of a command, with the settings of the groups that `arguments` choose."""
    overrides = [argument for argument in arguments if is_override(argument)]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose(config_name, overrides, return_hydra_config=True)
    main = read_config_file(CONF / f"{config_name}.yaml", "")
    text = "\n".join(main.header).replace(f"python {config_name}.py", command(config_name))
    parts = [text, "Settings, as NAME=VALUE:\n" + _settings(cfg, [main])]
    command_file: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{config_name}.yaml"))
    entries = [entry for entry in command_file["defaults"] if isinstance(entry, dict)]
    groups = {group: choice for entry in entries for group, choice in entry.items()}
    groups |= cfg.hydra.runtime.choices  # also of Hydra's own groups
    groups = {group: choice for group, choice in groups.items() if "hydra" not in group}
    if groups:
        parts.append("Groups of settings, as GROUP=CHOICE; GROUP=CHOICE --help explains one:")
    for group, choice in groups.items():
        if isinstance(choice, list):  # all of them
            parts += [_group(cfg, group, name, []) for name in choice]
        else:
            others = [name for name in choices(group) if name not in (choice, "default")]
            parts.append(_group(cfg, group, choice, others))
    flags = _FLAGS if groups else {"--cfg job": _FLAGS["--cfg job"]}
    parts.append("Flags:\n" + "\n".join(_wrap(flag, text) for flag, text in flags.items()))
    return "\n\n".join(parts)


def _group(cfg: DictConfig, group: str, chosen: str | None, others: Sequence[str]) -> str:
    """Return a choice and its settings, and the other choices of its group."""
    files = [] if chosen is None else _files(group, chosen)
    explained = files[-1].header if files else []
    if others:
        explained = [*explained, f"or {', '.join(others)}"]
    title = _wrap(f"{group}={chosen or 'null'}", "; ".join(explained).replace(".;", ";"), 0)
    settings = _settings(cfg, files)
    return "\n".join(line for line in (title, settings) if line)


def _files(group: str, choice: str) -> list[ConfigFile]:
    """Return the files that a choice extends, and then its own."""
    file = read_config_file(CONF / group / f"{choice}.yaml", group.replace("/", "."))
    return [*(above for parent in file.parents for above in _files(group, parent)), file]


def _settings(cfg: DictConfig, files: Sequence[ConfigFile]) -> str:
    """Return a line for each of the files' settings: its value in `cfg`, and its comment.

    Of several files that explain one, the last counts.
    """
    comments: dict[str, str] = {}
    for file in files:
        for key, comment in file.comments.items():
            full = f"{file.package}.{key}".lstrip(".")
            comments[full] = comment or comments.get(full, "")
    lines = []
    for full, comment in comments.items():
        parent, _, name = full.rpartition(".")
        section = OmegaConf.select(cfg, parent) if parent else cfg
        if full.split(".")[0] in ("defaults", "hydra") or name.startswith("_"):
            continue
        if isinstance(section, DictConfig) and name in section:
            plain: Any = OmegaConf.to_container(section, resolve=False)
            if not isinstance(plain[name], dict):
                lines.append(_wrap(f"{full}={shown(plain[name])}", comment))
    return "\n".join(lines)


def shown(value: Any) -> str:
    """Return a value as on the command line."""
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(shown, value))}]"
    return str(value)


def _wrap(name: str, explanation: str, margin: int = 2) -> str:
    """Return a name and its explanation, wrapped in a column of its own."""
    width = min(100, max(60, shutil.get_terminal_size((100, 24)).columns))
    head = " " * margin + name
    column = " " * _INDENT
    if len(head) >= _INDENT - 1:
        head = f"{head}\n{column}"
    text = textwrap.fill(
        explanation, width, initial_indent=column, subsequent_indent=column, break_on_hyphens=False
    )
    return (head.ljust(_INDENT) + text.lstrip()).rstrip()
