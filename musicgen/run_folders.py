"""Run folders: which is the newest, and the checkpoints in them; names of other models."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.hub import PREFIX, download
from musicgen.package_data import PRETRAINED

OVERRIDES = Path(".hydra", "overrides.yaml")  # the run's arguments
RECORD = "run.json"  # when the run started, with how many threads, whether it is a debug run
LOCK = ".lock"  # held by the process that writes in a folder
LAST = Path("checkpoints", "last.ckpt")  # of a run's folder
_FOLDER = "config.json"  # of a model that `save_pretrained` wrote
_DEFAULT = "pop-piano-small"  # of the models of the package
_RUN_ID = re.compile(r"[\w.-]{1,128}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d")


def record_start(folder: Path, debug: bool, threads: int | None = None) -> None:
    """Record the start of a new run, for `latest` and `auto`, and its threads, for `resume`."""
    started = datetime.now().astimezone().isoformat()
    record = {"started": started, "debug": debug, "threads": threads}
    write_text(folder / RECORD, json.dumps(record) + "\n")


def recorded_threads(folder: Path) -> int | None:
    """Return the number of threads that a run began with; None if it is unknown."""
    try:
        threads = json.loads((folder / RECORD).read_text(encoding="utf-8"))["threads"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return threads if isinstance(threads, int) and 0 < threads <= (os.cpu_count() or 1) else None


def run_id(output_dir: str) -> str:
    """Return the id that a run folder's config.yaml holds; of a new run, WANDB_RUN_ID or its name.

    So a resumed run keeps its id, also in a folder that was moved.
    """
    folder = Path(output_dir)
    given = _stored_id(folder / "config.yaml") or os.environ.get("WANDB_RUN_ID", "")
    if isinstance(given, str) and _RUN_ID.fullmatch(given):
        return given
    parts = folder.parts
    return "-".join(parts[parts.index("outputs") + 1 :] if "outputs" in parts else parts[-2:])


def _stored_id(path: Path) -> Any:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        return config["logger"]["wandb"]["id"]
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return None


def is_training(folder: Path) -> bool:
    """Return whether a process trains in a run's folder now; one that was killed does not."""
    try:
        if (folder / LOCK).exists():
            with FileLock(folder / LOCK, timeout=0):
                return False
    except Timeout:
        return True
    except OSError:  # a folder that may not be written
        pass
    return False


def has_checkpoint(folder: Path) -> bool:
    return any((folder / "checkpoints").glob("[!.]*.ckpt"))


def find_run(name: str, root: Path = Path("outputs")) -> Path:
    """Return the run folder that `resume=` names; `auto` is the last one started below `root`.

    Debug runs do not count for `auto`. The run may have been stopped before its first checkpoint.
    """
    unquoted = name.strip("'\"")
    if unquoted == "auto":
        return _newest(root, "run", [RECORD, str(LAST)])
    folder = Path(unquoted).expanduser()
    if folder.name == LAST.name:
        folder = folder.parent.parent
    elif folder.suffix == ".ckpt":
        raise UserError(
            f"resume={name}: a run resumes from its last.ckpt; give the folder of the run"
        )
    startable = (folder / OVERRIDES).is_file() and not has_checkpoint(folder)
    if not (folder / LAST).is_file() and not startable:
        raise UserError(
            f"resume={name}: {folder} holds no {LAST.as_posix()}; give the folder of a run, "
            "or resume=auto for the newest"
        )
    return folder


def find_checkpoint(name: str, root: Path = Path("outputs"), setting: str = "checkpoint") -> Path:
    """Return the file, or the folder of `save_pretrained`, that `checkpoint=` names.

    Args:
        name: a file, a run folder (its best), a folder of `save_pretrained`, `latest`,
            `hf://USER/NAME`, or a model of the package, see `package_models`. `latest` is the run
            below `root` that started last, debug runs not counted; without a run, a model of the
            package.
    """
    if name.startswith(PREFIX):
        return download(name)
    if name == "latest":
        if shipped := _shipped_instead(root):
            return shipped
        return _best(_newest(root, "checkpoint", [str(LAST)]) / "checkpoints")
    path = Path(name).expanduser()
    if (path / _FOLDER).is_file():
        return path
    if path.is_dir():
        folder = path if path.name == "checkpoints" else path / "checkpoints"
        if not (folder / LAST.name).is_file():
            raise UserError(f"{setting}={name}: that folder holds no {LAST.as_posix()}")
        return _best(folder)
    if path.is_file():
        return path
    models = package_models()
    if name in models:
        return PRETRAINED / name
    names = f", {', '.join(models)}" if models else ""
    raise UserError(
        f"{setting}={name}: no such file or folder; give a .ckpt, a run's folder, or latest{names}"
    )


def package_models() -> list[str]:
    """Return the names of the models that come with the package, the default one first."""
    names = sorted(path.parent.name for path in PRETRAINED.glob(f"*/{_FOLDER}"))
    return sorted(names, key=lambda name: name != _DEFAULT)


def _shipped_instead(root: Path) -> Path | None:
    """Return the model that stands for `latest` if there is no run, if the package has any."""
    models = package_models()
    if not models or any(_runs(root, [str(LAST)])):
        return None
    return PRETRAINED / models[0]


def describe_fallback(name: str, path: Path) -> str | None:
    """Return a line for the user if `latest` became a model of the package."""
    if name != "latest" or path.parent != PRETRAINED:
        return None
    return f"no run below outputs/: {path.name}, which comes with the package, takes its place"


def _best(folder: Path) -> Path:
    """Return the checkpoint with the best validation loss, else the last one."""
    best = folder / "best.ckpt"
    return best if best.is_file() else folder / LAST.name


def _newest(root: Path, wanted: str, files: list[str]) -> Path:
    """Return the run below `root` that started last, of those with one of `files`."""
    runs = {folder: _start(folder) for folder in _runs(root, files)}
    if not runs:
        raise UserError(f"no {wanted} below {root}/; train a model first: python train.py")
    counted = {folder: start for folder, (start, debug) in runs.items() if not debug}
    if not counted:
        debug_run = max(runs, key=lambda folder: runs[folder])
        raise UserError(
            f"no {wanted} below {root}/ but of debug runs, which do not count; give the folder of "
            f"one, such as {debug_run}, or train a model first: python train.py"
        )
    return max(counted, key=lambda folder: counted[folder])


def _runs(root: Path, files: list[str]) -> Iterator[Path]:
    for file in files:
        for path in root.glob(f"**/{file}"):
            yield path.parents[len(Path(file).parts) - 1]


def _start(folder: Path) -> tuple[tuple[float, float], bool]:
    """Return when a run started, in a form to compare, and whether it is a debug run.

    Runs without a record are dated by their folders' names, else by their last checkpoints.
    """
    saved = (folder / LAST).stat().st_mtime if (folder / LAST).is_file() else 0.0
    try:
        record: Any = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        started = datetime.fromisoformat(record["started"]).timestamp()
        return (started, saved), bool(record["debug"])
    except (OSError, ValueError, TypeError, KeyError):
        pass
    try:
        config = (folder / "config.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        config = ""
    debug = "run_name: debug" in config.splitlines()
    for name in (folder.name, folder.parent.name):  # a job's is that of its sweep
        if date := _DATE.match(name):
            return (datetime.strptime(date[0], "%Y-%m-%d_%H-%M-%S").timestamp(), saved), debug
    return (saved, saved), debug
