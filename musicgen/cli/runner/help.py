"""`--help`: a command's settings, explained by the comments of its configuration files."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import yaml
from omegaconf import DictConfig, OmegaConf

from musicgen.cli.output import command
from musicgen.cli.runner.arguments import is_override
from musicgen.package_data import CONF

_PACKAGE = re.compile(r"#\s*@package\s+(\S+)")
_INDENT = 30  # column of the explanations
_FLAGS = {
    "--cfg job": "print the configuration instead of running",
    "-m, --multirun": "run every combination of values that commas separate",
}


@dataclass(frozen=True)
class ConfigFile:
    """The comments of a configuration file.

    Attributes:
        header: the comment at its beginning, by lines.
        package: where its keys stand in the configuration; "" for the top.
        comments: the comment of each key, or of the section it stands in.
        parents: the files of its group that it extends.
    """

    header: list[str]
    package: str
    comments: dict[str, str]
    parents: list[str]

    @classmethod
    def read(cls, path: Path, package: str) -> ConfigFile:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        if found := _PACKAGE.search(text):
            package = "" if found[1] == "_global_" else found[1]
        top = yaml.compose(text)
        first = top.start_mark.line if isinstance(top, yaml.MappingNode) else len(lines)
        header = [line.lstrip("# ") for line in lines[:first] if not _PACKAGE.match(line)]
        comments = dict(_comments(top, lines, first))
        defaults = (yaml.safe_load(text) or {}).get("defaults", [])
        parents = [name for name in defaults if isinstance(name, str) and name != "_self_"]
        return cls([line for line in header if line], package, comments, parents)


def _comments(
    node: Any, lines: list[str], first: int, prefix: str = "", inherited: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the dotted key of each value, with its comment: above it, or behind it."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if not prefix and key.value in ("defaults", "hydra"):
            continue
        line = key.start_mark.line
        above = line
        while above > first and lines[above - 1].lstrip().startswith("#"):
            above -= 1
        comment = [text.strip().lstrip("# ") for text in lines[above:line]]
        in_block = isinstance(value, yaml.CollectionNode) and not value.flow_style
        rest = lines[line][key.end_mark.column :] if in_block else ""
        if not in_block:
            rest = lines[value.end_mark.line][value.end_mark.column :]
        if "#" in rest:
            comment.append(rest.partition("#")[2].strip())
        name, text = f"{prefix}{key.value}", " ".join(comment) or inherited
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _comments(value, lines, first, f"{name}.", text)
        else:
            yield name, text


def help_text(config_name: str, arguments: Sequence[str]) -> str:
    """Return the help of a command, with the settings of the groups that `arguments` choose."""
    overrides = [argument for argument in arguments if is_override(argument)]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose(config_name, overrides, return_hydra_config=True)
    main = ConfigFile.read(CONF / f"{config_name}.yaml", "")
    text = "\n".join(main.header).replace(f"python {config_name}.py", command(config_name))
    parts = [text, "Settings, as NAME=VALUE:\n" + _settings(cfg, main)]
    choices = cfg.hydra.runtime.choices
    defaults = OmegaConf.load(CONF / f"{config_name}.yaml").defaults
    groups = [str(group) for entry in defaults if isinstance(entry, DictConfig) for group in entry]
    groups = [group for group in groups if "hydra" not in group]
    parts += [_group(cfg, group, choices[group]) for group in groups]
    if groups:
        parts.insert(2, "Groups of settings, as GROUP=CHOICE; GROUP=CHOICE --help explains one:")
    shown = _FLAGS if groups else {"--cfg job": _FLAGS["--cfg job"]}
    parts.append("Flags:\n" + "\n".join(_wrap(flag, text) for flag, text in shown.items()))
    return "\n\n".join(parts)


def _group(cfg: DictConfig, group: str, chosen: str | None) -> str:
    """Return a group's choices, and the settings of the chosen one."""
    paths = [path.relative_to(CONF / group) for path in (CONF / group).rglob("*.yaml")]
    names = [path.with_suffix("").as_posix() for path in paths]
    others = sorted(name for name in names if name not in (chosen, "default"))
    files = [] if chosen is None else _files(group, chosen)
    header = [] if chosen is None else files[0].header
    alternatives = [f"or {', '.join(others)}"] if others else []
    title = _wrap(
        f"{group}={chosen or 'null'}", "; ".join([*header, *alternatives]).replace(".;", ";"), 0
    )
    settings = _settings(cfg, *reversed(files))
    return "\n".join(line for line in (title, settings) if line)


def _files(group: str, choice: str) -> list[ConfigFile]:
    """Return the file of a choice and those that it extends, from the most special."""
    path = CONF / group / f"{choice}.yaml"
    file = ConfigFile.read(path, group.replace("/", "."))
    return [file, *(above for parent in file.parents for above in _files(group, parent))]


def _settings(cfg: DictConfig, *files: ConfigFile) -> str:
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
        internal = any(part.startswith("_") or part == "corpus" for part in full.split("."))
        if internal or not isinstance(section, DictConfig) or name not in section:
            continue
        value = OmegaConf.to_container(section, resolve=False)[name]  # type: ignore[index,call-overload]
        lines.append(_wrap(f"{full}={shown(value)}", comment))
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
    if not explanation:
        return head
    column = " " * _INDENT
    text = textwrap.fill(
        explanation, width, initial_indent=column, subsequent_indent=column, break_on_hyphens=False
    )
    return (
        head.ljust(_INDENT - 2) + text[_INDENT - 2 :]
        if len(head) < _INDENT - 1
        else f"{head}\n{text}"
    )
