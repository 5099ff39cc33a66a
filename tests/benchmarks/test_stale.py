"""Results that are older than the code that they measure."""

import json
import subprocess
import warnings

import pytest

from benchmarks import stale
from benchmarks.measure import RESULTS, ROOT
from benchmarks.tables import is_missed


@pytest.fixture
def commit(tmp_path):
    def commit(name, text):
        (tmp_path / name).write_text(text)
        who = ("-c", "user.name=A", "-c", "user.email=a@b.c")
        stale.git(tmp_path, "add", name)
        stale.git(tmp_path, *who, "commit", "-qm", name)
        return stale.git(tmp_path, "rev-parse", "HEAD").strip()

    stale.git(tmp_path, "init", "-q")
    return commit


def test_a_result_is_older_than_code_that_changed_after_its_commit(tmp_path, commit):
    result = tmp_path / "result.json"
    measured = commit("code.py", "1")
    commit("result.json", json.dumps({"commit": measured}))
    commit("other.py", "2")
    assert stale.changes(tmp_path, result, ("code.py",)) == []
    changed = commit("code.py", "3")
    assert [changed.startswith(x) for x in stale.changes(tmp_path, result, ("code.py",))] == [True]
    commit("result.json", "{}")  # without a commit, it is of the code beside which it was added
    assert stale.changes(tmp_path, result, ("code.py",)) == []


def test_results_and_the_files_that_they_measure_are_there():
    for name, paths in stale.MEASURED.items():
        assert (RESULTS / f"{name}.json").is_file(), name
        assert all((ROOT / path).exists() for path in paths), paths
    try:
        old = [
            n
            for n, paths in stale.MEASURED.items()
            if stale.changes(ROOT, RESULTS / f"{n}.json", paths)
        ]
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no history of commits")
    if old:
        warnings.warn(f"results older than their code: {', '.join(old)}", stacklevel=1)


@pytest.mark.parametrize(
    ("ratio", "target", "missed"),
    [
        (1.051, "≤ 1.05", True),
        (1.049, "≤ 1.05", False),
        (0.94, "≥ .95", True),
        (0.96, "≥ .95", False),
        (2.0, "", False),
    ],
)
def test_a_ratio_beyond_its_target_is_missed(ratio, target, missed):
    assert is_missed(ratio, target) == missed
