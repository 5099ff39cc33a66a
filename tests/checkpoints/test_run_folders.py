"""The newest run is the one that started last; runs of other seeds have the same identity."""

import json
import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import musicgen
from musicgen.checkpoints import run_identity
from musicgen.errors import UserError
from musicgen.run_folders import FORMAT_VERSION, find_checkpoint, find_run, record_start


def make_run(folder: Path, started: float | None, *files: str) -> Path:
    """A run folder with empty files, all modified at the time of the call."""
    folder.mkdir(parents=True)
    if started is not None:
        (folder / "run.json").write_text(json.dumps({"started": started, "format": FORMAT_VERSION}))
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("")
    return folder


@pytest.fixture
def outputs(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("outputs")


LAST, BEST, ARGUMENTS = "checkpoints/last.ckpt", "checkpoints/best.ckpt", ".hydra/overrides.yaml"


def test_newest_by_start_without_debug_runs(outputs):
    newer = make_run(outputs / "b", 2.0, LAST, BEST)
    older = make_run(outputs / "a", 1.0, LAST)
    make_run(outputs / "debug/x", 3.0, LAST)
    for run, time in ((newer, 1), (older, 2)):  # as if the older one had been resumed since
        os.utime(run / LAST, (time, time))
    assert find_checkpoint("latest") == newer / BEST
    assert find_run("auto") == newer
    recorded = make_run(outputs / "default/c", None, LAST)
    record_start(recorded)
    assert find_run("auto") == recorded
    (outputs / LAST).parent.mkdir()
    (outputs / LAST).touch()
    record_start(outputs)  # hydra.run.dir=outputs
    assert find_run("auto") == outputs


OLDER = ['{"started": 9}', '{"started": 9, "format": 2}', '{"order": 1}', "[9]", "damaged"]


@pytest.mark.parametrize("record", OLDER)
def test_runs_of_another_version_are_named_and_left_out(outputs, record, capsys):
    (make_run(outputs / "old", 9.0, LAST) / "run.json").write_text(record)
    with pytest.raises(UserError, match="and outputs/old is of another version of musicgen; train"):
        find_checkpoint("latest")
    new = make_run(outputs / "new", None, LAST)
    record_start(new)
    assert json.loads((new / "run.json").read_text())["version"] == musicgen.__version__
    assert (find_checkpoint("latest"), find_run("auto")) == (new / LAST, new)
    warnings = capsys.readouterr().err.splitlines()
    assert warnings == ["left out: outputs/old is of another version of musicgen"] * 2


def test_only_debug_runs(outputs):
    run = make_run(outputs / "debug/x", 1.0, LAST)
    for find, name in ((find_checkpoint, "latest"), (find_run, "auto")):
        with pytest.raises(UserError, match="where debug runs do not count; train a model first"):
            find(name)
    assert find_run(str(run)) == run


def test_auto_is_not_an_older_run_than_the_newest(outputs):
    older = make_run(outputs / "a", 1.0, LAST)
    newer = make_run(outputs / "b", 2.0, ARGUMENTS)
    assert find_checkpoint("latest") == older / LAST
    for name in ("auto", str(newer), str(outputs)):
        with pytest.raises(UserError, match=r"has no checkpoints/last\.ckpt"):
            find_run(name)


SAME = ["seed=2", "paths.data_dir=/elsewhere", "trainer.log_every_n_steps=1", "logger=none"]
OTHER = [
    *("model.dim=64", "position=none", "optimizer.lr=0.1", "scheduler.warmup_steps=1"),
    *("trainer.max_steps=7", "trainer.accumulate_grad_batches=2", "data.num_pieces=7"),
    *("tokenizer.max_transposition=1", "init=other.ckpt", "callbacks=averaged"),
    *("callbacks.redraw_features.probability=0.1",),
]


def identity(config, *overrides: str) -> str:
    groups = [each for each in overrides if "." not in each.partition("=")[0]]
    cfg = config("train", "paths.output_dir=out", *groups)
    cfg.merge_with_dotlist([each for each in overrides if each not in groups])
    return run_identity(OmegaConf.to_container(cfg, resolve=True))


@pytest.mark.parametrize("override", OTHER)
def test_settings_of_model_data_and_training_count(config, override):
    assert identity(config, override) != identity(config)


def test_other_settings_do_not_count(config):
    assert identity(config, *SAME) == identity(config)
