"""A run keeps its id in W&B."""

from __future__ import annotations

import pytest

from musicgen.run_folders import run_id


@pytest.fixture(autouse=True)
def _no_id(monkeypatch):
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)


def test_a_run_is_named_by_its_folder():
    assert run_id("/a/outputs/default/2026-01-02_03-04-05") == "default-2026-01-02_03-04-05"
    assert run_id("elsewhere/x/run") == "x-run"


def test_an_id_of_the_user_is_kept_in_a_folder_that_moves(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "mine-1")
    assert run_id(str(tmp_path / "run")) == "mine-1"
    monkeypatch.delenv("WANDB_RUN_ID")
    (tmp_path / "moved").mkdir()
    config = tmp_path / "moved/config.yaml"
    config.write_text("logger:\n  wandb:\n    id: mine-1\n")
    monkeypatch.setenv("WANDB_RUN_ID", "another")
    assert run_id(str(tmp_path / "moved")) == "mine-1"


@pytest.mark.parametrize(
    "text", ["", "[", "logger: null", "logger: {wandb: {id: '${oc.env:HOME}'}}"]
)
def test_a_strange_configuration_is_ignored(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    assert run_id(str(tmp_path)).endswith(tmp_path.name)
