"""Run folders and their checkpoints, and the paths of models by name."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any

import yaml
from filelock import FileLock, Timeout

import musicgen
from musicgen.console import warn_of_first
from musicgen.errors import UserError
from musicgen.files import read_json, read_plain, write_json
from musicgen.package_data import DEFAULT_MODEL, PRETRAINED

OVERRIDES = Path(".hydra", "overrides.yaml")  # the run's arguments
RECORD = "run.json"  # when, where and how the run was started, and with which musicgen
METRICS = "metrics.csv"
LOG = "train.log"  # what trained the run, the messages and the errors
MANIFEST = "generation.json"  # what describes the MIDI files of a folder that generate.py wrote
LOCK = ".lock"  # held by the process that writes in a folder
LAST = Path("checkpoints", "last.ckpt")  # of a run's folder
_ROOT = Path("outputs")
_MOST_ARGUMENTS = 2**17  # bytes of `OVERRIDES`
_MODEL_CONFIG = "config.json"  # of a model that `save_pretrained` wrote
FORMAT_VERSION = 3  # of checkpoints


@contextmanager
def claimed(folder: Path, otherwise: str) -> Iterator[None]:
    """Hold a folder for one process.

    Args:
        otherwise: the message if another process holds it.

    Raises:
        UserError: another process holds it.
    """
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"{folder}: {otherwise}") from None
    except (NotImplementedError, OSError):  # a file system without locks
        pass
    try:
        yield
    finally:
        if lock.is_locked:
            (folder / LOCK).unlink(missing_ok=True)
            lock.release()


def record_start(folder: Path, **provenance: Any) -> None:
    """Record the start of a new run, so that `latest` and `auto` find the newest.

    Args:
        provenance: further entries, see `musicgen.cli.train.provenance`.
    """
    record = {"started": time.time(), "version": musicgen.__version__, "format": FORMAT_VERSION}
    write_json(folder / RECORD, {**record, **provenance})


def start_directory(folder: Path) -> Path:
    """Return the directory where a run was started, or the current one if it is unknown."""
    with suppress(UserError):
        record = read_json(folder / RECORD, folder)
        if isinstance(record, dict) and isinstance(record.get("directory"), str):
            return Path(record["directory"])
    return Path.cwd()


def is_own(folder: Path) -> bool:
    """Return whether a run is below outputs/ of the current folder, and so the user's own."""
    return folder.resolve().is_relative_to(_ROOT.resolve())


def job_id(otherwise: str) -> str:
    """Return the id of a job of torchrun or srun, so that its processes share a run folder.

    Args:
        otherwise: the id of a process without others, such as the time.
    """
    job = os.environ.get("TORCHELASTIC_RUN_ID")
    if job == "none":
        raise UserError(
            "torchrun: its processes need one name for the run's folder: give torchrun "
            "--rdzv-id=NAME or --standalone, or train.py hydra.run.dir=FOLDER"
        )
    if job is None and int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
    return job or otherwise


@cache
def run_id(output_dir: str) -> str:
    """Return the id of a run for W&B; a resumed run has the id of the files in its folder."""
    logged = (x.stem.removeprefix("run-") for x in Path(output_dir).glob("wandb/*/run-*.wandb"))
    return next(logged, "-".join((*Path(output_dir).parts[-2:], token_hex(4))))


def stored_arguments(folder: Path) -> list[str]:
    """Return the arguments that a run was trained with, from the file in its folder.

    Raises:
        UserError: the file cannot be read, see `read_plain`, or is no list of texts.
    """
    path = folder / OVERRIDES
    try:
        texts = yaml.safe_load(read_plain(path, folder, _MOST_ARGUMENTS)) or []
    except (yaml.YAMLError, RecursionError):
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{path}: not the arguments of a run; use another copy")
    return texts


def refuse_special_files(folder: Path) -> None:
    """Raise `UserError` unless a run's folder holds only regular files and folders.

    Links are allowed within the folder, but no other name of a file to which the run appends.
    """
    for path in (folder / METRICS, folder / LOG):
        if path.is_file() and path.stat().st_nlink > 1:
            raise UserError(f"{path}: another name of a file, a hard link; copy the folder: cp -r")
    logs = {*folder.glob("wandb/*/logs/*")}  # W&B links its log
    for path in {*folder.rglob("*")} - logs:
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{path}: a link out of the run's folder; remove it")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"{path}: a pipe or device in the run's folder; remove it")


def find_run(name: str) -> Path:
    """Return the run folder that `resume=` names; `auto` is the newest one below outputs/.

    Debug runs do not count for `auto`.
    """
    folder = _newest_run() if name == "auto" else Path(name).expanduser()
    if folder.name == LAST.name:
        folder = folder.parent.parent
    if not (folder / LAST).is_file():
        raise UserError(
            f"resume={name}: {folder} has no {LAST.as_posix()}; give the folder of a run, or "
            "resume=auto for the newest. A run that stopped before its first checkpoint is started "
            f"again by its own command, with hydra.run.dir={folder}"
        )
    return folder


def shipped_models() -> list[str]:
    """Return the names of the models of the package, the default first."""
    found = (path.parent.name for path in PRETRAINED.glob(f"*/{_MODEL_CONFIG}"))
    return sorted(found, key=lambda name: (name != DEFAULT_MODEL, name))


def find_checkpoint(name: str, setting: str = "checkpoint") -> Path:
    """Return the file, or the folder of `save_pretrained`, that `checkpoint=` names.

    Args:
        name: a file, a run folder (its best), a folder of `save_pretrained`, `latest`,
            or a model of the package. `latest` is the newest run below outputs/ that has a
            checkpoint, without debug runs and runs of another version of musicgen.
    """
    if name == "latest":
        return _best(_newest_run(with_checkpoint=True) / "checkpoints")
    path = Path(name).expanduser()
    if path.is_file() or (path / _MODEL_CONFIG).is_file():
        return path
    if path.is_dir():
        folder = path if path.name == "checkpoints" else path / "checkpoints"
        if not (folder / LAST.name).is_file():
            raise UserError(f"{setting}={name}: that folder has no {LAST.as_posix()}")
        return _best(folder)
    models = shipped_models()
    if name in models:
        return PRETRAINED / name
    known = ", ".join(["latest", *models])
    raise UserError(
        f"{setting}={name}: no such file or folder; give a .ckpt, a run's folder, or {known}"
    )


def _best(folder: Path) -> Path:
    """Return the checkpoint with the best validation loss, else the last one."""
    best = folder / "best.ckpt"
    return best if best.is_file() else folder / LAST.name


def _newest_run(*, with_checkpoint: bool = False) -> Path:
    """Return the run that started last, or the last one that has a checkpoint.

    Raises:
        UserError: no run is found.
    """
    starts: dict[Path, float] = {}
    others = []
    for run in (path.parent for path in _ROOT.glob(f"**/{RECORD}")):
        is_debug = run.relative_to(_ROOT).parts[:1] == ("debug",)
        if is_debug or (with_checkpoint and not (run / LAST).is_file()):
            continue
        try:
            record = read_json(run / RECORD, run)
            started, is_current = float(record["started"]), record["format"] == FORMAT_VERSION
        # Written before it held a format, or damaged.
        except (ArithmeticError, KeyError, TypeError, ValueError):
            is_current = False
        if is_current:
            starts[run] = started
        else:
            others.append(f"{run} is of another version of musicgen")
    if not starts:
        wanted = "checkpoint" if with_checkpoint else "run"
        other = f", and {others[0]}" if others else ""
        raise UserError(
            f"no {wanted} below {_ROOT}/, where debug runs do not count{other}; train a model "
            "first: python train.py"
        )
    warn_of_first([f"left out: {other}" for other in others], 1)
    return max(starts, key=starts.__getitem__)
