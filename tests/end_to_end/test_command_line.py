"""What a user types: three verbs in a row, and mistakes that end in one line."""

from __future__ import annotations

import csv
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from musicgen import cli
from musicgen.cli import prepare_arguments
from musicgen.data.composer import compose_groove, compose_pop
from musicgen.midi import read, write

ROOT = Path(__file__).parents[2]
TINY = (
    "model.dim=16",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.ff_dim=16",
    "data.num_pieces=6",
    "data.length=64",
    "data.batch_size=2",
)


def call(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    environment.pop("HYDRA_FULL_ERROR", None)
    return subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def call_here(
    folder: Path, script: str, arguments: list[str], monkeypatch, capsys
) -> subprocess.CompletedProcess[str]:
    """The same without a process of its own: much quicker."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(sys, "argv", [str(ROOT / script), *arguments])
    capsys.readouterr()
    status: int | str | None = 0
    try:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return subprocess.CompletedProcess(sys.argv, int(status or 0), out, err)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A folder with a trained run in it."""
    folder = tmp_path_factory.mktemp("workplace")
    done = call(folder, "train.py", *TINY, "debug=limit", "task_name=tiny")
    assert done.returncode == 0, done.stderr
    return folder


def test_train_leaves_a_run(workplace):
    (run,) = (workplace / "outputs/tiny").iterdir()
    assert {path.name for path in run.iterdir()} >= {"checkpoints", "config.yaml", "metrics.csv"}
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"best.ckpt", "last.ckpt"}


def test_resume_goes_on_in_the_same_folder(workplace):
    before = set((workplace / "outputs/tiny").iterdir())
    done = call(workplace, "train.py", "resume=auto", "trainer.max_steps=6")
    assert done.returncode == 0, done.stderr
    assert "6 steps in 0." in done.stderr
    assert " s, validation loss" in done.stderr
    assert "next: python generate.py checkpoint=" in done.stderr
    assert set((workplace / "outputs/tiny").iterdir()) == before
    (run,) = before
    saved = (run / ".hydra/overrides.yaml").read_text().splitlines()
    assert saved[-1] == "- trainer.max_steps=6"
    assert "resume" not in "".join(saved)
    steps = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    header, rows = steps[0], [dict(zip(steps[0], row, strict=True)) for row in steps[1:]]
    assert "train/loss" in header
    trained = [int(row["step"]) for row in rows if row["train/loss"]]
    assert trained == list(range(6))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_refused_resume_changes_nothing(workplace, monkeypatch, capsys):
    (run,) = (workplace / "outputs/tiny").iterdir()
    saved = (run / ".hydra/overrides.yaml").read_text()
    assert "debug=limit" in saved
    before = contents(run)
    (workplace / "empty").mkdir()
    for arguments, parts in (
        (["model.dim=32"], ["the run has model.dim=16 (not 32)", "may change trainer"]),
        (["position=rope"], ["the run has model.position=SineSPE (not RoPE)"]),
        (["span=gaussian", "attention=softmax"], ["(not SoftmaxAttention)", "model.span=None"]),
        (["tokenizer=remi_notes"], ["vocabulary has", "use the tokenizer"]),
        (["data.limits.min_notes=1000000", "trainer.max_steps=9"], ["none of 6"]),
    ):
        done = call_here(workplace, "train.py", ["resume=auto", *arguments], monkeypatch, capsys)
        assert_one_line(done, *parts)
        assert "to go on" not in done.stderr
        assert contents(run) == before


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:20_000]), "a damaged checkpoint"),
        (lambda path: torch.save({"a": 1}, path), "not a musicgen checkpoint"),
    ],
)
def test_a_damaged_run_is_not_resumed(workplace, tmp_path, damage, said, monkeypatch, capsys):
    (run,) = (workplace / "outputs/tiny").iterdir()
    shutil.copytree(run, tmp_path / "run")
    damage(tmp_path / "run/checkpoints/last.ckpt")
    before = contents(tmp_path)
    done = call_here(workplace, "train.py", [f"resume={tmp_path}/run"], monkeypatch, capsys)
    assert_one_line(done, "last.ckpt", said)
    assert "to go on" not in done.stderr
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "arguments", [["model.num_heads=3"], ["data.limits.min_notes=1000000", *TINY]]
)
def test_a_run_that_failed_at_once_leaves_no_folder(tmp_path, arguments, monkeypatch, capsys):
    done = call_here(tmp_path, "train.py", arguments, monkeypatch, capsys)
    assert done.returncode == 2, done.stderr
    assert not list(tmp_path.glob("outputs/default/*"))


@pytest.mark.parametrize(
    "name", ["My Song (1).mid", "Señor.mid", "a,b.mid", "a&b.mid", "it's.mid", "x=y.MID"]
)
def test_prompts_as_musicians_name_them(workplace, name):
    write(compose_pop(3, 0), workplace / "prompts" / name)
    out = f"out of {name}"
    done = call(
        workplace, "generate.py", f"prompt=prompts/{name}", "prompt_bars=1", "bars=1", f"out={out}"
    )
    assert done.returncode == 0, done.stderr
    (file,) = (workplace / out).glob("*.mid")
    assert file.name == f"{name.rsplit('.', 1)[0]}_0.mid"
    assert read(file).num_notes > 0
    page = (workplace / out / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_generate_then_evaluate(workplace):
    folder = workplace / "folder of prompts"
    for i in range(3):
        write(compose_pop(5, i), folder / f"song {i}.mid")
    (folder / "broken.mid").write_bytes(b"MThd broken")
    done = call(
        workplace,
        "generate.py",
        f"prompt={folder}",
        "num_samples=2",
        "prompt_bars=2",
        "length_factor=6",
        "out=generated",
        "seed=4",
    )
    assert done.returncode == 0, done.stderr
    assert "left out" in done.stderr
    assert "broken.mid" in done.stderr
    assert "" not in done.stderr.splitlines()  # of progress bars that cannot be seen
    manifest = json.loads((workplace / "generated/generation.json").read_text())
    assert len(manifest["pieces"]) == 6
    assert manifest["settings"]["ungrammatical pieces"] == 0
    assert {row["tokens"] for row in manifest["pieces"]} == {6 * 64}

    again = call(
        workplace,
        "generate.py",
        f"prompt={folder}/song 1.mid",
        "num_samples=1",
        "prompt_bars=2",
        "length_factor=6",
        "out=again",
        "seed=4",
    )
    assert again.returncode == 0, again.stderr
    first, second = (workplace / d / "song 1_0.mid" for d in ("generated", "again"))
    assert first.read_bytes() == second.read_bytes()

    refused = call(workplace, "generate.py", f"prompt={folder}", "out=generated", "prompt_bars=2")
    assert_one_line(refused, "is there already; give another folder with out=DIR")

    (folder / "broken.mid").unlink()
    done = call(
        workplace,
        "evaluate.py",
        "metrics=[style,position_loss]",
        "generated=generated",
        f"references={folder}",
        "out=measures",
    )
    assert done.returncode == 0, done.stderr
    style = (workplace / "measures/style.csv").read_text()
    assert style.splitlines()[0].startswith("measure,n,")
    assert "onset_duration,6,0," in style
    loss = (workplace / "measures/position_loss.csv").read_text()
    for row in ("model, trained", "model, extrapolated 2x", "trigram, trained"):
        assert f'"{row}",' in loss
    assert (workplace / "measures/position_loss.png").stat().st_size > 1000
    assert "trigram" in done.stderr
    gain = float(re.search(r"the model is (\S+) (?:better|worse)$", done.stderr, re.M)[1])
    assert gain > 0  # which of the two the word says
    assert "low, high: 95% confidence interval of the mean" in done.stdout
    assert "model, trained" in done.stdout


def test_what_a_prompt_loses_is_told(workplace, monkeypatch, capsys):
    for i in range(5):
        write(compose_groove(0, "bossa", 0, i), workplace / f"band/{i}.mid")
    arguments = ["prompt=band", "prompt_bars=1", "bars=1", "out=from a band"]
    done = call_here(workplace, "generate.py", arguments, monkeypatch, capsys)
    assert done.returncode == 0, done.stderr
    lost = [line for line in done.stderr.splitlines() if "notes of drums dropped" in line]
    assert len(lost) == 3
    assert lost[0].startswith("0.mid: ")
    assert "and 2 more like these, in generation.json" in done.stderr
    notices = json.loads((workplace / "from a band/generation.json").read_text())["notices"]
    assert notices[:3] == lost
    assert len(notices) == 5


def test_a_piece_without_an_original_is_told(workplace, monkeypatch, capsys):
    write(compose_pop(3, 0), workplace / "originals/a.mid")
    write(compose_pop(3, 0), workplace / "new/b.mid")
    arguments = ["generated=new", "references=originals"]
    refused = call_here(workplace, "evaluate.py", arguments, monkeypatch, capsys)
    assert_one_line(refused, "b.mid: no file of references=originals", "folder of the originals")
    assert not list(workplace.glob("evaluated/*"))


def test_pieces_that_end_with_the_positions_are_told(tmp_path, monkeypatch, capsys):
    arguments = ["train.py", *TINY, "debug=limit", "task_name=short", "position=learnable"]
    arguments += ["model.position.max_length=64", "trainer.max_steps=1"]
    done = call_here(tmp_path, arguments[0], arguments[1:], monkeypatch, capsys)
    assert done.returncode == 0, done.stderr
    arguments = ["bars=16", "num_samples=2", "out=short"]
    done = call_here(tmp_path, "generate.py", arguments, monkeypatch, capsys)
    said = "2 pieces cut short of bars=16 at 64 tokens, where this model's positional encoding"
    assert done.stderr.count(said) == 1
    assert said in json.loads((tmp_path / "short/generation.json").read_text())["notices"][0]


def test_kernels_are_measured_and_drawn(workplace):
    out = workplace / "kernels"
    done = call(workplace, "evaluate.py", "metrics=position_properties", f"out={out}")
    assert done.returncode == 0, done.stderr
    assert "sine_spe, tokens" in done.stdout
    assert "half_width: the lag at which" in done.stdout
    rows = list(csv.DictReader((out / "position_properties.csv").open()))
    assert len(rows) == 1 + 2 + 4  # all, layers, heads
    assert {row["kernel"] for row in rows} == {"sine_spe"}
    assert {row["translation_invariant"] for row in rows} == {"expected"}
    assert {row["training_length"] for row in rows} == {"64"}
    assert (out / "position_properties.png").stat().st_size > 10_000


def test_kernels_of_musical_time_and_of_nothing(workplace, monkeypatch, capsys):
    checkpoint = torch.load(next(workplace.glob("outputs/tiny/*/checkpoints/last.ckpt")))
    content = checkpoint["musicgen"]
    content["model"]["position"]["coordinates"] = "time"
    torch.save(checkpoint, workplace / "time.ckpt")
    arguments = ["checkpoint=time.ckpt", "metrics=position_properties"]
    done = call_here(workplace, "evaluate.py", [*arguments, "out=t"], monkeypatch, capsys)
    assert done.returncode == 0, done.stderr
    row = next(csv.DictReader((workplace / "t/position_properties.csv").open()))
    assert row["lag"] == "grid steps"
    assert 0 < int(row["training_length"]) < 64  # steps that 64 tokens take
    assert float(row["period"]) == pytest.approx(4 * float(row["period_in_beats"]))

    content["model"]["position"] = {"_target_": "musicgen.position.NoPosition", "_partial_": True}
    feature_map = {"_target_": "musicgen.attention.ReLU", "_partial_": True}
    content["model"]["attention"]["feature_map"] = feature_map
    weights = checkpoint["state_dict"]
    for name in [n for n in weights if "position." in n or "feature_map" in n]:
        del weights[name]
    torch.save(checkpoint, workplace / "none.ckpt")
    arguments[0] = "checkpoint=none.ckpt"
    refused = call_here(workplace, "evaluate.py", [*arguments, "out=n"], monkeypatch, capsys)
    assert_one_line(refused, "position=none has no kernel", "position=sine_spe")


def test_held_out_pieces_and_nothing_at_all_are_prompts_too(workplace):
    for arguments, name in (
        (["prompt=test", "num_prompts=1", "prompt_bars=1"], "pop_*_0.mid"),
        (["num_samples=2"], "from nothing_1.mid"),
    ):
        out = f"out {name[:3]}"
        done = call(workplace, "generate.py", *arguments, "bars=1", f"out={out}")
        assert done.returncode == 0, done.stderr
        assert len(list((workplace / out).glob(name))) == 1


def test_multirun_makes_a_folder_for_each_job(workplace):
    done = call(
        workplace,
        "train.py",
        "-m",
        *TINY,
        "debug=limit",
        "task_name=many",
        "position=none,sinusoidal,sine_spe",
        "trainer.max_steps=2",
    )
    assert done.returncode == 0, done.stderr
    (sweep,) = (workplace / "outputs/many").iterdir()
    runs = sorted(path.parent.parent.name for path in sweep.glob("*/checkpoints/last.ckpt"))
    assert runs == ["0", "1", "2"]


def test_a_sweep_goes_on_after_an_impossible_combination(workplace, monkeypatch, capsys):
    arguments = [*TINY, "debug=limit", "trainer.max_steps=1", "task_name=grid", "logger=null"]
    arguments += ["position=alibi,none", "-m"]
    done = call_here(workplace, "train.py", arguments, monkeypatch, capsys)
    assert done.returncode == 2, done.stderr
    assert "error: position=alibi acts on attention logits" in done.stderr
    (sweep,) = (workplace / "outputs/grid").iterdir()
    assert [path.name for path in sweep.iterdir() if path.is_dir()] == ["1"]
    assert (sweep / "1/checkpoints/last.ckpt").is_file()
    assert not (sweep / "1/metrics.csv").exists()


def test_the_commands_of_the_readme_are_read(tmp_path, monkeypatch, capsys):
    lines = (ROOT / "README.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("python train.py") and "group=" in line]
    arguments = shlex.split(line)[2:]
    assert "data.group=^([^/]+)/" in arguments
    done = call_here(tmp_path, "train.py", arguments, monkeypatch, capsys)
    assert_one_line(done, "/my/bands: no such folder")


def test_flags_may_come_last():
    prepared = prepare_arguments(["data=midi_folder", "shard=1/2,2/2", "-m", "data.root=a b"])
    assert prepared == ["-m", "data=midi_folder", "shard=1/2,2/2", "data.root='a b'"]
    assert prepare_arguments(["x=1", "--cfg", "job"]) == ["--cfg", "job", "x=1"]


def test_null_turns_off_what_has_a_none():
    assert prepare_arguments(["logger=null", "resume="]) == ["logger=none"]
    assert prepare_arguments(["~logger", "data=null"]) == ["logger=none", "data=null"]


@pytest.mark.slow
def test_multirun_of_several_processes_keeps_jobs_apart(workplace):
    done = call(
        workplace,
        "train.py",
        "-m",
        *TINY,
        "debug=limit",
        "task_name=processes",
        "trainer=ddp",
        "trainer.accelerator=cpu",
        "trainer.devices=2",
        "trainer.precision=32-true",
        "position=none,sine_spe",
    )
    assert done.returncode == 0, done.stderr
    (sweep,) = (workplace / "outputs/processes").iterdir()
    assert len(list(sweep.glob("*/checkpoints/last.ckpt"))) == 2
    assert {path.name for path in sweep.iterdir()} == {"0", "1", "multirun.yaml"}


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """A mistake's answer: a status, one line, no traceback."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Error executing" not in done.stderr
    for part in parts:
        assert part in lines[0], done.stderr
    assert done.stderr.splitlines()[-1] == lines[0]


MISTAKES = {
    "unknown key": (["train.py", "model.depth=3"], ["model.depth: there is no such setting"]),
    "last name of a key": (["generate.py", "temperature=1"], ["mean sampling.temperature?"]),
    "key misspelt": (["train.py", "model.demi=3", "-m"], ["did you mean model.dim?"]),
    "group misspelt": (["train.py", "positon=rope"], ["did you mean position?"]),
    "group of another script": (["generate.py", "data=pop909"], ["did you mean data.root?"]),
    "flag": (["train.py", "--position", "rope"], ["--position", "give position=rope"]),
    "flag with a value": (["train.py", "--seed=3", "model.dim=3"], ["give seed=3"]),
    "no value": (["train.py", "rope"], ["rope: give it as NAME=VALUE"]),
    "list without brackets": (
        ["evaluate.py", "metrics=position_loss,style"],
        ["error: metrics=position_loss,style: for a list give metrics='[position_loss,style]'"],
    ),
    "what the shell left": (
        ["train.py", "data.name=^([^/]+)/"],
        ["""quote it twice: data.name="'^([^/]+)/'\""""],
    ),
    "folder of experiments": (
        ["train.py", "experiment=spe2021"],
        ["error: experiment=spe2021: a folder; give one of spe2021/groove_ape, "],
    ),
    "no such device": (
        ["train.py", "trainer=gpu" if torch.backends.mps.is_available() else "trainer=mps"],
        ["error: trainer: this machine has no such device; give trainer=cpu"],
    ),
    "seed": (["train.py", "seed=-1"], ["seed=-1: give a whole number"]),
    "word for a seed": (["train.py", "seed=abc"], ["seed=abc: give a whole number"]),
    "key of another choice": (
        ["train.py", "position=sinusoidal", "model.position.coordinates=time"],
        ["model.position.coordinates: there is no such setting with these choices"],
    ),
    "unknown group choice": (
        ["train.py", "position=transformer"],
        ["error: Could not find 'position/transformer'", "sine_spe"],
    ),
    "unknown group": (["train.py", "colour=red"], ["colour"]),
    "syntax": (["train.py", "model.dim=[1"], ["model.dim"]),
    "wrong type": (["train.py", "trainer.max_steps=many"], ["Trainer", "'str' and 'int'"]),
    "no such split": (["evaluate.py", "checkpoint=latest", "split=tset"], ["python train.py"]),
    "causal": (["train.py", "model.causal=false"], ["model.causal=false"]),
    "heads": (["train.py", "model.num_heads=3"], ["model.num_heads=3", "model.dim=128"]),
    "positions too few": (
        ["train.py", "position=learnable", "model.position.max_length=8"],
        ["data.length=512", "max_length=8"],
    ),
    "no such folder": (
        ["train.py", "data=midi_folder", "data.root=no/such"],
        ["no/such", "folder"],
    ),
    "folder missing": (["train.py", "data=midi_folder"], ["is missing; give data.root=FOLDER"]),
    "empty folder": (["train.py", "data=midi_folder", "data.root=empty"], ["empty", ".mid"]),
    "broken corpus": (
        ["train.py", "data=midi_folder", "data.root=broken"],
        ["none of 1", "cut short"],
    ),
    "no POP909": (["train.py", "data=pop909"], ["POP909", "GitHub"]),
    "nothing to resume": (["train.py", "resume=auto"], ["train.py"]),
    "no such run": (["train.py", "resume=no/such"], ["no/such", "resume=auto"]),
    "resume of the best": (["train.py", "resume=run/best.ckpt"], ["goes on from its last.ckpt"]),
    "nothing trained": (["generate.py"], ["python train.py"]),
    "no such checkpoint": (["generate.py", "checkpoint=no.ckpt"], ["no.ckpt"]),
    "not a checkpoint": (
        ["generate.py", "checkpoint=text.ckpt"],
        ["text.ckpt", "not a checkpoint"],
    ),
    "nothing to evaluate": (["evaluate.py"], ["python train.py"]),
    "no references": (["evaluate.py", "generated=empty"], ["references"]),
    "unknown metric": (["evaluate.py", "metrics=beauty"], ["beauty", "style, position_loss"]),
    "no metric": (["evaluate.py", "metrics=[]"], ["metrics=[]", "style, position_loss"]),
    "factor of no use": (
        ["evaluate.py", "max_factor=-1"],
        ["max_factor=-1: give a number, 1 or more"],
    ),
    "no pieces": (["evaluate.py", "max_pieces=0"], ["max_pieces=0: give a whole number, 1 or"]),
    "half a sample": (
        ["generate.py", "num_samples=1.5"],
        ["num_samples=1.5: give a whole number, 1 or more"],
    ),
    "seed of no use": (["generate.py", "seed=x"], ["seed=x: give a whole number, 0 or more"]),
    "neither true nor false": (["generate.py", "report=maybe"], ["report=maybe: give true or"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_get_one_line(tmp_path, mistake, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/x.mid").write_bytes(b"MThd\0\0\0\6\0\1\0\1\1\xe0MTrk\0\0\xff\xff")
    (tmp_path / "text.ckpt").write_text("hello")
    (script, *arguments), parts = MISTAKES[mistake]
    assert_one_line(call_here(tmp_path, script, arguments, monkeypatch, capsys), *parts)


def test_mistakes_beside_a_trained_model(workplace, monkeypatch, capsys):
    (workplace / "bad.mid").write_bytes(b"hello")
    for arguments, parts in (
        (["prompt=bad.mid"], ["bad.mid", "not a MIDI file"]),
        (["prompt=missing.mid"], ["missing.mid", "cannot be read"]),
        (["bars=0"], ["bars=0"]),
        (["bars=2", "length_factor=2"], ["bars", "length_factor"]),
        (["bars=abc"], ["bars=abc: give a whole number, 1 or more"]),
        (["length_factor=x"], ["length_factor=x: give a number above 0"]),
        (["sampling.top_p=2"], ["sampling.top_p=2"]),
        (["sampling.temperature=hot"], ["sampling.temperature=hot: give a number, 0 or more"]),
        (["device=tpu"], ["device=tpu", "cpu"]),
        (["prompt_bars=0", "prompt=test"], ["prompt_bars=0"]),
        (["num_prompts=0"], ["num_prompts=0"]),
        (["max_new_tokens=0"], ["max_new_tokens=0"]),
        (["out=bad.mid"], ["bad.mid", "cannot be made", "give another folder"]),
    ):
        assert_one_line(call_here(workplace, "generate.py", arguments, monkeypatch, capsys), *parts)
    assert not list(workplace.glob("generated/20*"))


def test_a_folder_for_nothing_does_not_stay(workplace, monkeypatch, capsys):
    for script, arguments in (
        ("generate.py", ["compile=maybe"]),
        ("evaluate.py", ["split=tset", "metrics=position_loss"]),
    ):
        arguments = [*arguments, "out=for nothing"]
        assert_one_line(call_here(workplace, script, arguments, monkeypatch, capsys))
        assert not (workplace / "for nothing").exists()


def test_ctrl_c_saves_and_resume_goes_on(tmp_path):
    saved = stop(tmp_path, signal.SIGINT)
    done = call(tmp_path, "train.py", "resume=auto", f"trainer.max_steps={saved + 1}")
    assert done.returncode == 0, done.stderr
    assert f"{saved + 1} steps" in done.stderr


def stop(tmp_path: Path, number: signal.Signals) -> int:
    """Send a signal to a training run; the step that it saved."""
    command = [sys.executable, str(ROOT / "train.py"), *TINY, "trainer.max_steps=100000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    metrics: list[Path] = []
    for _ in range(600):  # until it trains
        metrics = list(tmp_path.glob("outputs/default/*/checkpoints/last.ckpt"))
        if metrics or process.poll() is not None:
            break
        time.sleep(0.1)
    assert metrics
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "to go on: python train.py resume=" in said
    saved = torch.load(metrics[0], weights_only=True)["global_step"]
    assert saved > 100  # not only where the last validation was
    return saved


def test_a_value_of_the_wrong_kind_is_one_line_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "split=abc"])
    with pytest.raises(SystemExit) as stop:
        cli.run(lambda cfg: int(cfg.split), "evaluate", ROOT / "conf")
    assert stop.value.code == 1
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "abc" in line
    assert "HYDRA_FULL_ERROR=1" in line
    assert "Traceback" not in said


def test_names_that_would_collide_stay_apart(workplace):
    for name in ("same/a/b.mid", "same/a_b.mid", "same/x.mid", "same/x.MIDI"):
        write(compose_pop(3, 0), workplace / name)
    done = call(workplace, "generate.py", "prompt=same", "prompt_bars=1", "bars=1", "out=apart")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (workplace / "apart").glob("*.mid")}
    assert names == {"a_b_0.mid", "a_b (2)_0.mid", "x_0.mid", "x (2)_0.mid"}


@pytest.fixture
def heeds_ctrl_c():
    """Children inherit an ignored SIGINT, such as a background job's, but not a handled one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize(
    ("script", "imported"),
    [("train.py", "pytorch_lightning"), ("generate.py", "torch"), ("evaluate.py", "numpy")],
)
def test_ctrl_c_while_libraries_load(tmp_path, script, imported, monkeypatch):
    interrupt = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    (tmp_path / f"{imported}.py").write_text(interrupt)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = call(tmp_path, script)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_sigterm_saves_too(tmp_path):
    stop(tmp_path, signal.SIGTERM)


def test_full_traceback_on_request(tmp_path, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    environment = {**os.environ}
    done = subprocess.run(
        [sys.executable, str(ROOT / "generate.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_run_folder_is_a_checkpoint(workplace):
    (run,) = (workplace / "outputs/tiny").iterdir()
    moved = workplace / "moved, (here)"
    shutil.copytree(run, moved)
    done = call(workplace, "generate.py", f"checkpoint={moved}", "bars=1", "out=from moved")
    assert done.returncode == 0, done.stderr
