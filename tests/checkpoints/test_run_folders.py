"""The newest run is the one that started last."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from musicgen.checkpoints import find_checkpoint, find_run
from musicgen.errors import UserError
from musicgen.run_folders import record_start


def make_run(folder: Path, started: str | None, *files: str, debug: bool = False) -> Path:
    """A run folder with empty files, all modified at the time of the call."""
    folder.mkdir(parents=True)
    if started is not None:
        (folder / "run.json").write_text(json.dumps({"started": started, "debug": debug}))
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("")
    return folder


LAST, BEST, ARGUMENTS = "checkpoints/last.ckpt", "checkpoints/best.ckpt", ".hydra/overrides.yaml"


def test_newest_by_start_without_debug_runs(tmp_path):
    newer = make_run(tmp_path / "b", "2026-03-02T10:00:00+00:00", LAST, BEST)
    older = make_run(tmp_path / "a", "2026-03-02T11:30:00+02:00", LAST)  # half past nine in UTC
    make_run(tmp_path / "debug", "2026-03-03T10:00:00+00:00", LAST, debug=True)
    for run, time in ((newer, 1), (older, 2)):  # as if the older one had been resumed since
        os.utime(run / LAST, (time, time))
    assert find_checkpoint("latest", tmp_path) == newer / BEST
    assert find_run("auto", tmp_path) == newer


def test_runs_without_a_record_are_dated_by_name_or_file(tmp_path):
    sweep = tmp_path / "default/2026-03-02_10-00-00_multirun"
    jobs = [make_run(sweep / name, None, LAST) for name in ("0", "1")]
    make_run(tmp_path / "default/2026-03-01_10-00-00", None, LAST)
    debug = make_run(tmp_path / "debug/2026-03-05_10-00-00", None, LAST)
    (debug / "config.yaml").write_text("seed: 1\nrun_name: debug\n")
    for job, time in zip(jobs, (2, 1), strict=True):
        os.utime(job / LAST, (time, time))
    assert find_checkpoint("latest", tmp_path) == jobs[0] / LAST
    named = make_run(tmp_path / "my run", None, LAST)  # now
    assert find_run("auto", tmp_path) == named
    record_start(jobs[1], debug=False)
    assert find_run("auto", tmp_path) == jobs[1]


def test_only_debug_runs(tmp_path):
    run = make_run(tmp_path / "debug/x", "2026-03-03T10:00:00+00:00", LAST, debug=True)
    for find, name in ((find_checkpoint, "latest"), (find_run, "auto")):
        with pytest.raises(UserError, match=f"debug runs, which do not count; .* as {run}"):
            find(name, tmp_path)
    assert find_run(str(run), tmp_path) == run


def test_auto_is_the_newest_run_even_without_a_checkpoint(tmp_path):
    older = make_run(tmp_path / "a", "2026-03-02T10:00:00+00:00", LAST)
    newer = make_run(tmp_path / "b", "2026-03-02T11:00:00+00:00", ARGUMENTS)
    assert find_run("auto", tmp_path) == newer
    assert find_checkpoint("latest", tmp_path) == older / LAST
    assert find_run(str(newer), tmp_path) == newer
    with pytest.raises(UserError, match=r"holds no checkpoints/last\.ckpt"):
        find_run(str(tmp_path), tmp_path)
