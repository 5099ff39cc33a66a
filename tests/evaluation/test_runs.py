"""Names and groups of the runs that a measure compares."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from musicgen.errors import UserError
from musicgen.evaluation.runs import name_runs, unequal_steps


@pytest.fixture
def names(tmp_path):
    """`names(["position=rope", "seed=1"], …)`: of runs that were trained with these arguments."""

    def named(*overrides: list[str] | None, files: tuple[str, ...] = ()) -> list[tuple[str, str]]:
        runs: list[Any] = []
        for number, given in enumerate(overrides):
            folder = tmp_path / (files[number] if files else str(number))
            path, seed = folder, None
            if given is not None:
                path = folder if folder.suffix else folder / "checkpoints/best.ckpt"
                hydra = path.parents[1] / ".hydra"
                hydra.mkdir(parents=True, exist_ok=True)
                (hydra / "overrides.yaml").write_text(yaml.dump(given))
                seed = next((int(x[5:]) for x in given if x.startswith("seed=")), 0)
            same = ("seed=", "run_name=", "loader.num_workers=")
            settings = str([x for x in given or () if not x.startswith(same)])
            content = SimpleNamespace(config={"seed": seed}, identity=settings)
            runs.append(SimpleNamespace(path=Path(path), content=content))
        return name_runs(runs)

    return named


def test_runs_that_differ_in_their_seeds_alone_are_a_group(names):
    spe, rope = "position=sine_spe", "position=rope"
    found = names(["data=a", spe, "seed=1"], ["data=a", rope], ["data=a", spe, "seed=2"])
    assert found == [(spe, f"{spe}, seed 1"), (rope, rope), (spe, f"{spe}, seed 2")]
    assert names(["seed=1", rope], [rope]) == [("model", f"model, seed {x}") for x in (1, 0)]
    assert names([rope]) == [("model", "model")]
    differ = ["run_name=a", "seed=1"], ["loader.num_workers=2", "run_name=b"]
    assert names(*differ) == [("model", f"model, seed {x}") for x in (1, 0)]
    assert names([rope, "logger=wandb"], [spe]) == [(rope, rope), (spe, spe)]


def test_runs_that_arguments_do_not_tell_apart_are_named_by_their_folders(names):
    rope = ["position=rope"]
    assert names(rope, rope, files=("a", "b/c")) == [(x, x) for x in ("a", "b/c")]
    files = ("a/checkpoints/best.ckpt", "a/checkpoints/last.ckpt")
    assert names(rope, rope, files=files) == [(x, x) for x in ("best.ckpt", "last.ckpt")]
    mixed = names(rope, rope, ["position=none"], files=(*files, "b"))
    assert [name for name, _ in mixed] == ["a/best.ckpt", "a/last.ckpt", "position=none"]
    assert names([], rope) == [(f"position={x}",) * 2 for x in ("default", "rope")]


def test_published_models_are_named_by_their_folders(names):
    assert names(None) == [("model", "model")]
    assert names(None, None, files=("a", "b")) == [("a", "a"), ("b", "b")]
    assert names(["position=rope"], None, files=("a", "b")) == [("a", "a"), ("b", "b")]


def test_a_strangers_arguments_are_plain_text(names, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "of this machine")
    assert names(["a=${oc.env:SECRET}"], ["a=1"]) == [("a=${oc.env:SECRET}",) * 2, ("a=1",) * 2]
    stored = tmp_path / "0/.hydra"
    shutil.rmtree(stored)
    (tmp_path / "elsewhere").mkdir()
    stored.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"overrides\.yaml: a link out of \S*/0; remove it"):
        names(["a=2"], ["a=1"])


def test_runs_that_the_clock_ended_after_different_steps_are_named():
    def model(name: str, steps: int, minutes: float | None) -> Any:
        content = SimpleNamespace(config={"minutes": minutes}, identity=name, steps=steps)
        return SimpleNamespace(path=Path(name), content=content)

    (told,) = unequal_steps([model("fast", 1200, 3), model("slow", 800, 3)])
    assert "different numbers of steps: fast 1,200, slow 800;" in told
    assert unequal_steps([model("fast", 800, 3), model("slow", 800, 3)]) == []
    assert unequal_steps([model("best", 1200, None), model("early", 800, None)]) == []
