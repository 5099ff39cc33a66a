"""Arguments as Hydra receives them."""

import json
import os
from functools import reduce

import pytest
import yaml

from musicgen import run_folders
from musicgen.cli.arguments import (
    named_values,
    quoted_paths,
    refuse_dashes,
    resumed_arguments,
    with_trainer_arguments,
)
from musicgen.errors import UserError


def test_paths_are_quoted():
    for key in ("out", "prompt", "data.root", "data.corpora.a.root", "paths.output_dir"):
        assert quoted_paths([f"{key}=/a,b & c", "-m"]) == [f"{key}='/a,b & c'", "-m"]
    assert quoted_paths(["data.root='x y'", "out=null", "seed=1"]) == [
        *("data.root='x y'", "out=null", "seed=1")
    ]
    assert quoted_paths(["data.exclude=a,b", "data.exclude=[a,b]"]) == [
        *("data.exclude='a,b'", "data.exclude=[a,b]")
    ]
    assert quoted_paths(["chords=| C, F# | %", "key=F#m"]) == ["chords='| C, F# | %'", "key='F#m'"]
    texts = "ending='half@8,close'", "cadence='half@4,full@8'", "fill='oboe, horn 2 5-8'"
    assert quoted_paths([text.replace("'", "") for text in texts]) == [*texts]
    assert quoted_paths(["program=Pad 1 (new age)", "program={Bass: 34}"]) == [
        *("program='Pad 1 (new age)'", "program={Bass: 34}")
    ]
    assert quoted_paths(["keep=Piano (left)", "keep=[drums,bass]"]) == [
        *("keep='Piano (left)'", "keep=[drums,bass]")
    ]
    assert quoted_paths(["out=/a/${b c}"]) == ["out='/a/\\${b c}'"]


def test_paths_alone_are_prompts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x=y.mid").touch()
    given = ["a b.mid", "bars=2", "x=y.mid", "it's.mid", "--cfg", "job"]
    assert named_values(given, "prompt", "prompt") == [
        *("bars=2", "--cfg", "job", r"prompt=['a b.mid','x=y.mid','it\'s.mid']")
    ]
    assert named_values(["a b.mid"], "prompt", "prompt") == ["prompt='a b.mid'"]
    assert named_values(["seed=1"], "prompt", "prompt") == ["seed=1"]
    runs = "checkpoint", "runs"
    assert named_values(["out=x", "outputs/my run"], *runs) == [
        *("out=x", "checkpoint='outputs/my run'")
    ]
    assert named_values(["latest", "b c"], *runs) == ["runs=['latest','b c']"]
    with pytest.raises(UserError, match="either without a name or with checkpoint="):
        named_values(["latest", "runs=[a]"], *runs)


@pytest.mark.parametrize("flag", ["--bars=3", "--num-samples", "-seed", "--sampling.top_k=3"])
def test_settings_are_no_flags(flag):
    with pytest.raises(UserError, match="settings have no dashes; give "):
        refuse_dashes(["song.mid", flag], "generate")
    refuse_dashes(["--cfg", "job", "-m", "--help", "-1.mid"], "generate")


def test_lightnings_own_settings_need_no_plus():
    rest = ["trainer=gpu", "trainer.max_steps=3", "trainer.max_stpes=3", "+trainer.min_steps=1"]
    given = [*rest, "trainer.limit_val_batches=5"]
    assert with_trainer_arguments(given) == [*rest, "++trainer.limit_val_batches=5"]


@pytest.fixture
def resumed(tmp_path):
    """`resumed(stored, *given)`: the arguments of a run that stores some, without its folder."""
    run = tmp_path / "run"
    (run / ".hydra").mkdir(parents=True)
    (run / "checkpoints").mkdir()
    (run / "checkpoints/last.ckpt").touch()

    def resumed(stored, *given):
        (run / ".hydra/overrides.yaml").write_text(yaml.safe_dump(stored))  # with aliases
        *found, last, folder = resumed_arguments([f"resume={run}", *given])
        assert (last, folder) == (f"resume='{run}/checkpoints/last.ckpt'", f"hydra.run.dir='{run}'")
        return found

    return resumed


def test_resume_becomes_the_arguments_of_its_run(resumed, tmp_path):
    stored = ["seed=1", "+trainer.limit_val_batches=1", "paths.output_dir=/old", "init='/first'"]
    prepared = ["+trainer.limit_val_batches=1", "seed=2"]
    assert resumed(stored, "seed=2") == prepared
    # Lightning starts the other processes of DDP with the prepared arguments.
    run = tmp_path / "run"
    ends = [f"resume='{run}/checkpoints/last.ckpt'", f"hydra.run.dir='{run}'"]
    assert {*resumed_arguments([*prepared, *ends])} == {*prepared, *ends}
    assert resumed(stored, "init=", "seed=2") == ["+trainer.limit_val_batches=1", "init=", "seed=2"]
    with pytest.raises(UserError, match="give either resume"):
        resumed(stored, "init=latest")
    assert resumed(["seed=1", "hparams_search=optuna"]) == ["seed=1"]
    flags = ["-cd", "conf", "--info"]
    assert resumed(["dim=2"], "seed=2", *flags) == [*flags, "dim=2", "seed=2"]
    parts = ["model.copy={}", "model.copy={heads: 1}", "callbacks=[averaged, early_stopping]"]
    assert resumed([*parts, "callbacks=[mine]"]) == parts
    # Another corpus has other settings.
    stored = ["data=midi_folder", "data.group=a", "logger=tensorboard"]
    assert resumed(stored, "data=midi_folder", "logger=csv") == [
        *("data.group=a", "data=midi_folder", "logger=csv")
    ]
    assert resumed(stored, "data=pop909") == [*stored[2:], "data=pop909"]


def test_a_link_out_of_the_folder_is_refused(resumed, tmp_path):
    run = tmp_path / "run"
    (run / "wandb/a/logs").mkdir(parents=True)
    for name, target in (("latest", "a"), ("a/logs/core.log", tmp_path / "log")):  # as W&B does
        (run / "wandb" / name).symlink_to(target)
    assert resumed(["seed=1"]) == ["seed=1"]
    (run / "metrics.csv").symlink_to(tmp_path / "elsewhere.csv")
    with pytest.raises(UserError, match=r"metrics\.csv: a link out of the run's folder"):
        resumed(["seed=1"])
    (run / "metrics.csv").unlink()
    os.mkfifo(run / "metrics.csv")
    with pytest.raises(UserError, match=r"metrics\.csv: a pipe or device in the run's folder"):
        resumed(["seed=1"])


def test_another_name_of_a_file_is_not_appended_to(resumed, tmp_path):
    (tmp_path / "mine.txt").touch()
    for name in ("metrics.csv", "train.log"):
        os.link(tmp_path / "mine.txt", tmp_path / "run" / name)
        with pytest.raises(UserError, match=f"{name}: another name of a file, a hard link"):
            resumed(["seed=1"])
        (tmp_path / "run" / name).unlink()
    assert resumed(["seed=1"]) == ["seed=1"]


@pytest.mark.parametrize(
    "line",
    [
        "trainer=ddp",
        "trainer.strategy=ddp",
        "+trainer.strategy=fsdp",
        "trainer.num_nodes=2",
        "trainer.devices=64",
        "loader.num_workers=100000",
        "loader.prepare_workers=100000",
    ],
)
def test_processes_and_machines_are_those_of_today(resumed, tmp_path, monkeypatch, line):
    """A folder of other people could open ports, or start any number of processes."""
    assert resumed([line, "seed=1"]) == ["seed=1"]
    assert resumed([line], "trainer=ddp", "loader.num_workers=2")[-2:] == [
        *("trainer=ddp", "loader.num_workers=2")
    ]
    monkeypatch.setattr(run_folders, "_ROOT", tmp_path)  # a run below outputs/ is the user's own
    assert resumed([line, "seed=1"]) == [line, "seed=1"]


@pytest.mark.parametrize(
    "line",
    [
        "callbacks.x={_target_: os.system, command: ls}",
        "+callbacks={x: {y: [{_target_: os.system}]}}",
        "callbacks.x=[{_target_: os.system}]",
        "callbacks.best={mode: max, dirpath: /elsewhere}",
        "callbacks.x._target_=pytorch_lightning.callbacks.model_checkpoint.os.system",
        "run_name=${oc.env:HOME}",
        "run_name='${oc.env:HOME}'",
        "hydra/launcher=submitit",
        "hydra.callbacks.x._target_=os.system",
        "optimizer@hydra.callbacks=adam",
        "experiment=../../../elsewhere",
        "experiment=/elsewhere",
        "callbacks.x.y=[a,{_target_: os.system}]",
        "--config-dir=/elsewhere",
        "callbacks.best.dirpath=/elsewhere",
        "callbacks.best.filename=../../elsewhere",
        "callbacks.samples.folder=/elsewhere",
        "logger.tensorboard.version=../../elsewhere",
        "logger=wandb",
        "logger.wandb.project=theirs",
        "+logger.wandb.settings.base_url=https://elsewhere",
        "+logger.wandb.config=/elsewhere",
        "data.exclude=/elsewhere",
        "data.corpora.a.exclude='/elsewhere'",
        "data={exclude: /elsewhere}",
        "paths.data_dir=/elsewhere",
        "data.root=/elsewhere",
        "loader.cache_dir=/elsewhere",
        "+trainer.default_root_dir=/elsewhere",
    ],
)
def test_places_and_objects_are_not_those_of_a_strangers_run(resumed, line, capsys):
    assert resumed(["tags=[a]", line]) == ["tags=[a]"]
    warning = " ".join(capsys.readouterr().err.split())
    assert "not taken from" in warning
    assert line.partition("=")[0] in warning
    assert {*resumed(["tags=[a]", line], line)} == {"tags=[a]", line}


def test_the_folder_of_the_corpus_is_that_of_ones_own_run(resumed, tmp_path, monkeypatch, capsys):
    (tmp_path / "start/my midi").mkdir(parents=True)
    (tmp_path / "run/run.json").write_text(json.dumps({"directory": str(tmp_path / "start")}))
    there = f"data.root='{tmp_path}/start/my midi'"
    monkeypatch.chdir(tmp_path)
    assert resumed(["data.root='my midi'"]) == []  # the run lies below no outputs/
    assert "not taken from" in capsys.readouterr().err
    monkeypatch.setattr(run_folders, "_ROOT", tmp_path)
    for root in ("'my midi'", there.removeprefix("data.root=")):
        assert resumed([f"data.root={root}"]) == [there]
    assert resumed(["data.root=other", "paths.data_dir='my midi'"]) == []
    monkeypatch.chdir(tmp_path / "start")
    assert resumed(["data.root='my midi'"]) == ["data.root='my midi'"]
    assert not capsys.readouterr().err.count("data.root='my midi'")


BOMB = [reduce(lambda inner, _: [inner] * 9, range(60), ["x"])]


@pytest.mark.parametrize("stored", [BOMB, [1]])
def test_stored_arguments_that_are_none_are_refused(resumed, stored):
    with pytest.raises(UserError, match=r"overrides\.yaml"):
        resumed(stored)


def test_stored_choices_of_users_are_taken(resumed):
    lines = [
        "data=midi_folder",
        "data.group='^(.*)/'",
        "logger=none",
        "~callbacks.guard",
        "optimizer.betas=[0.9,0.99]",
        "data.exclude=[a.mid,b.mid]",
        "experiment=spe2021/pop_piano_sine_spe",
    ]
    assert resumed([*lines, "data.root=/a"], "data.root=/x") == [*lines, "data.root=/x"]


def test_a_strangers_run_writes_no_music_elsewhere(here, workplace, tmp_path):
    (run,) = (workplace / "outputs/tiny").iterdir()
    stored = run / ".hydra/overrides.yaml"
    stored.write_text(stored.read_text() + f"- data.root={tmp_path}/victim\n")
    done = here(workplace, "train.py", f"resume={run}", "trainer.max_steps=5")
    assert f"data.root={tmp_path}/victim" in done.stderr
    assert not (tmp_path / "victim").exists()
