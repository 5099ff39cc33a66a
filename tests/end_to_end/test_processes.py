"""Several processes on the CPU: one run, one folder, and one end."""

import signal
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.command_line import TINY
from tests.end_to_end.deaths import AtHook, assert_same_run, is_alive, torchrun, train

STEPS = 6
TWO = (
    *("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "trainer.precision=32-true"),
    *(f"trainer.max_steps={STEPS}", "trainer.val_check_interval=2", "trainer.log_every_n_steps=1"),
    *(
        f"scheduler.max_steps={STEPS}",
        "model.dropout=0.1",
        "callbacks.redraw_features.probability=0.5",
    ),
)
SECONDS = 30  # in which all processes of a run have ended after one of them died

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]


def arguments(data: Path) -> list[str]:
    return [*TINY, *TWO, f"paths.data_dir={data}"]


def only_run(folder: Path) -> Path:
    (run,) = (folder / "outputs/default").iterdir()
    assert not list(run.glob("*rank*"))
    return run


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    """The folder of a run by the processes of torchrun."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    status = torchrun(folder, *arguments(folder / "data"))
    assert status == 0, (folder / "stderr").read_text()
    return folder


def test_a_process_that_dies_and_a_signal_to_the_first_end_all(uninterrupted, tmp_path):
    again = ["resume=auto", f"paths.data_dir={uninterrupted}/data"]
    death = AtHook(3, "on_validation_end", rank=1)
    status = train(tmp_path, *arguments(uninterrupted / "data"), death=death)
    start = time.monotonic()
    assert status  # of the signal, or of the connection that was lost
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    while any(map(is_alive, pids)):
        assert time.monotonic() - start < SECONDS
        time.sleep(0.1)
    stop = AtHook(3, "on_after_backward", signal.SIGTERM)
    assert train(tmp_path, *again, death=stop) == 130, (tmp_path / "stderr").read_text()
    assert train(tmp_path, *again) == 0, (tmp_path / "stderr").read_text()
    assert_same_run(only_run(tmp_path), only_run(uninterrupted))


def test_jobs_of_a_sweep_have_folders_of_their_own(uninterrupted, tmp_path):
    sweep = ("seed=1,2", "trainer.max_steps=2", "hydra.sweep.dir=sweep")
    status = train(tmp_path, "-m", *arguments(uninterrupted / "data"), *sweep)
    assert status == 0, (tmp_path / "stderr").read_text()
    assert len(list((tmp_path / "sweep").glob("*/checkpoints/last.ckpt"))) == 2
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == {
        *("0", "1", "multirun.yaml", "jobs.csv")
    }
