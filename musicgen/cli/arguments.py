"""Conversion of arguments for Hydra: quotes around paths, paths without a key, and `resume=RUN`."""

import inspect
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import OmegaConf, read_write

from musicgen.console import warn
from musicgen.errors import UserError
from musicgen.package_data import CONF, choices
from musicgen.run_folders import (
    LAST,
    find_run,
    is_own,
    refuse_special_files,
    start_directory,
    stored_arguments,
)

# Settings whose values may contain commas, brackets and sharps, which Hydra's grammar rejects.
_PATH = re.compile(
    "prompt|checkpoint|out|generated|references|soundfont|beats|init|resume|loader.cache_dir"
    r"|data.(corpora.\w+.)?(root|exclude)|paths.(data|output)_dir"
)
_QUOTED = re.compile(
    rf"({_PATH.pattern}|chords|key|keep|fill|cadence|ending|program|data.(corpora.\w+.)?group)"
)
# Arguments that name a place here or a host, or begin a sweep. `data.exclude` is a file or a list.
_NAMES_A_PLACE = re.compile(
    r"\S*(path|dir|folder|filename|root)=|\S*exclude=(?!\[)|init=|logger\.|logger=.*wandb"
    "|hparams_search=|trust="
)
# Processes, machines and ports of a run, which a folder of other people must not choose.
_PROCESSES = re.compile(
    r"trainer=.*(ddp|fsdp)|(trainer|loader)[.=].*(strategy|num_nodes|devices|workers|plugins)"
)
_CORPUS_FOLDER = re.compile(r"data\.(corpora\.\w+\.)?root")


def override_key(argument: str) -> str:
    """Return the setting or group that an argument names; "" for a flag or a word without `=`."""
    key, equals, _ = argument.partition("=")
    is_override = (equals and not key.startswith("-")) or re.match(r"~\w", key)
    return key.lstrip("+~") if is_override else ""


def quoted_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with quotes around the values that are paths.

    Raises:
        UserError: a path is empty, which would be the current folder.
    """
    texts = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if not argument or (_PATH.fullmatch(key) and not value.strip("'\" ")):
            cure = "give a path, or null; is the variable of the shell empty?"
            raise UserError(f"{key}=: it is empty; {cure}" if key else f"an empty argument; {cure}")
        is_list = key in ("data.exclude", "keep", "program") and value.startswith(("[", "{"))
        is_path = _QUOTED.fullmatch(key) and not is_list
        texts.append(f"{key}={quoted(value)}" if is_path else argument)
    return texts


def refuse_dashes(arguments: Sequence[str], config_name: str) -> None:
    """Raise `UserError` if a setting is given as a flag, such as `--bars=3` or `--bars 3`."""
    known: Any = None
    for argument in arguments:
        if match := re.match(r"--?([a-z][\w.-]+)", argument):
            known = known or OmegaConf.load(CONF / f"{config_name}.yaml")
            name = match[1].replace("-", "_")
            if name.partition(".")[0] in known:
                raise UserError(f"{argument}: settings have no dashes; give {name}=VALUE")


def with_trainer_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `++` before those of Lightning's Trainer that conf/ lacks."""
    configured: Any = OmegaConf.load(CONF / "trainer" / "default.yaml")
    keys = {argument.partition("=")[0] for argument in arguments}
    missing = {key for key in keys if key.startswith("trainer.")}
    missing -= {f"trainer.{name}" for name in configured}
    if missing:
        from pytorch_lightning import Trainer  # takes seconds

        missing &= {f"trainer.{name}" for name in inspect.signature(Trainer).parameters}
    return [f"++{each}" if each.partition("=")[0] in missing else each for each in arguments]


def quoted(value: str) -> str:
    """Quote a value for Hydra's grammar, unless it is null or quoted already."""
    if value in ("", "null") or (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
        return value
    return QuotedString(value.replace("${", "\\${"), Quote.single).with_quotes()


def named_values(arguments: Sequence[str], one: str, several: str) -> list[str]:
    """Return the arguments with a key before paths that have none, as in `generate.py song.mid`.

    Args:
        one: the key of a single path.
        several: the key of a list of paths.
    """
    flags = [each for each in arguments if each.startswith("-") and not _exists(each)]
    paths = [
        argument
        for argument, before in zip(arguments, ["", *arguments], strict=False)
        if argument not in flags and before not in flags
        if not override_key(argument) or _exists(argument)
    ]
    if not paths:
        return list(arguments)
    if {one, several} & set(map(override_key, arguments)):
        raise UserError(f"{paths[0]}: give paths either without a name or with {one}=, not both")
    others = [argument for argument in arguments if argument not in paths]
    if len(paths) == 1:
        return [*others, f"{one}={quoted(paths[0])}"]
    return [*others, f"{several}=[{','.join(map(quoted, paths))}]"]


def _exists(argument: str) -> bool:
    try:
        return Path(argument).exists()
    except OSError:  # too long for a path
        return False


def resumed_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `resume=RUN` replaced by the run's own arguments.

    The run's folder may come from an untrusted source: paths and objects in its arguments are left
    out with a warning, so that they are those of conf/ and of the command line. So are numbers of
    processes and machines, unless the run is below outputs/. The corpus
    folder of a run below outputs/ is taken if it exists.

    Raises:
        UserError: the folder holds no run, or other arguments contradict `resume`.
    """
    given = {override_key(argument): argument.partition("=")[2] for argument in arguments}
    name = given.pop("resume", "null").strip("'\"")
    if name == "null":
        return list(arguments)
    if "hparams_search" in given or {"-m", "--multirun"} & {*arguments}:
        raise UserError("resume continues one run: give one job's folder of the sweep, without -m")
    if given.get("init", "null") not in ("", "null"):
        raise UserError("give either resume, for a run that goes on, or init, for a new one")
    trust_modules(arguments)
    folder = find_run(name)
    refuse_special_files(folder)
    stored = stored_arguments(folder)
    # Settings of another corpus or logger do not fit the new one.
    changed = [x for x in ("data", "logger") if x in given and f"{x}={given[x]}" not in stored]
    stored = [
        x
        for x in stored
        if override_key(x) not in given and override_key(x).partition(".")[0] not in changed
    ]
    taken, left_out = _taken_and_left_out(stored, folder)
    # Processes that Lightning starts have `hydra.run.dir`, and need not warn again.
    if left_out and "hydra.run.dir" not in given:
        warn(f"not taken from {folder}, give it again if it matters: {', '.join(left_out)}")
    return [
        *(word for word in arguments if not override_key(word)),  # flags, which Hydra wants first
        *taken,
        *(word for word in arguments if override_key(word) not in ("", "resume")),
        f"resume={quoted(str(folder / LAST))}",
        f"hydra.run.dir={quoted(str(folder))}",
    ]


def trust_modules(arguments: Sequence[str]) -> None:
    """Allow the classes of the modules that the argument `trust=` names.

    It is read from the command line only, never from a configuration file or a run.
    """
    for argument in arguments:
        if override_key(argument) == "trust":
            names = re.findall(r"[\w.]+", argument.partition("=")[2])
            for name in names if names != ["null"] else []:
                from musicgen.checkpoints import trust  # takes seconds

                trust(name)


def given_overrides() -> list[str]:
    """Return the job's overrides without `resume` and searches, the last one of each setting."""
    overrides: Any = []
    if HydraConfig.initialized():  # interpolations stay as they were given
        overrides = OmegaConf.to_container(HydraConfig.get().overrides.task)
    given = {override_key(override): override for override in overrides}
    return [override for key, override in given.items() if key not in ("resume", "hparams_search")]


def add_override(override: str) -> None:
    """Add an override to those of the job, which its folder records."""
    if HydraConfig.initialized():
        config: Any = HydraConfig.get()
        with read_write(config):
            config.overrides.task.append(override)


def resume_command(folder: Path, *more: str) -> str:
    """Return the command that continues a run, with the arguments not taken from its folder.

    Args:
        more: further arguments.
    """
    sources = HydraConfig.get().runtime.config_sources if HydraConfig.initialized() else []
    own = [f"--config-dir={x.path}" for x in sources if x.provider == "command-line"]
    # Without the quotes that `quoted_paths` adds.
    quoted_path = re.compile(rf"^{_QUOTED.pattern}='(?P<value>[^'\\]+)'$")
    _, left_out = _taken_and_left_out(given_overrides(), folder)
    typed = [quoted_path.sub(r"\1=\g<value>", each) for each in left_out]
    arguments = [str(folder), *typed, *more, *own]
    return f"{command('train')} resume={shlex.join(arguments)}"


def command(name: str) -> str:
    """Return how the user calls another command: as a script, or as an installed entry point."""
    return f"python {name}.py" if sys.argv[0].endswith(".py") else f"musicgen-{name}"


def _taken_and_left_out(overrides: Sequence[str], folder: Path) -> tuple[list[str], list[str]]:
    """Return the overrides that a resumed run takes from its folder, and others that it needs."""
    taken, left_out = [], []
    for override in overrides:
        found = _taken(override, folder)
        if found is not None:
            taken.append(found)
        # A resumed run does not need these; the user who resumes it gives `trust`.
        elif override_key(override) not in ("init", "paths.output_dir", "hparams_search", "trust"):
            left_out.append(override)
    return taken, left_out


def _taken(override: str, folder: Path) -> str | None:
    """Return an override of a run's folder in the form that a resumed run takes, or None."""
    own = is_own(folder)
    if _is_plain(override):
        return override if own or not _PROCESSES.match(override.lstrip("+~")) else None
    key = override_key(override)
    if key.endswith("._target_"):  # a class of a module that the user trusts
        from musicgen.checkpoints import check_targets  # takes seconds

        target = override.partition("=")[2]
        with suppress(UserError):
            check_targets({"_target_": target}, (object,))
            return None if target.startswith("musicgen.") else override
        return None
    if not (own and _CORPUS_FOLDER.fullmatch(key)):
        return None
    value = str(OverridesParser.create().parse_override(override).value())
    start = start_directory(folder)
    root = start / Path(value).expanduser()
    if not root.is_dir():
        return None
    return override if start == Path.cwd() else f"{key}={quoted(str(root))}"


def _is_plain(override: str) -> bool:
    """Return whether an override is safe to take from an untrusted folder.

    It is a choice that conf/ has, or a value that names no place, host or object. Dictionaries may
    be objects of any class, and interpolations may read anything.
    """
    key, value = override_key(override), override.partition("=")[2].strip("'\" ")
    if not re.fullmatch(r"[a-z]\w*([./][a-z]\w*)*", key) or key.startswith(("hydra", "resume")):
        return False
    if _NAMES_A_PLACE.match(f"{key}={value}"):
        return False
    if (CONF / key).is_dir():
        return {*re.split(", *", value.strip("[]"))} <= {"", "null", *choices(key)}
    if value[:1] + value[-1:] == "{}":  # settings of a part, such as model.copy={heads:2}
        entries = filter(str.strip, value[1:-1].split(","))
        return all(_is_plain(f"{key}.{entry.replace(':', '=', 1).strip()}") for entry in entries)
    return "{" not in value
