"""Errors end in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

from musicgen import run_folders
from musicgen.cli.runner.run import run
from tests.end_to_end.command_line import ROOT, TINY, assert_one_line, call, call_here

ERRORS = {
    "unknown key": (
        ["train.py", "model.depth=3"],
        ["model.depth: no such setting in this configuration"],
    ),
    "last name of a key": (["generate.py", "temperature=1"], ["mean sampling.temperature?"]),
    "key misspelt": (["train.py", "model.demi=3", "-m"], ["did you mean model.dim?"]),
    "group misspelt": (["train.py", "positon=rope"], ["did you mean position?"]),
    "group of another script": (["generate.py", "data=pop909"], ["did you mean data.root?"]),
    "learning rate": (["train.py", "learning_rate=.1"], ["give optimizer.lr=.1"]),
    "lr": (["train.py", "lr=.1"], ["give optimizer.lr=.1"]),
    "batch size": (["train.py", "batch_size=4"], ["did you mean loader.batch_size?"]),
    "steps": (["train.py", "max_steps=4"], ["give trainer.max_steps=4"]),
    "epochs": (["train.py", "epochs=4"], ["trainer.max_epochs=4 trainer.max_steps=-1"]),
    "path of the data": (
        ["train.py", "data.path=/my/midi"],
        ["give data=midi_folder data.root=/my/midi"],
    ),
    "folder for a corpus": (
        ["train.py", "data=/my/midi"],
        ["error: data=/my/midi: ", "give data=midi_folder data.root=/my/midi"],
    ),
    "folder alone": (["train.py", "empty"], ["give data=midi_folder data.root=empty"]),
    "kind of model": (["train.py", "model=performer"], ["small", "attention=favor is the"]),
    "adapter and muon": (
        ["train.py", "adapter=lora", "optimizer=muon", "init=empty"],
        ["optimizer=muon trains whole models: train an adapter with adamw"],
    ),
    "sharded muon": (
        ["train.py", "+trainer.strategy=fsdp"],
        ["optimizer=muon needs whole matrices", "give optimizer=adamw"],
    ),
    "recompute": (["train.py", "recompute=maybe"], ["recompute=maybe: expected true or false"]),
    "argument of the trainer misspelt": (
        ["train.py", "trainer.max_step=3"],
        ["did you mean trainer.max_steps?"],
    ),
    "model to generate with": (["generate.py", "model=x.ckpt"], ["give checkpoint=x.ckpt"]),
    "file to continue": (["generate.py", "file=x.mid"], ["give prompt=x.mid"]),
    "prompts in two ways": (["generate.py", "x.mid", "prompt=y.mid"], ["x.mid: ", "not both"]),
    "prompt missing": (["generate.py", "no/such.mid"], ["error: no/such.mid: cannot be read"]),
    "flag": (["train.py", "--position", "rope"], ["--position", "give position=rope"]),
    "flag with a value": (["train.py", "--seed=3", "model.dim=3"], ["give seed=3"]),
    "no value": (["train.py", "rope"], ["rope: not a valid override; use NAME=VALUE"]),
    "list without brackets": (
        ["evaluate.py", "metrics=position_loss,style"],
        ["metrics=position_loss,style", "To use it as a list, use key=[value1,value2]"],
    ),
    "unquoted regular expression": (
        ["train.py", "data.name=^([^/]+)/"],
        ["""quote the value twice: data.name="'^([^/]+)/'\""""],
    ),
    "folder of experiments": (
        ["train.py", "experiment=spe2021"],
        ["error: experiment=spe2021: expected one of ", "spe2021/groove_ape, "],
    ),
    "no such device": (
        ["train.py", "trainer=gpu" if torch.backends.mps.is_available() else "trainer=mps"],
        ["error: trainer: this machine has no such device; use trainer=cpu"],
    ),
    "seed": (["train.py", "seed=-1"], ["seed=-1: expected an integer"]),
    "word for a seed": (["train.py", "seed=abc"], ["seed=abc: expected an integer"]),
    "key of another choice": (
        ["train.py", "position=sinusoidal", "model.position.coordinates=time"],
        ["model.position.coordinates: no such setting in this configuration"],
    ),
    "unknown group choice": (
        ["train.py", "position=transformer"],
        ["error: position=transformer: expected one of alibi, ", "sine_spe"],
    ),
    "unknown group": (["train.py", "colour=red"], ["colour"]),
    "syntax": (["train.py", "model.dim=[1"], ["model.dim"]),
    "wrong type": (
        ["train.py", "trainer.max_steps=many"],
        ["trainer.max_steps=many: expected an integer >= -1"],
    ),
    "a file as the folder": (
        ["train.py", "data=midi_folder", f"data.root={__file__}"],
        ["a file, not a folder"],
    ),
    "missing runs": (["evaluate.py", "runs=[a,b]"], ["runs=a: no such file or folder"]),
    "key of a group's class": (
        ["train.py", "model.position.coordinates=x"],
        ["error: model.position.coordinates=x: "],
    ),
    "coordinate that no token tells": (
        ["train.py", "tokenizer=groove2groove", "model.position.coordinates=[index,chord]"],
        ["error: model.position.coordinates=chord: expected some of index, time, bar, beat, pitch"],
    ),
    "wrong type of a nested setting": (
        ["train.py", "optimizer.lr=true"],
        ["error: optimizer.lr=true: expected a number > 0"],
    ),
    "a logger's name that is no text": (
        ["train.py", "logger.csv.name=true"],
        ["logger.csv.name=true: expected text, or null"],
    ),
    "a decimal number of steps": (
        ["train.py", "trainer.max_steps=nan"],
        ["trainer.max_steps=nan: expected an integer >= -1"],
    ),
    "fraction of a batch": (
        ["train.py", "trainer.accumulate_grad_batches=1.5"],
        ["trainer.accumulate_grad_batches=1.5: expected an integer >= 1"],
    ),
    "empty folder name": (["train.py", "paths.output_dir="], ["paths.output_dir=: expected a"]),
    "no number for sampling": (
        ["train.py", "sampling.temperature=abc"],
        ["sampling.temperature=abc: expected a number >= 0"],
    ),
    "probability above 1": (["train.py", "sampling.top_p=7"], ["sampling.top_p=7: expected"]),
    "negative learning rate": (["train.py", *TINY, "scheduler.min_lr=-1"], ["scheduler.min_lr=-1"]),
    "neither causal nor not": (
        ["train.py", "model.causal=maybe"],
        ["model.causal=maybe: expected true or false"],
    ),
    "one beta": (["train.py", *TINY, "optimizer.betas=3"], ["optimizer.betas=3: expected two"]),
    "negative decay": (
        ["train.py", *TINY, "optimizer=adamw", "optimizer.weight_decay=-1"],
        ["optimizer.weight_decay=-1: expected a number >= 0"],
    ),
    "unknown setting of torch": (
        ["train.py", *TINY, "+optimizer.speed=1"],
        ["error: optimizer: ", "unexpected keyword argument 'speed'"],
    ),
    "Lightning's own error": (
        ["train.py", *TINY, "trainer.max_steps=1", "callbacks.best.monitor=x"],
        ["ModelCheckpoint(monitor='x')"],
    ),
    "another task's tokenizer": (
        ["train.py", "task=groove", "tokenizer=remi"],
        ["tokenizer=remi does not fit task=groove"],
    ),
    "number for a device": (["generate.py", "device=-1"], ["python train.py"]),
    "a callback that is none": (
        ["train.py", "callbacks.redraw_features=true"],
        ["callbacks.redraw_features=true: expected null or settings"],
    ),
    "one run instead of a list": (
        ["evaluate.py", "metrics=[attention_properties]", "runs=true"],
        ["runs=true: expected a list of different folders"],
    ),
    "number for a metric": (["evaluate.py", "metrics=1.5"], ["metrics=1.5: expected one of style"]),
    "no such split": (["evaluate.py", "checkpoint=latest", "split=tset"], ["python train.py"]),
    "causal": (["train.py", "attention=favor", "model.causal=false"], ["model.causal=false"]),
    "heads": (["train.py", "model.num_heads=3"], ["model.num_heads=3", "dim=128"]),
    "positions too few": (
        ["train.py", "position=learnable", "model.position.max_length=8"],
        ["loader.length=512", "max_length=8"],
    ),
    "no such folder": (
        ["train.py", "data=midi_folder", "data.root=no/such"],
        ["no/such", "folder"],
    ),
    "folder missing": (
        ["train.py", "data=midi_folder"],
        ["error: data.root is missing; give data.root=FOLDER"],
    ),
    "empty folder": (["train.py", "data=midi_folder", "data.root=empty"], ["empty", ".mid"]),
    "broken corpus": (
        ["train.py", "data=midi_folder", "data.root=broken"],
        ["none of 1", "cut short"],
    ),
    "no POP909": (["train.py", "data=pop909"], ["POP909", "GitHub"]),
    "own files without data=midi_folder": (
        ["train.py", "data.root=mine"],
        ["mine: holds other files (song.mid)", "data=midi_folder data.root=mine"],
    ),
    "own files for POP909": (
        ["train.py", "data=pop909", "data.root=mine"],
        ["root=mine: expected song folders", "data=midi_folder data.root=mine"],
    ),
    "nothing to resume": (["train.py", "resume=auto"], ["train.py"]),
    "no such run": (["train.py", "resume=no/such"], ["no/such", "resume=auto"]),
    "resume of the best": (["train.py", "resume=run/best.ckpt"], ["resumes from its last.ckpt"]),
    "nothing trained": (["generate.py"], ["python train.py"]),
    "no such checkpoint": (["generate.py", "checkpoint=no.ckpt"], ["no.ckpt"]),
    "not a checkpoint": (
        ["generate.py", "checkpoint=text.ckpt"],
        ["text.ckpt", "not a checkpoint"],
    ),
    "nothing to evaluate": (["evaluate.py"], ["python train.py"]),
    "nothing generated": (["evaluate.py", "generated=empty"], ["empty", "no .mid"]),
    "no references": (["evaluate.py", "generated=mine"], ["references"]),
    "unknown metric": (
        ["evaluate.py", "metrics=beauty"],
        ["beauty", "style, style_over_time, descriptors"],
    ),
    "no metric": (
        ["evaluate.py", "metrics=[]"],
        ["metrics=[]", "style, style_over_time, descriptors"],
    ),
    "invalid factor": (
        ["evaluate.py", "metrics=position_loss", "metric.position_loss.max_factor=-1"],
        ["metric.position_loss.max_factor=-1: expected a number >= 1"],
    ),
    "negative transpositions": (
        ["evaluate.py", "metrics=position_loss", "metric.position_loss.transpositions=-1"],
        ["metric.position_loss.transpositions=-1: expected an integer >= 0"],
    ),
    "no pieces": (["evaluate.py", "max_pieces=0"], ["max_pieces=0: expected an integer >= 1"]),
    "neither true nor false": (
        ["generate.py", "report=maybe"],
        ["report=maybe: expected true or false"],
    ),
}


@pytest.mark.parametrize("error", ERRORS)
def test_errors_are_one_line(tmp_path, error, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/x.mid").write_bytes(b"MThd\0\0\0\6\0\1\0\1\1\xe0MTrk\0\0\xff\xff")
    (tmp_path / "text.ckpt").write_text("hello")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/song.mid").touch()
    (script, *arguments), parts = ERRORS[error]
    monkeypatch.setattr(run_folders, "PRETRAINED", tmp_path)  # no model takes a run's place
    assert_one_line(call_here(tmp_path, script, arguments, monkeypatch, capsys), *parts)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["song.mid"]


def test_a_failed_command_leaves_no_output_folder(workplace, monkeypatch, capsys):
    for script, arguments in (
        ("generate.py", ["compile=maybe"]),
        ("evaluate.py", ["split=tset", "metrics=position_loss"]),
    ):
        arguments = [*arguments, "out=for nothing"]
        assert_one_line(call_here(workplace, script, arguments, monkeypatch, capsys))
        assert not (workplace / "for nothing").exists()


def test_other_exceptions_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "split=abc"])
    with pytest.raises(SystemExit) as stop:
        run(lambda cfg: int(cfg.split), "evaluate")
    assert stop.value.code == 1
    stderr = capsys.readouterr().err
    (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert "abc" in line
    assert "HYDRA_FULL_ERROR=1" in line
    assert "Traceback" not in stderr


@pytest.fixture
def heeds_ctrl_c():
    """Children inherit an ignored SIGINT, such as a background job's, but not a handled one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_a_logger_that_is_not_installed_is_named(tmp_path, monkeypatch, capsys):
    from pytorch_lightning.loggers import TensorBoardLogger

    def missing(*args, **kwargs):
        raise ModuleNotFoundError("No module named 'tensorboard'")

    monkeypatch.setattr(TensorBoardLogger, "__init__", missing)
    done = call_here(tmp_path, "train.py", ["logger=tensorboard"], monkeypatch, capsys)
    assert_one_line(done, "logger=tensorboard: not installed; run: pip install tensorboard, or")


@pytest.mark.parametrize(
    ("script", "imported"),
    [("train.py", "pytorch_lightning"), ("train.py", "hydra"), ("evaluate.py", "numpy")],
)
def test_ctrl_c_during_imports(tmp_path, script, imported, monkeypatch):
    interrupt = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    (tmp_path / f"{imported}.py").write_text(interrupt)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = call(tmp_path, script)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert not list(tmp_path.glob("outputs/*/*"))


def test_full_traceback_on_request(tmp_path, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    environment = {**os.environ}
    done = subprocess.run(
        [sys.executable, str(ROOT / "generate.py"), "checkpoint=missing"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
