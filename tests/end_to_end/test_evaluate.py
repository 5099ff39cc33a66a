"""evaluate.py: tables and plots."""

import csv
import json
from itertools import product

import numpy as np
import pytest
import torch

from musicgen import load
from musicgen.checkpoints import run_identity
from musicgen.composer import compose_pop
from musicgen.evaluation.position_loss import position_losses
from musicgen.evaluation.runs import open_training_data
from musicgen.midi import write
from musicgen.models.inspection import position_kernels
from musicgen.random import NoiseKey, RandomStream
from tests.end_to_end.command_line import SHORT, TINY, assert_one_line, succeed


def test_generate_then_evaluate(here, workplace):
    folder = workplace / "folder of prompts"
    for i in range(2):
        write(compose_pop(5, i), folder / f"song {i}.mid")
    (folder / "broken.mid").write_bytes(b"MThd broken")
    settings = ("prompt_bars=2", "length_factor=4", "seed=4")
    arguments = [f"prompt={folder}", "num_samples=2", *settings, "out=generated"]
    done = succeed(here(workplace, "generate.py", *arguments))
    assert "left out" in done.stderr
    assert "broken.mid" in done.stderr
    assert "" not in done.stderr.splitlines()  # of progress bars that cannot be seen
    manifest = json.loads((workplace / "generated/generation.json").read_text())
    assert len(manifest["pieces"]) == 4
    assert {row["tokens"] for row in manifest["pieces"]} == {4 * 64}

    arguments = [f"prompt={folder}/song 1.mid", "num_samples=1", *settings, "out=again"]
    succeed(here(workplace, "generate.py", *arguments))
    first, second = (workplace / d / "song 1_0.mid" for d in ("generated", "again"))
    assert first.read_bytes() == second.read_bytes()

    (folder / "broken.mid").unlink()
    arguments = ["metrics=[style,position_loss]", "generated=generated", f"references={folder}"]
    done = succeed(here(workplace, "evaluate.py", *arguments, "max_pieces=4", "out=measures"))
    style = (workplace / "measures/style.csv").read_text()
    pieces = (workplace / "measures/style_pieces.csv").read_text()
    assert style.splitlines()[0].startswith("profile,part,n,")
    assert "onset_duration,all,2,0," in style  # pieces, of two samples each
    for row in manifest["pieces"]:
        similarity = row["onset-duration similarity"]
        assert f"{row['file']},{row['prompt']},onset_duration,all,{similarity}\n" in pieces
    loss = (workplace / "measures/position_loss.csv").read_text()
    for row in ("model,64,trained", "model,64,extrapolated 2x", "trigram model,,trained"):
        assert f"\n{row}," in loss
    assert (workplace / "measures/position_loss.png").stat().st_size > 1000
    assert "nats per note" in done.stdout


def test_held_out_prompts_are_found_again(here, workplace):
    arguments = ["prompt=test", "prompt_bars=2", "bars=2", "max_new_tokens=99", "report=false"]
    succeed(here(workplace, "generate.py", *arguments, "out=held out"))
    manifest = json.loads((workplace / "held out/generation.json").read_text())
    succeed(here(workplace, "evaluate.py", "generated=held out", "out=held out measures"))
    rows = csv.DictReader((workplace / "held out measures/style_pieces.csv").open())
    found = {
        (row["piece"], row["value"])
        for row in rows
        if (row["profile"], row["part"]) == ("onset_duration", "all")
    }
    expected = {(row["file"], str(row["onset-duration similarity"])) for row in manifest["pieces"]}
    assert found == expected != {*()}


def test_position_properties_writes_a_table_and_a_plot(here, workplace):
    out = workplace / "kernels"
    succeed(here(workplace, "evaluate.py", "metrics=position_properties", f"out={out}"))
    rows = list(csv.DictReader((out / "position_properties.csv").open()))
    assert [(row["layer"], row["head"]) for row in rows] == [*product("01", "01")]
    names = {"kernel": "sine_spe", "lag of": "index", "relative": "expected"}
    assert all(row.items() >= {**names, "length": "64"}.items() for row in rows)
    assert (out / "position_properties.png").stat().st_size > 10_000
    profiles = list(csv.DictReader((out / "position_kernels.csv").open()))
    assert [int(row["lag"]) for row in profiles] == list(range(128))
    model = load("latest").model
    (kernel,) = position_kernels(model, np.arange(128))
    found = [float(row["layer 1, head 0"]) for row in profiles]
    np.testing.assert_allclose(found, kernel.values[1, 0].mean(0), atol=1e-5)


def test_attention_properties(here, workplace):
    learnable = ("position=learnable", "model.position.max_length=70", "hydra.run.dir=learned")
    succeed(here(workplace, "train.py", *TINY, *SHORT, *learnable))
    arguments = ["latest", "learned", "metrics=[attention_properties,position_loss]"]
    arguments += ["metric.attention_properties.num_tokens=3", "split=train", "out=att"]
    done = succeed(here(workplace, "evaluate.py", *arguments))
    assert "offsets below" in done.stdout
    rows = list(csv.DictReader((workplace / "att/attention_properties.csv").open()))
    assert len(rows) == 2 * 2 * 9  # runs, layers, ranges
    assert all(0 <= float(row[name]) <= 1 for row in rows for name in "TM")
    differences = list(csv.DictReader((workplace / "att/position_loss_differences.csv").open()))
    losses = list(csv.DictReader((workplace / "att/position_loss.csv").open()))
    runs = list(dict.fromkeys(row["run"] for row in losses))[:2]  # before the trigram model
    first, second = (
        next(row for row in losses if (row["run"], row["part"]) == (run, "nats per note"))
        for run in runs
    )
    by_note = next(row for row in differences if row["measure"] == "nats per note")
    expected = float(second["mean"]) - float(first["mean"])
    assert float(by_note["difference"]) == pytest.approx(expected)
    assert "nats per token, positions 0 to 64" in {row["measure"] for row in differences}
    assert (workplace / "att/position_loss.pdf").read_bytes().startswith(b"%PDF")
    pictures = {path.name for path in (workplace / "att").glob("*.png")}
    kinds = "maps", "identical_tokens"
    maps = {f"attention_{kind}_{i}.png" for kind, i in product(kinds, "01")}
    assert pictures == maps | {"position_loss.png"}

    alone = ("metrics=position_loss", "metric.position_loss.max_factor=1.09375", "out=70 tokens")
    succeed(here(workplace, "evaluate.py", "latest", *alone, "split=train"))
    first, learned, same = (
        {row["part"]: (row["draws"], row["mean"]) for row in run["rows"]}
        for folder in ("att", "70 tokens")
        for run in json.loads((workplace / folder / "position_loss.json").read_text())["runs"]
    )
    assert {draws for draws, _ in learned.values()} == {1}  # it has no noise
    assert first.keys() - same.keys() == {"extrapolated 1.5x", "extrapolated 2x"}
    assert first["nats per note"] == pytest.approx(same["nats per note"])  # of 70 tokens


def test_each_number_of_realizations_has_rows_of_its_own(here, workplace):
    settings = "num_realizations=[4,null]", "num_draws=2", "max_factor=1"
    arguments = [*(f"metric.position_loss.{x}" for x in settings), "split=train", "out=grid"]
    succeed(here(workplace, "evaluate.py", "metrics=position_loss", *arguments))
    rows = csv.DictReader((workplace / "grid/position_loss.csv").open())
    found = [row for row in rows if (row["run"], row["part"]) == ("model", "trained")]
    assert [(row["R"], row["draws"]) for row in found] == [("4", "2"), ("exact", "1")]
    assert [row["draw_std"] == "" for row in found] == [False, True]


def test_losses_are_those_of_one_pass(here, workplace):
    (run,) = workplace.glob("outputs/tiny/*")
    arguments = ["metrics=position_loss", f"checkpoint={run}", "split=train", "max_pieces=1"]
    arguments += [f"metric.position_loss.{x}" for x in ("num_draws=2", "max_factor=1")]
    succeed(here(workplace, "evaluate.py", *arguments, "out=pass"))
    model = load(run)
    data = open_training_data(model)
    piece = data.split("train")[0]
    tokens = data.cache[piece][:65].astype(np.int64)
    noise = NoiseKey((0, RandomStream.EVALUATION, piece))
    nats = position_losses(model.model, tokens, noise, num_draws=2)
    rows = list(csv.DictReader((workplace / "pass/position_loss.csv").open()))
    (row,) = [row for row in rows if (row["run"], row["part"]) == ("model", "trained")]
    assert float(row["mean"]) == pytest.approx(nats.mean(), rel=1e-5)


LOSSES = (
    "metrics=position_loss",
    "metric.position_loss.num_draws=2",
    "metric.position_loss.max_factor=4",
    "split=train",
)


def store(folder, checkpoint, *overrides):
    """Write a run's folder with a checkpoint and the arguments of its command."""
    for part in ("checkpoints", ".hydra"):
        (folder / part).mkdir(parents=True)
    torch.save(checkpoint, folder / "checkpoints/last.ckpt")
    (folder / ".hydra/overrides.yaml").write_text(json.dumps(["run_name=x", *overrides]))


@pytest.fixture
def seeds(workplace):
    """Runs that differ in their seeds, one with another dropout, and one with another split."""
    (run,) = workplace.glob("outputs/tiny/*")
    checkpoint = torch.load(run / "checkpoints/last.ckpt")
    config = checkpoint["musicgen"]["config"]
    for seed in (1, 2):
        config["seed"] = config["loader"]["seed"] = seed
        config["loader"]["cache_dir"] += str(seed)
        checkpoint["state_dict"]["model.head.weight"][seed] *= 9
        store(workplace / f"seed {seed}", checkpoint, "model.dropout=0.1", f"seed={seed}")
    config["model"]["dropout"] = 0.2
    checkpoint["musicgen"]["identity"] = run_identity(config)
    store(workplace / "another", checkpoint, "model.dropout=0.2", "seed=2")
    config["loader"]["test_fraction"] = 0.3
    store(workplace / "other split", checkpoint, "loader.test_fraction=0.3")


def test_runs_that_differ_in_their_seeds_are_one_row(here, workplace, seeds):
    runs = "runs=[seed 1,seed 2,another]"
    done = succeed(here(workplace, "evaluate.py", *LOSSES, runs, "out=seeds"))
    title, *printed = done.stdout.splitlines()
    assert title == "# position_loss"
    stored = (workplace / "seeds/position_loss.csv").read_text().splitlines()
    assert [line.replace("\t", ",") for line in printed] == stored
    rows = {
        (row["run"], row["part"]): row
        for row in csv.DictReader((workplace / "seeds/position_loss.csv").open())
    }
    assert len(rows) == 3 * 8  # two groups and the trigram model; ranges and units
    pooled = rows["model.dropout=0.1", "extrapolated 4x"]
    assert (pooled["seeds"], pooled["draws"]) == ("2", "2")
    content = json.loads((workplace / "seeds/position_loss.json").read_text())
    assert [run["seed"] for run in content["runs"]] == [1, 2, 2]
    single = [
        next(row for row in run["rows"] if row["part"] == "extrapolated 4x")
        for run in content["runs"][:2]
    ]
    means = [row["mean"] for row in single]
    assert means[0] != means[1]
    assert float(pooled["mean"]) == pytest.approx(np.mean(means))
    assert float(pooled["seed_std"]) == pytest.approx(np.std(means, ddof=1))
    deviation = np.sqrt(np.mean([row["draw_std"] ** 2 for row in single]))
    assert float(pooled["draw_std"]) == pytest.approx(deviation)
    curves = [run["loss"] for run in content["runs"][:2]]
    np.testing.assert_allclose(content["curves"][0]["loss"], np.mean(curves, 0))

    for names, *problem in (
        ("seed 1,seed 1", "seed 1 is given twice"),
        ("seed 1,other split", "other split", "another vocabulary, corpus or split"),
    ):
        refused = here(workplace, "evaluate.py", *LOSSES, f"runs=[{names}]", "out=refused")
        assert_one_line(refused, *problem)
    both = "metrics=position_properties", "runs=[seed 1,other split]", "out=both"
    assert_one_line(
        here(workplace, "evaluate.py", *both), "measures one run; give one run at a time"
    )
