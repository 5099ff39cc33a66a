"""One process engraves all scores, and ends with the process that reads them."""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from musicgen.errors import UserError
from musicgen.midi import read
from musicgen.plugins.scores import engrave, engraver

KERN = "**kern\n*M4/4\n=1\n4c\n4d\n4e\n4f\n=2\n1g\n==\n*-\n"
CRASH = "**kern\t**kern\n*M4/4\t*M4/4\n=1\t=1\n4c\n1d\t1f\n==\t==\n*-\t*-\n"  # a field is missing
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="forks, or reads /proc")


@pytest.fixture
def song(tmp_path):
    (tmp_path / "song.krn").write_text(KERN)
    return tmp_path / "song.krn"


def pitches(path):
    return read(path).notes["pitch"].tolist()


def current():
    return engraver.engraver().process


def test_one_process_serves_many_scores_and_a_crash_costs_one(tmp_path, song, monkeypatch):
    engraver.engraver().stop()
    starts = []
    start = engraver._start
    monkeypatch.setattr(engraver, "_start", lambda: starts.append(start()) or starts[-1])
    assert [pitches(song) for _ in range(3)] == [[60, 62, 64, 65, 67]] * 3
    assert len(starts) == 1
    (tmp_path / "crash.krn").write_text(CRASH)
    with pytest.raises(UserError, match=r"crash.krn: .*damaged"):
        read(tmp_path / "crash.krn")
    assert current() is None
    assert len(starts) == 2  # tried again, alone
    assert all(each.poll() is not None for each in starts)
    assert [pitches(song) for _ in range(2)] == [[60, 62, 64, 65, 67]] * 2
    assert len(starts) == 3


def test_a_score_is_read_though_earlier_ones_have_ended_the_process(song):
    read(song)
    current().kill()
    assert pitches(song) == [60, 62, 64, 65, 67]


def test_a_score_has_a_limit_of_time(song, monkeypatch):
    def start_silent():
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    engraver.engraver().stop()
    monkeypatch.setattr(engraver, "MAX_SECONDS", 0.1)
    monkeypatch.setattr(engraver, "_start", start_silent)
    with pytest.raises(UserError, match=rf"^{song}: .*more than 0.1 seconds[^\n]*$"):
        read(song)
    assert current() is None
    monkeypatch.undo()
    assert pitches(song) == [60, 62, 64, 65, 67]


def run(code, *args):
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


LIMITS = """
import io, json, resource, sys
from types import SimpleNamespace
from musicgen.plugins.scores import engrave
request = json.dumps(["engrave", sys.argv[1], "humdrum", "expandNever"]).encode()
def requests():
    for used in 0.5, 100.5:
        engrave.time = SimpleNamespace(process_time=lambda: used)
        yield request
        print(resource.getrlimit(resource.RLIMIT_CPU)[0])
engrave.serve(requests(), io.StringIO())
"""


@only_linux
def test_the_limit_of_time_is_that_of_each_score():
    assert engrave.MAX_MEMORY <= 2**31
    assert engrave.MAX_CPU == 60
    assert run(LIMITS, KERN).stdout == "61\n161\n"


@only_linux
def test_a_forked_process_has_one_of_its_own(song):
    read(song)
    pid = current().pid

    def target():
        os._exit(0 if pitches(song) and current().pid != pid else 1)

    child = multiprocessing.get_context("fork").Process(target=target)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert pitches(song) == [60, 62, 64, 65, 67]
    assert current().pid == pid


LONG = KERN.replace("1g", "\n".join(f"1g\n={i}" for i in range(3, 20_000)))
KILLED = """
import os, signal, sys, threading, time
from musicgen.midi import read
from musicgen.plugins.scores.engraver import engraver
read(sys.argv[1])
print(engraver().process.pid, flush=True)
threading.Thread(target=read, args=sys.argv[2:]).start()
time.sleep(float(sys.argv[2] != sys.argv[1]) / 2)
{}
"""


@only_linux
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"])
def test_it_ends_with_the_process_that_reads(tmp_path, song, end, busy):
    long = tmp_path / "long.krn"
    long.write_text(LONG)
    pid = int(run(KILLED.format(end), song, long if busy else song).stdout)
    deadline = time.monotonic() + 15
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


def is_running(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
