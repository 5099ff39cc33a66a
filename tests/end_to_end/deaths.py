"""Commands in processes forked after the slow imports; runs of train.py that die where a test says."""

import io
import multiprocessing
import os
import pathlib
import signal
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from tests.end_to_end.command_line import ROOT

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["musicgen.cli.train", "torch.distributed"])


@dataclass(frozen=True)
class AtHook:
    """Send a signal at the first call of a callback's hook from a step on.

    The process of rank `rank`, if it has started others, gets it; their ids are written to `pids`.
    """

    step: int
    hook: str
    number: signal.Signals = signal.SIGKILL
    rank: int = 0

    def arm(self) -> None:
        from pytorch_lightning.trainer import call

        run_hooks, sent = call._call_callback_hooks, []

        def run_and_die(trainer: Any, hook: str, *args: Any, **kwargs: Any) -> Any:
            if not sent and hook == self.hook and trainer.global_step >= self.step:
                children = getattr(trainer.strategy.launcher, "procs", [])
                pids = [os.getpid(), *(child.pid for child in children)]
                Path("pids").write_text(" ".join(map(str, pids)))
                sent.append(os.kill(pids[self.rank], self.number))
            return run_hooks(trainer, hook, *args, **kwargs)

        call._call_callback_hooks = run_and_die


@dataclass(frozen=True)
class InWrite:
    """Kill the process in its nth write of a checkpoint.

    Args:
        share: of the bytes that are written before; None: all, before the file is renamed.
    """

    write: int
    share: float | None

    def arm(self) -> None:
        save, replace, count = torch.save, pathlib.Path.replace, [0]

        def save_and_die(content: Any, file: Any) -> None:
            count[0] += 1
            if count[0] < self.write or self.share is None:
                save(content, file)
                return
            whole = io.BytesIO()
            save(content, whole)
            file.write(whole.getvalue()[: int(self.share * whole.tell())])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        def die_and_rename(path: Path, target: Path) -> Path:
            if target.suffix == ".ckpt" and count[0] >= self.write and self.share is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return replace(path, target)

        torch.save, pathlib.Path.replace = save_and_die, die_and_rename  # type: ignore[assignment]


def train(folder: Path, *arguments: str, death: Any = None) -> int:
    """Run `train.py` in a folder; return its status, below 0 for the signal that ended it.

    Standard error is appended to `stderr` there.
    """
    return _wait_for(_FORKS.Process(target=_train, args=(folder, arguments, death)))


def start(folder: Path, command: str, *arguments: str) -> Any:
    """Start a command, such as `generate`, in a folder; return its process.

    Standard error is appended to `stderr` there.
    """
    process = _FORKS.Process(target=_run, args=(folder, command, arguments))
    process.start()
    return process


def torchrun(folder: Path, *arguments: str) -> int:
    """Run `torchrun --standalone --nproc_per_node=2 train.py` in a folder; return its status."""
    return call_in_two_processes(_train, folder, arguments, None)


def call_in_two_processes(function: Callable[..., None], *arguments: Any) -> int:
    """Call a function in two processes of torchrun; return its status."""
    return _wait_for(_FORKS.Process(target=_launch, args=(function, *arguments)))


def _wait_for(process: Any) -> int:
    process.start()
    process.join(240)
    assert process.exitcode is not None
    return int(process.exitcode)


def _launch(function: Callable[..., None], *arguments: Any) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _start_others_from_the_same_server()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="forkserver",  # the only difference from `torchrun`, which starts Python anew
    )
    elastic_launch(config, function)(*arguments)


def _start_others_from_the_same_server() -> None:
    """Use the fork server of this process; Python would start another, which imports all anew."""
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]


class _ForkedProcess:
    """In place of `subprocess.Popen`, where Lightning starts the other processes of a run."""

    def __init__(self, command: list[str], env: dict[str, str], cwd: str | None) -> None:
        arguments = command[command.index(str(ROOT / "train.py")) + 1 :]
        folder = Path(cwd or Path.cwd())
        self.process: Any = _FORKS.Process(target=_train, args=(folder, arguments, None, env))
        self.process.start()
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _train(
    folder: Path, arguments: Sequence[str], death: Any, environment: Mapping[str, str] = os.environ
) -> None:
    from pytorch_lightning.strategies.launchers import subprocess_script

    _start_others_from_the_same_server()
    subprocess_script.subprocess = SimpleNamespace(Popen=_ForkedProcess)
    if death is not None:
        death.arm()
    _run(folder, "train", arguments, environment)


def _run(
    folder: Path,
    command: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] = os.environ,
) -> None:
    from musicgen.cli import commands

    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    os.environ.update(environment)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("HYDRA_FULL_ERROR", None)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job ignores
    with Path("stderr").open("ab") as file:
        os.dup2(file.fileno(), 2)
    sys.argv = [str(ROOT / f"{command}.py"), *arguments]
    getattr(commands, command)()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_same_run(found: Path, expected: Path) -> None:
    """Assert that two runs ended with the same checkpoints, to the bit, and the same losses."""
    for name in ("last.ckpt", "best.ckpt"):
        ours, theirs = (
            torch.load(run / "checkpoints" / name, weights_only=True) for run in (found, expected)
        )
        for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step"):
            assert_same(ours[key], theirs[key], f"{name}: {key}")
        assert_same(
            *(c.get("current_model_state", {}) for c in (ours, theirs)), f"{name}: trained weights"
        )
    assert {path.name for path in (found / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}
    assert losses(found) == losses(expected)


def assert_same(found: Any, expected: Any, where: str) -> None:
    (ours, form), (theirs, other_form) = (tree_flatten(tree) for tree in (found, expected))
    assert form == other_form, where
    for x, y in zip(ours, theirs, strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y, where


def losses(run: Path) -> list[list[str]]:
    """Return step, loss of training and loss of validation of each row of metrics.csv."""
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    columns = [rows[0].index(name) for name in ("step", "train/loss", "val/loss")]
    found = [[row[i] for i in columns] for row in rows[1:]]
    return [row for row in found if row[1] or row[2]]
