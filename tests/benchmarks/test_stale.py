"""Results that are older than the code that they measure."""

import json
import shutil
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
    assert not stale.MEASURED.keys() & stale.NOT_MEASURED_AGAIN
    assert {file.stem for file in RESULTS.glob("*.json")} == (
        stale.MEASURED.keys() | stale.NOT_MEASURED_AGAIN
    )
    for name, paths in stale.MEASURED.items():
        assert all((ROOT / path).exists() for path in (f"benchmarks/{name}.py", *paths)), name


def test_results_are_of_the_present_code():
    if not shutil.which("git"):
        pytest.skip("needs git")
    if names := [line.partition(":")[0] for line in stale.findings()]:
        warnings.warn(f"python -m benchmarks.stale lists {', '.join(names)}", stacklevel=1)


def test_a_result_of_an_unknown_commit_does_not_hide_the_others(tmp_path, commit, monkeypatch):
    measured = commit("old.json", "{}")
    commit("code.py", "1")
    commit("old.json", json.dumps({"commit": measured}))
    commit("other.json", json.dumps({"commit": "0" * 40}))
    monkeypatch.setattr(stale, "ROOT", tmp_path)
    monkeypatch.setattr(stale, "RESULTS", tmp_path)
    monkeypatch.setattr(stale, "MEASURED", {"other": ("code.py",), "old": ("code.py",)})
    assert [*stale.findings()] == [
        "other: measured by a commit that is not in the history",
        "old: older than 1 commits of code.py",
    ]


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
