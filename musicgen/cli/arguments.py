"""Arguments as Hydra's grammar wants them: quoted paths, paths alone, and those of `resume=RUN`."""

import inspect
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import OmegaConf

from musicgen.console import warn
from musicgen.errors import UserError
from musicgen.package_data import CONF, choices
from musicgen.run_folders import LAST, OVERRIDES, find_run

# Settings whose values may hold commas, brackets and sharps, which Hydra's grammar rejects.
_QUOTED = re.compile(
    "(prompt|checkpoint|out|generated|references|soundfont|chords|key|keep|program|init|resume"
    r"|loader.cache_dir|data.(corpora.\w+.)?(root|group|exclude)|paths.(data|output)_dir)"
)
# Settings that name a place to read from or to write to.
_PLACES = re.compile(r"(path|dir|folder|filename|root)$|^init$|^logger\.\w+\.(name|version)$")


def override_key(argument: str) -> str:
    """Return the setting or group that an argument names; "" for a flag and a word alone."""
    key, equals, _ = argument.partition("=")
    is_override = (equals and not key.startswith("-")) or re.match(r"~\w", key)
    return key.lstrip("+~") if is_override else ""


def quoted_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with quotes around the values that are paths."""
    texts = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        is_list = key in ("data.exclude", "keep", "program") and value.startswith(("[", "{"))
        is_path = _QUOTED.fullmatch(key) and not is_list
        texts.append(f"{key}={quoted(value)}" if is_path else argument)
    return texts


def with_lightnings(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `++` before those of Lightning's Trainer that conf/ lacks."""
    ours: Any = OmegaConf.load(CONF / "trainer" / "default.yaml")
    given = {key for each in arguments if (key := each.partition("=")[0]).startswith("trainer.")}
    given -= {f"trainer.{name}" for name in ours}
    if given:
        from pytorch_lightning import Trainer  # takes seconds

        given &= {f"trainer.{name}" for name in inspect.signature(Trainer).parameters}
    return [f"++{each}" if each.partition("=")[0] in given else each for each in arguments]


def quoted(value: str) -> str:
    """Quote a value for Hydra's grammar, unless it is null or quoted already."""
    if value in ("", "null") or (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
        return value
    return QuotedString(value.replace("${", "\\${"), Quote.single).with_quotes()


def named_values(arguments: Sequence[str], one: str, several: str) -> list[str]:
    """Return the arguments with a key, `one` or `several`, for paths alone: `generate song.mid`."""
    flags = [each for each in arguments if each.startswith("-") and not Path(each).exists()]
    paths = [
        argument
        for argument, before in zip(arguments, ["", *arguments], strict=False)
        if argument not in flags and before not in flags
        if not override_key(argument) or Path(argument).exists()
    ]
    if not paths:
        return list(arguments)
    if {one, several} & set(map(override_key, arguments)):
        raise UserError(f"{paths[0]}: give paths either alone or with {one}=, not both")
    others = [argument for argument in arguments if argument not in paths]
    if len(paths) == 1:
        return [*others, f"{one}={quoted(paths[0])}"]
    return [*others, f"{several}=[{','.join(map(quoted, paths))}]"]


def resumed_arguments(arguments: Sequence[str]) -> list[str]:
    """Replace `resume=RUN` by the run's own arguments, its folder and its last checkpoint.

    The folder may be a stranger's: places and objects are of the defaults and the command line.
    """
    given = {override_key(argument): argument.partition("=")[2] for argument in arguments}
    name = given.pop("resume", "").strip("'\"")
    if name in ("", "null"):
        return list(arguments)
    if "hparams_search" in given or {"-m", "--multirun"} & {*arguments}:
        raise UserError("resume continues one run: give one job's folder of the sweep, without -m")
    if given.get("init", "null") not in ("", "null"):
        raise UserError("give either resume, for a run that goes on, or init, for a new one")
    folder = find_run(name)
    for path in {*folder.rglob("*")} - {*folder.glob("wandb/*/logs/*")}:  # W&B links its own log
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{path}: a link out of the run's folder; remove it")
    stored = _stored(folder / OVERRIDES)
    anew = [x for x in ("data", "logger") if x in given and f"{x}={given[x]}" not in stored]
    stored = [x for x in stored if override_key(x).partition(".")[0] not in anew]  # of another
    stored = [x for x in stored if override_key(x) not in given]
    if (places := _not_taken(stored)) and "hydra.run.dir" not in given:  # Lightning's processes
        warn(f"not taken from {folder}, give it again if it matters: {', '.join(places)}")
    return [
        *(word for word in arguments if not override_key(word)),  # flags, which Hydra wants first
        *filter(_is_plain, stored),
        *(word for word in arguments if override_key(word) not in ("", "resume")),
        f"resume={quoted(str(folder / LAST))}",
        f"hydra.run.dir={quoted(str(folder))}",
    ]


def given_overrides() -> list[str]:
    """Return the job's overrides, the last one of each setting, that make a run of its own."""
    overrides = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    given = {override_key(override): override for override in overrides}
    return [override for key, override in given.items() if key not in ("resume", "hparams_search")]


def resume_command(folder: Path) -> str:
    """Return the command that continues a run, with what is not taken from its folder."""
    sources = HydraConfig.get().runtime.config_sources if HydraConfig.initialized() else []
    own = [f"--config-dir={x.path}" for x in sources if x.provider == "command-line"]
    # As one types them: `quoted_paths` adds the quotes again.
    by_us = re.compile(rf"^{_QUOTED.pattern}='(?P<value>[^'\\]+)'$")
    typed = (by_us.sub(r"\1=\g<value>", each) for each in _not_taken(given_overrides()))
    arguments = [str(folder), *typed, *own]
    return f"{command('train')} resume={shlex.join(arguments)}"


def command(name: str) -> str:
    """Return how the user would call another command: a script, or an installed entry point."""
    return f"python {name}.py" if sys.argv[0].endswith(".py") else f"musicgen-{name}"


def _stored(path: Path) -> list[str]:
    """Read the arguments that a run's folder stores."""
    try:
        texts = yaml.safe_load(path.read_text(encoding="utf-8")) or []
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("not a list of texts")
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: the run's arguments cannot be read: {error}") from None
    return list(texts)


def _not_taken(overrides: Sequence[str]) -> list[str]:
    """Return what is not taken from a run's folder, but what a resumed run does without."""
    unused = ("init", "paths.output_dir")
    return [each for each in overrides if not _is_plain(each) and override_key(each) not in unused]


def _is_plain(override: str) -> bool:
    """Return whether an override is a choice that conf/ has, or a value that is no place or object.

    Objects, which may be of any class, are dictionaries; resolvers may read anything.
    """
    key, value = override_key(override), override.partition("=")[2].strip("'\" ")
    if not re.fullmatch(r"[a-z]\w*([./][a-z]\w*)*", key) or key.startswith(("hydra", "resume")):
        return False
    if (CONF / key).is_dir():
        return {*re.split(", *", value.strip("[]"))} <= {"", "null", *choices(key)}
    if value[:1] + value[-1:] == "{}":  # settings of a part, such as model.copy={heads:2}
        entries = filter(str.strip, value[1:-1].split(","))
        return all(_is_plain(f"{key}.{entry.replace(':', '=', 1).strip()}") for entry in entries)
    return not (_PLACES.search(key) or "{" in value)
