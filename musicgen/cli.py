"""What the three entry points share: Hydra's start, paths as people type them, one-line errors."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from musicgen import startup
from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.mistakes import is_override, one_line, reword, with_names

console = Console(stderr=True)
stdout = Console()

# Taken to the letter: Hydra's grammar chokes on the commas, brackets and ampersands of a musician's
# file names, and of regular expressions.
LITERAL_KEYS = frozenset(
    {"prompt", "checkpoint", "out", "generated", "references", "resume", "data.root", "data.group"}
)
CONF = Path(__file__).parents[1] / "conf"
_FULL_ERROR = "HYDRA_FULL_ERROR"
_INTERRUPTED = 130
_OVERRIDES = Path(".hydra", "overrides.yaml")


def run(main: Callable[[DictConfig], Any], config_name: str, config_path: Path) -> None:
    """Compose the configuration from the command line and call `main` with it.

    A user's mistake ends the process with one line on standard error and status 2. With
    HYDRA_FULL_ERROR=1 in the environment everything raises as it is.
    """
    full_error = os.environ.get(_FULL_ERROR) == "1"
    failed: list[Any] = []
    # Hydra prints its own errors over several lines; as exceptions they come to us.
    os.environ[_FULL_ERROR] = "1"
    OmegaConf.register_new_resolver("run_id", _run_id, replace=True)

    @functools.wraps(main)
    def job(cfg: DictConfig) -> Any:
        if not full_error:  # nor should the processes that a job starts have it
            os.environ.pop(_FULL_ERROR, None)
        # Inside of Hydra's own handler, which would announce a failed job first.
        try:
            with contextlib.nullcontext() if full_error else _one_line_errors(), _job_of_its_own():
                return main(cfg)
        except SystemExit as stop:
            if stop.code == _INTERRUPTED or HydraConfig.get().mode != RunMode.MULTIRUN:
                raise
            failed.append(stop.code)  # the sweep goes on: not all combinations have to be possible
            return None

    decorate = hydra.main(version_base="1.3", config_path=str(config_path), config_name=config_name)
    try:
        with contextlib.nullcontext() if full_error else _one_line_errors():
            startup.done()
            sys.argv = [sys.argv[0], *prepare_arguments(sys.argv[1:])]
            try:
                decorate(job)()
            except ConfigCompositionException as error:
                raise with_names(error, config_path, config_name, sys.argv[1:]) from error
        if failed:
            sys.exit(failed[0])
    finally:
        if not full_error:
            os.environ.pop(_FULL_ERROR, None)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """End the process with one line on a user's mistake, and quietly on Ctrl-C."""
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        _print(f"error: {one_line(error)}", "red")
        sys.exit(2)
    except KeyboardInterrupt:
        warn("interrupted")
        sys.exit(_INTERRUPTED)
    except Exception as error:  # a value of the wrong kind surfaces anywhere
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(reword(str(error)).split())
        _print(
            f"error: {type(error).__name__}: {text} (in {Path(where.filename).name}, line "
            f"{where.lineno}; {_FULL_ERROR}=1 shows the way there)",
            "red",
        )
        sys.exit(1)


@contextlib.contextmanager
def _job_of_its_own() -> Iterator[None]:
    """Keep the jobs of a multirun apart where they start processes, as DDP does.

    Lightning starts them with this process's arguments and `hydra.run.dir`, which in a multirun
    would sweep once more, and elsewhere. It leaves its process group and the variables that say
    there is one.
    """
    hydra_config: Any = HydraConfig.get()
    if hydra_config.mode != RunMode.MULTIRUN:
        yield
        return
    sys.argv = [sys.argv[0], *hydra_config.overrides.task]
    with read_write(hydra_config):
        hydra_config.run.dir = hydra_config.runtime.output_dir
    environment = dict(os.environ)
    try:
        yield
    finally:
        from torch import distributed

        if distributed.is_initialized():
            distributed.destroy_process_group()
        os.environ.clear()
        os.environ.update(environment)


def prepare_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments for Hydra: paths quoted, and `resume=` as the run's own arguments and folder.

    Raises:
        UserError: there is no such run to resume.
    """
    arguments = sorted(arguments, key=is_override)  # flags first, as Hydra's parser wants them
    _check_flags(arguments)
    resume = None
    rest = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        group = argument.removeprefix("~").removesuffix("=null")
        if key == "resume" and equals:
            resume = None if value in ("", "null") else value
        elif key in LITERAL_KEYS and equals:
            rest.append(f"{key}={quote(value)}")
        elif group != argument and (CONF / group / "none.yaml").is_file():
            rest.append(f"{group}=none")
        else:
            rest.append(argument)
    if resume is None:
        return rest
    folder = find_run(resume)
    overrides = folder / _OVERRIDES
    if not overrides.is_file():
        raise UserError(
            f"resume={resume}: {overrides} is missing, which says how the run was started; copy "
            "a run with its hidden folders"
        )
    saved = OmegaConf.load(overrides)
    return [
        *(str(override) for override in saved),
        *rest,
        f"resume={quote(str(folder / 'checkpoints' / 'last.ckpt'))}",
        f"hydra.run.dir={quote(str(folder))}",
    ]


def _check_flags(arguments: Sequence[str]) -> None:
    """Refuse in one line the flags that Hydra's parser would answer with its usage."""
    _, unknown = get_args_parser().parse_known_args(list(arguments))
    if not unknown or not unknown[0].startswith("-"):
        return
    name, _, value = unknown[0].lstrip("-").partition("=")
    after = arguments[arguments.index(unknown[0]) + 1 :]
    if not value:
        value = after[0] if after and not is_override(after[0]) else "VALUE"
    raise UserError(f"{unknown[0]}: a setting has no dashes; give {name}={value}")


def save_overrides(folder: Path) -> None:
    """Write for `resume=` what the command line said: each setting once, as it was given last."""
    if not HydraConfig.initialized():
        return
    given = {override.partition("=")[0]: override for override in HydraConfig.get().overrides.task}
    given.pop("resume", None)
    write_text(folder / _OVERRIDES, OmegaConf.to_yaml(list(given.values())))


def quote(value: str) -> str:
    """A value that Hydra's grammar takes to the letter; null and quoted values stay."""
    if value in ("", "null") or (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
        return value
    # In quotes, only backslashes before a quote, and interpolations, need escaping.
    head = value.rstrip("\\")
    value = head.replace("'", "\\'") + "\\\\" * (len(value) - len(head))
    return "'" + value.replace("${", "\\${") + "'"


def find_run(name: str, root: Path = Path("outputs")) -> Path:
    """The run folder that `resume=` means: `auto` is the newest below `root`.

    Raises:
        UserError: no such run, or it has no checkpoint.
    """
    if name.strip("'\"") == "auto":
        return find_checkpoint("latest", root).parent.parent
    folder = Path(name.strip("'\"")).expanduser()
    if folder.name == "last.ckpt":
        folder = folder.parent.parent
    elif folder.suffix == ".ckpt":
        raise UserError(
            f"resume={name}: a run goes on from its last.ckpt; give the folder of the run"
        )
    if not (folder / "checkpoints" / "last.ckpt").is_file():
        raise UserError(
            f"resume={name}: {folder} holds no checkpoints/last.ckpt; give the folder of a run, "
            "or resume=auto for the newest"
        )
    return folder


def find_checkpoint(name: str, root: Path = Path("outputs")) -> Path:
    """The file that `checkpoint=` means: a file, a run folder (its best), or `latest`.

    Raises:
        UserError: there is none; says what to run.
    """
    if name == "latest":
        found = list(root.glob("**/checkpoints/last.ckpt"))
        if not found:
            raise UserError(f"no checkpoint below {root}/; train a model first: python train.py")
        return _best(max(found, key=lambda path: path.stat().st_mtime).parent)
    path = Path(name).expanduser()
    if path.is_dir():
        folder = path if path.name == "checkpoints" else path / "checkpoints"
        if not (folder / "last.ckpt").is_file():
            raise UserError(f"checkpoint={name}: that folder holds no checkpoints/last.ckpt")
        return _best(folder)
    if not path.is_file():
        raise UserError(
            f"checkpoint={name}: no such file or folder; give a .ckpt, a run's folder, or latest"
        )
    return path


def _best(folder: Path) -> Path:
    """The checkpoint with the best validation loss, or else the last."""
    best = folder / "best.ckpt"
    return best if best.is_file() else folder / "last.ckpt"


def _run_id(output_dir: str) -> str:
    """A name for a run folder that loggers accept, the same after a resume."""
    parts = Path(output_dir).parts
    return "-".join(parts[parts.index("outputs") + 1 :] if "outputs" in parts else parts[-2:])


def make_folder(name: str | None, default: str) -> Path:
    """The folder that `out=` names, made; null means a new one, named by date, in `default`.

    Raises:
        UserError: it cannot be made or written to.
    """
    folder = Path(name or f"{default}/{time.strftime('%Y-%m-%d_%H-%M-%S')}").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"out={folder}: cannot be made ({error.strerror}); give another folder"
        ) from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"out={folder}: cannot be written to; give another folder")
    return folder


def say(text: str) -> None:
    """A line for the user, on standard error."""
    _print(text)


def warn(text: str) -> None:
    """A line for the user, in yellow."""
    _print(text, "yellow")


def _print(text: str, style: str | None = None) -> None:
    """To the letter, and long lines whole, so that paths can be copied."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def find_device(name: str) -> str:
    """The torch device that `device=` means; `auto` is the fastest there is.

    Raises:
        UserError: no such device here.
    """
    import torch  # late: mistakes in arguments should not wait for it

    here = ["cpu"]
    if torch.backends.mps.is_available():
        here.append("mps")
    if torch.cuda.is_available():
        here.append("cuda")
    if name == "auto":
        return here[-1]
    if name.split(":")[0] not in here:
        raise UserError(f"device={name}: this machine has {', '.join(here)}")
    return name
