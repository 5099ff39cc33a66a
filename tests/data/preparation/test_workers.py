import os
import signal
import sys
import time

import numpy as np
import pytest

from musicgen.data.preparation.workers import Failure, run_limited
from musicgen.midi import read
from musicgen.tokenization import REMI
from tests.data.builders import prepare, write_melodies

SETTINGS = {"num_workers": 2, "max_seconds": 20, "max_gigabytes": 1}


def square(task):
    return task * task


def results(function, tasks, **settings):
    return dict(run_limited(function, tasks, **(SETTINGS | settings)))


@pytest.mark.parametrize(("num_tasks", "num_workers"), [(0, 5), (3, 5), (33, 1), (33, 5)])
def test_every_task_gives_one_result(num_tasks, num_workers):
    got = list(run_limited(square, range(num_tasks), **(SETTINGS | {"num_workers": num_workers})))
    assert sorted(got) == [(i, i * i) for i in range(num_tasks)]


def misbehave(task):
    if task == 5:
        raise ValueError("two\nlines")
    if task == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == 7:
        os._exit(3)
    if task == 8:
        raise MemoryError
    return task


def test_failures_are_reported_and_the_others_continue():
    got = results(misbehave, range(60))
    assert {i: result for i, result in got.items() if not isinstance(result, Failure)} == {
        i: i for i in range(60) if i not in (5, 6, 7, 8)
    }
    assert "ValueError: two lines (test_workers.py, line " in got[5].reason
    assert "please report" in got[5].reason
    assert "exit status -9" in got[6].reason
    assert "exit status 3" in got[7].reason
    assert "limits.max_gigabytes=1" in got[8].reason
    assert [got[i].repeatable for i in (5, 6, 7, 8)] == [False, True, True, True]


def test_the_time_limit_of_a_task():
    def work(task):
        while task == 2:  # computes for ever
            pass
        if task == 3:
            time.sleep(60)
        time.sleep(0.02)
        return task

    began = time.monotonic()
    got = results(work, range(30), max_seconds=0.5)
    assert time.monotonic() - began < 15
    late = Failure("took longer than limits.max_seconds=0.5", True)
    assert got == {i: late if i in (2, 3) else i for i in range(30)}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces it")
def test_the_memory_limit_of_a_task():
    def work(task):
        return int(np.ones(task * 2**20, np.uint8).sum() // 2**20)

    got = results(work, [1, 100, 1000, 2], max_gigabytes=0.5)
    assert got == {0: 1, 1: 100, 2: Failure("needs more than limits.max_gigabytes=0.5", True), 3: 2}


def test_workers_end_with_their_parent():
    def work(task):
        (reader if task else writer)  # noqa: B018
        time.sleep(0.2)
        return os.getpid()

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for _ in run_limited(work, range(100), **SETTINGS):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(writer)
    # The other end is closed once all workers have ended.
    os.set_blocking(reader, False)
    deadline = time.monotonic() + 10
    while True:
        try:
            assert os.read(reader, 1) == b""
            break
        except BlockingIOError:
            assert time.monotonic() < deadline, "a worker lives on"
            time.sleep(0.02)
    os.close(reader)


def unlucky(path):
    if not (path.parent / "repaired").exists():
        if path.stem == "1":
            raise KeyError("a bug")
        if path.stem == "2":
            time.sleep(60)
    return read(path)


def test_a_file_that_hangs_is_tried_again_with_another_limit_and_other_failures_always(
    tmp_path, capsys
):
    pieces = write_melodies(tmp_path, 4)

    def names(seconds):
        limits = {"max_seconds": seconds}
        return prepare(pieces, unlucky, REMI(), tmp_path / "cache", limits=limits).names

    assert names(0.8) == ["0.mid", "3.mid"]
    shown = capsys.readouterr().err
    assert "2.mid: took longer than limits.max_seconds=0.8" in shown
    assert "KeyError: 'a bug'" in shown
    (tmp_path / "repaired").touch()
    assert names(0.8) == ["0.mid", "1.mid", "3.mid"]
    assert "1 piece read" in capsys.readouterr().err
    assert names(0.9) == ["0.mid", "1.mid", "2.mid", "3.mid"]
