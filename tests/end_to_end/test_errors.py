"""Errors end in one line."""

import errno
import os
import sys
from pathlib import Path

import pytest
import torch

from musicgen import run_folders
from musicgen.cli import evaluate
from musicgen.cli.commands import run
from tests.end_to_end.command_line import TINY, assert_one_line, call

SIREN = ["train.py", "position=siren", "attention=softmax"]
ERRORS = {
    "key misspelt": (["train.py", "model.demi=3", "-m"], ["did you mean model.dim?"]),
    "group of another script": (["generate.py", "data=pop909"], ["did you mean data.root?"]),
    "sines": (["train.py", "position=sine_spe", "model.position.num_sines=0"], ["sines=0: expect"]),
    "depth": ([*SIREN, "model.position.depth=1"], ["depth=1: expected an integer >= 2"]),
    "setting of a class": (["train.py", "tokenizer.positions_per_beat=6"], ["use +tokenizer.posi"]),
    "added setting that nothing reads": (
        ["train.py", "+minuts=3"],
        ["error: minuts: no such setting; did you mean minutes?"],
    ),
    "name of another program": (
        ["train.py", "ckpt_path=x"],
        ["error: ckpt_path: no such setting; resume=RUN continues a run", "init=RUN begins"],
    ),
    "name of another program, added": (
        ["train.py", "++ckpt_path=x"],
        ["error: ckpt_path: no such setting; resume=RUN continues a run", "init=RUN begins"],
    ),
    "unknown setting of the samples": (
        ["generate.py", "+sampling.temprature=1"],
        ["error: sampling.temprature: no such setting; did you mean sampling.temperature?"],
    ),
    "unknown setting of an optimizer": (
        ["train.py", *TINY, "++optimizer.lrr=3"],
        ["error: optimizer.lrr: no such setting; did you mean optimizer.lr?"],
    ),
    "unknown setting of a chosen encoding": (
        ["train.py", *TINY, "position=sine_spe", "+model.position.num_sine=3"],
        ["num_sine: no such setting; did you mean model.position.num_sines?"],
    ),
    "callback that is no object": (
        ["train.py", *TINY, "+callbacks.mine=3"],
        ["error: callbacks.mine: no such setting; --help shows all"],
    ),
    "no choice": (["train.py", "logger=null"], ["error: logger=null: expected one of csv, none"]),
    "sharded muon": (
        ["train.py", "+trainer.strategy=fsdp"],
        ["optimizer=muon needs whole matrices", "give optimizer=adamw"],
    ),
    "clock without a cooldown": (
        ["train.py", *TINY, "minutes=9"],
        ["minutes= needs scheduler=warmup_cooldown, with scheduler.cooldown below 1"],
    ),
    "names that need quotes": (
        ["generate.py", "program={Piano: Pad 1 (new age)}"],
        ["program={Piano: Pad 1 (new age)}: Hydra cannot read it; quote names with brackets"],
    ),
    "prompts in two ways": (["generate.py", "x.mid", "prompt=y.mid"], ["x.mid: ", "not both"]),
    "list without brackets": (
        ["evaluate.py", "metrics=position_loss,style"],
        ["metrics=position_loss,style", "To use it as a list, use key=[value1,value2]"],
    ),
    "unknown group choice": (
        ["train.py", "position=transformer"],
        ["error: position=transformer: expected one of transformer_xl, alibi, ", "sine_spe"],
    ),
    "coordinate that no token tells": (
        ["train.py", "tokenizer=groove2groove", "model.position.coordinates=[index,chord]"],
        ["error: model.position.coordinates=chord: expected some of index, time, bar, beat, pitch"],
    ),
    "no keys": (
        ["train.py", "model.musical_key=true"],
        ["error: model.musical_key=True: expected false, or tokens with keys"],
    ),
    "positions too few": (
        ["train.py", *TINY, "position=learnable", "model.position.max_length=8"],
        ["max_length=8: expected 64 or more, one vector per position; train with a larger"],
    ),
    "folder missing": (
        ["train.py", "data=midi_folder"],
        ["error: data.root is missing; give data.root="],
    ),
    "broken corpus": (
        ["train.py", "data=midi_folder", "data.root=broken"],
        ["none of 1", "cut short"],
    ),
    "own files without data=midi_folder": (
        ["train.py", "data.root=mine"],
        [
            "mine: no corpus is composed here, as the folder has other files (song.mid)",
            "data=midi_folder data.root=mine",
        ],
    ),
    "nothing to resume": (["train.py", "resume=auto"], ["train.py"]),
    "nobody's home": (["train.py", "resume=~nobody_/x"], ["resume=~nobody_/x: no user has the "]),
    "nobody's corpus": (["train.py", *TINY, "data.root=~nobody_/x"], ["give the whole path"]),
    "no rate": (
        ["train.py", *TINY, "optimizer.adamw_lr=nan"],
        ["error: optimizer.adamw_lr=nan: expected a number > 0"],
    ),
    "no rates": (
        ["train.py", *TINY, "optimizer=adamw", "optimizer.betas=[1,2]"],
        ["error: optimizer.betas=1: expected a number >= 0 and < 1"],
    ),
    "no number of processes": (
        ["tests/end_to_end/prepare_script.py", "loader.prepare_workers=nan"],
        ["error: loader.prepare_workers=nan: expected an integer >= 1"],
    ),
    "no number of batches": (
        ["train.py", "trainer.limit_val_batches=abc"],
        ["error: trainer.limit_val_batches=abc: Input should be a valid "],
    ),
    "nothing trained": (["generate.py", "checkpoint=latest"], ["python train.py"]),
    "no layers": (["train.py", *TINY, "model.num_layers=-1"], ["error: model.num_layers=-1: exp"]),
    "setting that a class lacks": (
        ["train.py", "data.num_pieces=6", "+data.nope=abc"],
        ["error: +data.nope=abc: ", "got an unexpected keyword argument 'nope'"],
    ),
    "setting taken away": (
        ["train.py", *TINY, "~loader.test_fraction"],
        ["error: ~loader.test_fraction: it is needed; leave this out"],
    ),
    "no devices": (["train.py", *TINY, "trainer.devices="], ["error: trainer.devices=: `devices`"]),
    "no list": (["train.py", "model.cycles=-0.0"], ["error: model.cycles=-0.0: Input should be"]),
    "infinite seed": (["train.py", "loader.seed=-inf"], ["error: loader.seed=-inf: expected an"]),
    "no size": (
        ["train.py", "data.num_pieces=6", "loader.limits.max_gigabytes=maybe"],
        ["error: loader.limits.max_gigabytes=maybe: expected a number > 0"],
    ),
    "no seed": (["train.py", "seed=12345678901"], ["error: seed=12345678901: expected an integer"]),
    "epochs of fewer batches": (
        ["train.py", *TINY, "trainer.check_val_every_n_epoch=1"],
        ["error: trainer.check_val_every_n_epoch=1: `val_check_interval` (100) must be less"],
    ),
    "batch that processes cannot share": (
        ["train.py", *TINY, "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=3"],
        ["error: loader.batch_size=2: expected a multiple of 3, the processes, which share each"],
    ),
    "no precision of products": (
        ["train.py", "matmul_precision=tf32"],
        ["error: matmul_precision=tf32: expected one of highest, high, medium"],
    ),
    "no batches in a step": (
        ["train.py", "trainer.accumulate_grad_batches=0"],
        ["error: trainer.accumulate_grad_batches=0: expected an integer >= 1"],
    ),
    "long value": (["train.py", "run_name=" + "a" * 3000], ["aaa… File name too long"]),
    "unknown interpolation": (
        ["train.py", "trainer.max_steps=${x}"],
        ["error: trainer.max_steps: Interpolation key 'x' not found"],
    ),
    "interpolation of a folder": (
        ["train.py", "run_name=${x}"],
        ["error: hydra.run.dir: Interpolation key 'x' not found"],
    ),
    "interpolation of bars": (
        ["generate.py", "checkpoint=songs-small", "rewrite=${x}"],
        ["error: rewrite: Interpolation key 'x' not found"],
    ),
    "number that vanishes": (
        ["generate.py", "sampling.temperature=1e-320"],
        ["error: sampling.temperature=1e-320: expected 0 or a number from 1e-30 to 1e30"],
    ),
    "rate that overflows": (
        ["train.py", "optimizer=adamw", "optimizer.lr=1e308"],
        ["error: optimizer.lr=1e+308: expected 0 or a number from 1e-30 to 1e30"],
    ),
    "dropout that is no number": (
        ["train.py", *TINY, "model.dropout=nan"],
        ["error: model.dropout=nan: expected a number >= 0 and < 1"],
    ),
    "samples of no validations": (
        ["train.py", *TINY, "callbacks.samples.every=0"],
        ["error: callbacks.samples.every=0: expected an integer >= 1, or None: no samples"],
    ),
    "chords longer than a path": (
        ["generate.py", "checkpoint=none", "chords=" + "C " * 2000],
        ["error: checkpoint=none: no such file or folder"],
    ),
    "no run to resume": (
        ["train.py", "resume="],
        ["error: resume=: it is empty; give a path, or null; is the variable of the shell empty?"],
    ),
    "folder that cannot be made": (
        ["train.py", *TINY, "paths.output_dir=/proc/x"],
        ["error: /proc/x: No such file or directory; give another place"],
    ),
    "run's folder that cannot be made": (
        ["train.py", *TINY, "hydra.run.dir=/proc/x"],
        ["error: /proc/x: No such file or directory; give another place"],
    ),
    "invalid factor": (
        ["evaluate.py", "metrics=position_loss", "metric.position_loss.max_factor=-1"],
        ["metric.position_loss.max_factor=-1: expected a number >= 1"],
    ),
}


@pytest.mark.parametrize("error", ERRORS)
def test_errors_are_one_line(here, tmp_path, error, monkeypatch):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/x.mid").write_bytes(b"MThd\0\0\0\6\0\1\0\1\1\xe0MTrk\0\0\xff\xff")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/song.mid").touch()
    (script, *arguments), parts = ERRORS[error]
    monkeypatch.setattr(run_folders, "PRETRAINED", tmp_path)  # no model takes a run's place
    assert_one_line(here(tmp_path, script, *arguments), *parts)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["song.mid"]


def test_a_failed_command_leaves_no_output_folder(here, workplace):
    for script, arguments in (
        ("generate.py", ["length_factor=-1"]),
        ("evaluate.py", ["split=tset", "metrics=position_loss"]),
    ):
        arguments = [*arguments, "out=for nothing"]
        assert_one_line(here(workplace, script, *arguments))
        assert not (workplace / "for nothing").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize(
    "trainer",
    [
        *("trainer=gpu", "trainer=ddp", "trainer.accelerator=cuda", "trainer=mps"),
        "trainer=fsdp optimizer=adamw",
    ],
)
def test_a_gpu_that_is_missing_is_one_line(here, tmp_path, trainer):
    if trainer == "trainer=mps" and torch.backends.mps.is_available():
        pytest.skip("an Apple GPU is here")
    done = here(tmp_path, "train.py", *TINY, *trainer.split())
    cure = "Without a GPU: trainer=cpu, or several processes on the CPU, trainer=ddp trainer.acc"
    assert_one_line(done, f"error: {trainer.split()[0]}: ", cure)


def test_sharding_on_a_cpu_is_one_line(here, tmp_path):
    arguments = ["trainer=fsdp", "optimizer=adamw", "trainer.accelerator=cpu"]
    done = here(tmp_path, "train.py", *TINY, *arguments)
    assert_one_line(done, "error: trainer.accelerator=cpu: ", "Without a GPU: trainer=cpu, or")


@pytest.mark.parametrize(
    ("code", "raw"), [("", False), ("x = [][dim]", True), ("raise ValueError(dim)", True)]
)
def test_an_error_in_ones_own_class_keeps_its_traceback(here, tmp_path, monkeypatch, code, raw):
    (tmp_path / "own.py").write_text(f"def model(dim, **_):\n    {code or 'return dim'}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    done = here(tmp_path, "train.py", "model._target_=own.model", "model.dim=7")
    assert ("own.py" in done.stderr and "Traceback" in done.stderr) == raw


@pytest.mark.parametrize(
    ("script", "arguments"),
    [("train.py", TINY), ("generate.py", ["bars=1"]), ("tests/end_to_end/prepare_script.py", [])],
)
def test_folders_that_are_read_only_are_one_line(here, tmp_path, script, arguments, monkeypatch):
    def refuse(path, *args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(os, "makedirs", refuse)
    monkeypatch.setattr(os, "mkdir", refuse)
    done = here(tmp_path, script, *arguments)
    assert_one_line(done, "Permission denied; give another place")


def test_other_exceptions_keep_their_traceback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # is restored
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "split=abc"])
    monkeypatch.setattr(evaluate, "main", lambda cfg: int(cfg.split))
    with pytest.raises(ValueError, match=r"invalid literal.*'abc'") as caught:
        run("evaluate")
    assert Path(caught.traceback[-1].path).name == Path(__file__).name  # where it was raised


def test_a_logger_that_is_not_installed_is_named(here, tmp_path, monkeypatch):
    from pytorch_lightning.loggers import TensorBoardLogger

    def missing(*args, **kwargs):
        raise ModuleNotFoundError("No module named 'tensorboard'")

    monkeypatch.setattr(TensorBoardLogger, "__init__", missing)
    done = here(tmp_path, "train.py", "logger=tensorboard")
    assert_one_line(done, "logger.tensorboard: No module named 'tensorboard'; install it, or")


@pytest.mark.parametrize(
    ("script", "imported"), [("train.py", "pytorch_lightning"), ("evaluate.py", "numpy")]
)
def test_ctrl_c_during_imports(tmp_path, script, imported, monkeypatch):
    interrupt = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    (tmp_path / f"{imported}.py").write_text(interrupt)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = call(tmp_path, script)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert not list(tmp_path.glob("outputs/*/*"))
