"""Arguments as Hydra receives them."""

from __future__ import annotations

import re
from functools import reduce

import pytest
import yaml

from musicgen.cli.arguments import named_values, quoted_paths
from musicgen.cli.resume_arguments import resumed_arguments
from musicgen.errors import UserError


def test_paths_are_quoted():
    for key in ("out", "prompt", "data.root", "soundfont", "paths.output_dir"):
        assert quoted_paths([f"{key}=/a,b & c", "-m"]) == [f"{key}='/a,b & c'", "-m"]
    assert quoted_paths(["data.root='x y'", "out=null", "seed=1"]) == [
        *("data.root='x y'", "out=null", "seed=1")
    ]
    assert quoted_paths(["data.exclude=a,b", "data.exclude=[a,b]"]) == [
        *("data.exclude='a,b'", "data.exclude=[a,b]")
    ]
    assert quoted_paths(["chords=| C, F# | %"]) == ["chords='| C, F# | %'"]
    assert quoted_paths(["keep=Piano (left)", "tracks=[alto,bass]", "keep=[drums,bass]"]) == [
        *("keep='Piano (left)'", "tracks=[alto,bass]", "keep=[drums,bass]")
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
    with pytest.raises(UserError, match="either alone or with checkpoint="):
        named_values(["latest", "runs=[a]"], *runs)


def test_resume_becomes_the_arguments_of_its_run(tmp_path):
    run, last = tmp_path / "moved", tmp_path / "moved/checkpoints/last.ckpt"
    (run / ".hydra").mkdir(parents=True)
    stored = ["seed=1", "+trainer.limit_val_batches=1", "paths.output_dir=/old", "init='/first'"]
    (run / ".hydra/overrides.yaml").write_text("".join(f'- "{line}"\n' for line in stored))
    in_folder = f"hydra.run.dir='{run}'"
    # It was stopped before its first checkpoint: it begins as it did.
    began = ["+trainer.limit_val_batches=1", "init='/first'", "seed=2", in_folder]
    assert resumed_arguments([f"resume={run}", "seed=2"]) == began
    last.parent.mkdir()
    last.touch()
    prepared = ["+trainer.limit_val_batches=1", "seed=2", f"resume='{last}'", in_folder]
    assert resumed_arguments([f"resume={run}", "seed=2"]) == prepared
    # Lightning starts the other processes of DDP with the prepared arguments.
    assert sorted(resumed_arguments(prepared)) == sorted([*prepared, in_folder])
    with pytest.raises(UserError, match="give either resume"):
        resumed_arguments([f"resume={run}", "init=latest"])
    assert resumed_arguments([f"resume={run}", "init=", "seed=2"])[-2:] == prepared[-2:]


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere.csv"
    (run / "wandb/a").mkdir(parents=True)
    (run / "wandb/latest").symlink_to("a")
    assert resume_of(run, ["seed=1"]) == ["seed=1"]
    (run / "metrics.csv").symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"metrics\.csv: a link out of the run's folder"):
        resume_of(run, ["seed=1"])


def resume_of(folder, stored, *given):
    (folder / ".hydra").mkdir(exist_ok=True)
    (folder / ".hydra/overrides.yaml").write_text(yaml.safe_dump(stored))  # with aliases
    return resumed_arguments([f"resume={folder}", *given])[:-1]


@pytest.mark.parametrize(
    "line",
    [
        "callbacks.x={_target_: os.system, command: ls}",
        "+callbacks={x: {y: [{_target_: os.system}]}}",
        "callbacks.x=[{_target_: os.system}]",
        "callbacks.x._target_=pytorch_lightning.callbacks.model_checkpoint.os.system",
        "run_name=${oc.env:HOME}",
        "run_name='${oc.env:HOME}'",
        "hydra/launcher=submitit",
        "hydra.callbacks.x._target_=os.system",
        "optimizer@hydra.callbacks=adam",
        "resume=/other",
        "experiment=../../../elsewhere",
        "experiment=/elsewhere",
        "seed=1,2",
        "callbacks.last.path=/elsewhere",
        "callbacks.best.dirpath=/elsewhere",
        "callbacks.best.filename=../../elsewhere",
        "callbacks.samples.folder=/elsewhere",
        "logger.tensorboard.version=../../elsewhere",
        "paths.data_dir=/elsewhere",
        "+trainer.default_root_dir=/elsewhere",
        "data.download=true",
    ],
)
def test_stored_arguments_that_could_do_harm_are_refused_by_name(tmp_path, line):
    key = line.partition("=")[0]
    with pytest.raises(UserError, match=rf"{re.escape(key)}.* is refused.* command line"):
        resume_of(tmp_path, ["tags=[a]", line])
    if not key.startswith(("resume", "hydra/", "optimizer@")):
        assert resume_of(tmp_path, ["tags=[a]", line], line) == ["tags=[a]", line]


BOMB = [reduce(lambda inner, _: [inner] * 9, range(60), ["x"])]


@pytest.mark.parametrize("stored", [["--config-dir=/elsewhere"], ["--experimental-rerun"], BOMB])
def test_stored_arguments_that_are_none_are_refused(tmp_path, stored):
    with pytest.raises(UserError, match=r"overrides\.yaml"):
        resume_of(tmp_path, stored)


def test_stored_arguments_of_users_are_accepted(tmp_path):
    lines = [
        "data=midi_folder",
        "data.root='/a b, c'",
        "data.group='^(.*)/'",
        "logger=none",
        "experiment=null",
        "~callbacks.guard",
        "optimizer.betas=[0.9,0.99]",
        "experiment=spe2021/pop_piano_sine_spe",
    ]
    assert resume_of(tmp_path, lines) == lines
    with pytest.raises(UserError, match=r"data.root=.* is refused"):
        resume_of(tmp_path, ["data.root='/a/\\${b c}'"])
    assert resume_of(tmp_path, lines, "data.root=/x") == [lines[0], *lines[2:], "data.root=/x"]
