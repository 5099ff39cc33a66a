"""train.py: run folders, resume, sweeps, interrupts."""

import json
import platform
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from musicgen import load
from musicgen.composer import compose_pop
from musicgen.midi import write
from tests.end_to_end.command_line import SHORT, TINY, assert_one_line, succeed
from tests.end_to_end.deaths import AtHook, train


def test_resume_continues_in_the_same_folder(here, workplace):
    before = set((workplace / "outputs/tiny").iterdir())
    done = succeed(here(workplace, "train.py", "resume=auto", "trainer.max_steps=6"))
    assert re.search(r"^ended at step 6, after \S+ s$", done.stderr, re.M)
    assert "to generate with it: python generate.py checkpoint=" in done.stderr
    assert set((workplace / "outputs/tiny").iterdir()) == before
    (run,) = before
    saved = (run / ".hydra/overrides.yaml").read_text().splitlines()
    assert [line for line in saved if "max_steps" in line] == ["- trainer.max_steps=6"]
    assert "resume" not in "".join(saved)
    steps = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    header, rows = steps[0], [dict(zip(steps[0], row, strict=True)) for row in steps[1:]]
    assert "train/loss" in header
    trained = [int(row["step"]) for row in rows if row["train/loss"]]
    assert trained == list(range(6))


def test_a_run_records_where_it_comes_from(here, workplace):
    (run,) = (workplace / "outputs/tiny").iterdir()
    record = json.loads((run / "run.json").read_text())
    assert Path(record["directory"]).is_dir()
    assert record["packages"]["torch"] == torch.__version__
    log = (run / "train.log").read_text()
    assert f"host: {platform.node()}\n" in log
    assert "parameters; the run's folder is" in log
    before = len(log.splitlines())
    succeed(here(workplace, "train.py", "resume=auto", "trainer.max_steps=7", "print_config=true"))
    added = (run / "train.log").read_text().splitlines()[before:]
    assert added[0].startswith("command: ")
    assert "ended at step 7, after" in "".join(added)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_refused_resume_changes_nothing(here, workplace):
    (run,) = (workplace / "outputs/tiny").iterdir()
    saved = (run / ".hydra/overrides.yaml").read_text()
    assert "run_name=tiny" in saved
    before = contents(run)
    (workplace / "empty").mkdir()
    for arguments, parts in (
        (["model.dim=32"], ["the run has model.dim=16 (not 32)", "may change trainer"]),
        (
            ["trainer.max_steps=3"],
            ["max_steps=3: the run has taken ", " steps already; give a larger number"],
        ),
        (["position=rope"], ["the run has model.position=SineSPE (not RoPE)"]),
        (["tokenizer=remi_notes"], ["checkpoint's vocabulary (", "use the tokenizer"]),
        (["loader.limits.min_notes=1000000", "trainer.max_steps=9"], ["none of 6"]),
    ):
        done = here(workplace, "train.py", "resume=auto", *arguments)
        assert_one_line(done, *parts)
        assert "to continue" not in done.stderr
        assert contents(run) == before


@pytest.mark.parametrize(
    "arguments", [["model.num_heads=3"], ["loader.limits.min_notes=1000000", *TINY]]
)
def test_a_run_that_fails_at_once_leaves_no_folder(here, tmp_path, arguments):
    done = here(tmp_path, "train.py", *arguments)
    assert done.returncode == 2, done.stderr
    assert not list(tmp_path.glob("outputs/default/*"))


def test_a_run_without_a_checkpoint_starts_again(here, workplace):
    arguments = [*TINY, "run_name=cut", "trainer.max_steps=2"]
    run = workplace / "outputs/cut/run"
    in_folder = f"hydra.run.dir={run}"
    death = AtHook(1, "on_after_backward")
    assert train(workplace, *arguments, in_folder, death=death) == -signal.SIGKILL
    assert not list(run.glob("checkpoints/*"))
    refused = here(workplace, "train.py", "resume=auto")
    assert_one_line(refused, "started again by its own command, with hydra.run.dir=outputs/cut/run")
    succeed(here(workplace, "train.py", *arguments, in_folder))
    assert (run / "checkpoints/best.ckpt").is_file()
    steps = [line.split(",")[1] for line in (run / "metrics.csv").read_text().splitlines()[1:]]
    assert len(set(steps)) == len(steps)
    refused = here(workplace, "train.py", *arguments, in_folder)
    assert_one_line(refused, "holds another run; continue it with resume=")
    shutil.rmtree(run)


def test_two_processes_do_not_resume_one_run(here, workplace):
    (run,) = (workplace / "outputs/tiny").iterdir()
    before = contents(run)
    with FileLock(run / ".lock"):
        refused = here(workplace, "train.py", f"resume={run}")
        assert_one_line(refused, str(run), "another process is training in this folder")
    (run / ".lock").unlink(missing_ok=True)
    assert contents(run) == before


def test_init_begins_a_new_run_from_another_ones_weights(here, workplace):
    (first,) = (workplace / "outputs/tiny").iterdir()
    before = contents(first)
    for i in range(4):
        write(compose_pop(4, i), workplace / f"own midi/{i}.mid")
    own = ["data=midi_folder", "data.root=own midi", "loader.batch_size=2", "optimizer=adamw"]
    arguments = [*own, "trainer.max_steps=2", "model.dropout=0.1", "run_name=tuned"]
    done = succeed(here(workplace, "train.py", f"init={first}", *arguments))
    assert f"begins with the weights of {first}/checkpoints/best.ckpt: " in done.stderr
    assert " on ComposedCorpus in " in done.stderr
    assert contents(first) == before
    (second,) = (workplace / "outputs/tuned").iterdir()
    (there, new) = (load(run).content for run in (first, second))
    assert new.model == {**there.model, "dropout": 0.1}
    assert new.config["loader"]["length"] == there.config["loader"]["length"] == 64
    assert new.config["data"]["root"] == "own midi"
    assert new.steps == 2
    again = succeed(here(workplace, "train.py", "resume=auto", "trainer.max_steps=3"))
    assert (
        f"to train it longer: python train.py resume={second} trainer.max_steps=6" in again.stderr
    )
    shutil.copytree(second, workplace / "elsewhere")  # as a run of somebody else
    refused = here(workplace, "train.py", "resume=elsewhere", "trainer.max_steps=4")
    assert_one_line(refused, "data.root is missing")
    assert "not taken from elsewhere, give it again if it matters: data.root=" in refused.stderr
    shutil.rmtree(workplace / "elsewhere")
    resumed = load(second / "checkpoints/last.ckpt").content
    assert resumed.model == new.model
    assert resumed.config["init"] == new.config["init"] == f"{first}/checkpoints/best.ckpt"
    shutil.rmtree(second)


def test_a_copy_head_is_trained_beside_the_weights_of_a_run(here, workplace):
    (base,) = (workplace / "outputs/tiny").iterdir()
    data = [setting for setting in TINY if setting.startswith("data.")]
    begun = ["experiment=pretrained/copy_head", f"init={base}", *data, *SHORT, "run_name=head"]
    done = succeed(here(workplace, "train.py", *begun))
    assert done.stderr.count("a new copy head") == 1
    run = max((workplace / "outputs/head").iterdir())
    before, after = (load(x).model.state_dict() for x in (base, run))
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {name.split(".")[0] for name in after.keys() - before.keys()} == {"copy_head"}
    assert {**load(run).content.model, "copy": None} == load(base).content.model
    shutil.rmtree(workplace / "outputs/head")
