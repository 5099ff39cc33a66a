"""Arguments as Hydra receives them."""

from __future__ import annotations

import json

import pytest

from musicgen.cli.runner.arguments import prepare_arguments
from musicgen.errors import UserError


def test_flags_may_come_last():
    prepared = prepare_arguments(["data=midi_folder", "shard=1/2,2/2", "-m", "data.root=a b"])
    assert prepared == ["-m", "data=midi_folder", "shard=1/2,2/2", "data.root='a b'"]
    assert prepare_arguments(["x=1", "--cfg", "job"]) == ["--cfg", "job", "x=1"]


def test_null_selects_none_in_groups_that_have_it():
    assert prepare_arguments(["logger=null", "resume="]) == ["logger=none"]
    assert prepare_arguments(["~logger", "data=null"]) == ["logger=none", "data=null"]


def test_folders_are_quoted():
    for key in ("out", "loader.cache_dir", "paths.data_dir", "paths.output_dir"):
        assert prepare_arguments([f"{key}=/a,b & c"]) == [f"{key}='/a,b & c'"]


def test_resume_becomes_the_arguments_of_its_run(tmp_path):
    run, last = tmp_path / "moved", tmp_path / "moved/checkpoints/last.ckpt"
    (run / ".hydra").mkdir(parents=True)
    stored = ["seed=1", "+trainer.limit_val_batches=1", "paths.output_dir=/old", "init='/first'"]
    (run / ".hydra/overrides.yaml").write_text("".join(f'- "{line}"\n' for line in stored))
    in_folder = f"hydra.run.dir='{run}'"
    # It was stopped before its first checkpoint: it begins as it did.
    began = ["+trainer.limit_val_batches=1", "init='/first'", "seed=2", in_folder]
    assert prepare_arguments([f"resume={run}", "seed=2"]) == began
    last.parent.mkdir()
    last.touch()
    prepared = ["+trainer.limit_val_batches=1", "seed=2", f"resume='{last}'", in_folder]
    assert prepare_arguments([f"resume={run}", "seed=2"]) == prepared
    # Lightning starts the other processes of DDP with the prepared arguments.
    assert sorted(prepare_arguments(prepared)) == sorted([*prepared, in_folder])
    with pytest.raises(UserError, match="give either resume"):
        prepare_arguments([f"resume={run}", "init=latest"])
    assert prepare_arguments([f"resume={run}", "init=", "seed=2"])[-2:] == prepared[-2:]


@pytest.mark.parametrize(
    "line",
    [
        "callbacks.x={_target_: os.system, command: ls}",
        "+callbacks={x: {y: [{_target_: os.system}]}}",
        "+callbacks={x: {_target_: musicgen.training.guard.GuardSteps, y: {_target_: os.system}}}",
        "callbacks.x={_target_: os.system, _partial_: true}",
        "callbacks.x._target_=pytorch_lightning.callbacks.model_checkpoint.os.system",
        "+optimizer._args_=[1]",
        "callbacks.x=${oc.decode:'{_target_: os.system}'}",
        "hydra/launcher=submitit",
        "hydra.callbacks.x._target_=os.system",
        "resume=/other",
        "experiment=../../../elsewhere",
        "--config-dir=/elsewhere",
        "--experimental-rerun",
        "seed=1,2",
    ],
)
def test_stored_arguments_that_could_run_code_are_refused(tmp_path, line):
    arguments = tmp_path / ".hydra/overrides.yaml"
    arguments.parent.mkdir()
    arguments.write_text(json.dumps(["seed=1", line]))
    with pytest.raises(UserError, match="refused"):
        prepare_arguments([f"resume={tmp_path}"])


def test_an_escaped_interpolation_is_refused_by_name(tmp_path):
    arguments = tmp_path / ".hydra/overrides.yaml"
    arguments.parent.mkdir()
    arguments.write_text(json.dumps(["data.root='/a/\\${b c}'"]))
    with pytest.raises(UserError, match=r"has \$\{, which may call a function, and is refused"):
        prepare_arguments([f"resume={tmp_path}"])
    assert prepare_arguments([f"resume={tmp_path}", "data.root=/a/${b c}"])[0] == (
        "data.root='/a/\\${b c}'"
    )


def test_stored_arguments_of_users_are_accepted(tmp_path):
    lines = [
        "data.root='/a b, c'",
        "data.group='^(.*)/'",
        "paths.data_dir=${oc.env:HOME}",
        "~logger",
        "optimizer.betas=[0.9,0.99]",
        "optimizer._target_=torch.optim.SGD",
        "+callbacks.stop={_target_: pytorch_lightning.callbacks.EarlyStopping, monitor: val/loss}",
        "model.attention._target_=musicgen.attention.SoftmaxAttention",
        "experiment=spe2021/pop_piano_sine_spe",
    ]
    arguments = tmp_path / ".hydra/overrides.yaml"
    arguments.parent.mkdir()
    arguments.write_text(json.dumps(lines))
    assert prepare_arguments([f"resume={tmp_path}"])[:-1] == lines

    # Whoever wrote a class of their own repeats it.
    own = "+callbacks.x={_target_: mine.Callback}"
    arguments.write_text(json.dumps([*lines, own]))
    assert prepare_arguments([f"resume={tmp_path}", own])[:-1] == [*lines, own]
