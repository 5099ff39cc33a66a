"""evaluate.py: tables and plots."""

from __future__ import annotations

import csv
import json
from itertools import product

import numpy as np
import pytest
import torch

from musicgen import load
from musicgen.checkpoints import run_identity
from musicgen.composer import compose_pop
from musicgen.evaluation.position_loss import UNITS, position_losses
from musicgen.evaluation.training_data import open_training_data
from musicgen.metrics.bars import bar_notes, bar_similarities, new_and_returning_bars
from musicgen.metrics.ngram import InterpolatedTrigram
from musicgen.midi import write
from musicgen.models.position_kernels import position_kernels
from musicgen.random import NoiseKey, RandomStream
from musicgen.report.tables import interval
from tests.end_to_end.command_line import assert_one_line, call, succeed


def test_generate_then_evaluate(here, workplace):
    folder = workplace / "folder of prompts"
    for i in range(2):
        write(compose_pop(5, i), folder / f"song {i}.mid")
    (folder / "broken.mid").write_bytes(b"MThd broken")
    settings = ("prompt_bars=2", "length_factor=4", "seed=4")
    arguments = [f"prompt={folder}", "num_samples=2", *settings, "out=generated"]
    done = succeed(call(workplace, "generate.py", *arguments))
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

    refused = here(workplace, "generate.py", f"prompt={folder}", "out=generated", "prompt_bars=2")
    assert_one_line(refused, "exists already; give another folder with out=DIR")

    (folder / "broken.mid").unlink()
    arguments = ["metrics=[style,position_loss]", "generated=generated", f"references={folder}"]
    done = succeed(here(workplace, "evaluate.py", *arguments, "max_pieces=4", "out=measures"))
    style = (workplace / "measures/style.csv").read_text()
    pieces = (workplace / "measures/style_pieces.csv").read_text()
    assert style.splitlines()[0].startswith("profile,part,n,")
    assert "onset_duration,all,4,0," in style
    for row in manifest["pieces"]:
        similarity = row["style, onset_duration"]
        assert f"{row['file']},onset_duration,all,{similarity}\n" in pieces
    loss = (workplace / "measures/position_loss.csv").read_text()
    for row in ("model,64,trained", "model,64,extrapolated 2x", "trigram,,trained"):
        assert f"\n{row}," in loss
    assert (workplace / "measures/position_loss.png").stat().st_size > 1000
    assert "in brackets: 95% confidence intervals of means" in done.stdout
    assert "nats per note" in done.stdout
    assert "nats per bar" in done.stdout


def test_evaluate_refuses_a_piece_without_a_reference(here, workplace):
    write(compose_pop(3, 0), workplace / "originals/a.mid")
    write(compose_pop(3, 0), workplace / "new/b.mid")
    arguments = ["generated=new", "references=originals"]
    refused = here(workplace, "evaluate.py", *arguments)
    assert_one_line(
        refused, "b.mid: ", "no file of the references is named b", "give references=DIR"
    )
    assert not (workplace / "evaluated").exists()


def test_held_out_prompts_are_found_again(here, workplace):
    arguments = ["prompt=test", "prompt_bars=2", "bars=2", "max_new_tokens=99", "report=false"]
    succeed(here(workplace, "generate.py", *arguments, "out=held out"))
    manifest = json.loads((workplace / "held out/generation.json").read_text())
    arguments = ["generated=held out", "out=held out measures"]
    done = succeed(here(workplace, "evaluate.py", *arguments))
    assert max(map(len, done.stdout.split("n: pieces")[0].splitlines())) <= 100
    rows = csv.DictReader((workplace / "held out measures/style_pieces.csv").open())
    found = {
        (row["piece"], f"style, {row['profile']}"): row["value"]
        for row in rows
        if row["part"] == "all"
    }
    expected = {
        (row["file"], name): str(value)
        for row in manifest["pieces"]
        for name, value in row.items()
        if name.startswith("style, ")
    }
    assert found == expected != {}


def test_position_properties_writes_a_table_and_a_plot(here, workplace):
    out = workplace / "kernels"
    done = succeed(here(workplace, "evaluate.py", "metrics=position_properties", f"out={out}"))
    assert "position_properties" in done.stdout
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
    arguments = [
        "metrics=attention_properties",
        "metric.attention_properties.num_tokens=3",
        "split=train",
        "out=att",
    ]
    done = succeed(here(workplace, "evaluate.py", *arguments))
    assert "offsets below" in done.stdout
    rows = list(csv.DictReader((workplace / "att/attention_properties.csv").open()))
    assert len(rows) == 2 * 9  # layers, ranges
    for row in rows:
        assert 0 <= float(row["T"]) <= 1
        assert 0 <= float(row["M"]) <= 1
    pictures = {path.name for path in (workplace / "att").glob("*.png")}
    assert pictures == {"attention_maps.png", "attention_identical_tokens.png"}

    arguments = [*arguments[:-1], "out=bad", "metric.attention_properties.layers=[5]"]
    refused = here(workplace, "evaluate.py", *arguments)
    assert_one_line(
        refused, "metric.attention_properties.layers=[5]", "expected some of the layers 0 to 1"
    )
    assert not (workplace / "bad").exists()


def test_position_properties_in_musical_time_and_without_a_kernel(here, workplace):
    checkpoint = torch.load(next(workplace.glob("outputs/tiny/*/checkpoints/last.ckpt")))
    content = checkpoint["musicgen"]
    content["model"]["position"]["coordinates"] = "time"
    torch.save(checkpoint, workplace / "time.ckpt")
    arguments = ["checkpoint=time.ckpt", "metrics=position_properties"]
    succeed(here(workplace, "evaluate.py", *arguments, "out=t"))
    row = next(csv.DictReader((workplace / "t/position_properties.csv").open()))
    assert row["lag of"] == "time"
    assert 0 < int(row["length"]) < 64  # steps that 64 tokens take

    content["model"]["position"]["coordinates"] = "beat"
    torch.save(checkpoint, workplace / "beat.ckpt")
    arguments[0] = "checkpoint=beat.ckpt"
    succeed(here(workplace, "evaluate.py", *arguments, "out=b"))
    row = next(csv.DictReader((workplace / "b/position_properties.csv").open()))
    assert row["lag of"] == "beat"
    assert 8 < int(row["length"]) <= 16

    content["model"]["position"] = {"_target_": "musicgen.position.NoPosition", "_partial_": True}
    feature_map = {"_target_": "musicgen.attention.ReLU", "_partial_": True}
    content["model"]["attention"]["feature_map"] = feature_map
    weights = checkpoint["state_dict"]
    for name in [n for n in weights if "position." in n or "feature_map" in n]:
        del weights[name]
    torch.save(checkpoint, workplace / "none.ckpt")
    arguments[0] = "checkpoint=none.ckpt"
    refused = here(workplace, "evaluate.py", *arguments, "out=n")
    assert_one_line(refused, "position=none has no kernel", "position=sine_spe")


def test_several_runs_and_numbers_of_realizations(here, workplace):
    (run,) = workplace.glob("outputs/tiny/*")
    copy = workplace / "copy.ckpt"
    copy.write_bytes((run / "checkpoints/last.ckpt").read_bytes())
    arguments = [
        f"runs=[{run.relative_to(workplace)},copy.ckpt]",
        "metric.position_loss.num_realizations=[4,null]",
    ]
    arguments += [
        "metric.position_loss.num_draws=2",
        "metric.position_loss.max_factor=4",
        "out=grid",
        "split=train",
    ]
    succeed(here(workplace, "evaluate.py", "metrics=position_loss", *arguments))
    rows = list(csv.DictReader((workplace / "grid/position_loss.csv").open()))
    parts = ["trained", "extrapolated 1.5x", "extrapolated 2x", "extrapolated 4x"]
    assert [(row["R"], row["part"]) for row in rows if row["run"] == "copy.ckpt"] == [
        (number, part)
        for number in ("4", "exact")
        for part in (*parts, *(f"nats per {unit}" for unit in UNITS))
    ]
    assert len(rows) == 5 * 8
    for row in rows:
        if row["n"] == "0":  # no bar returns in so few tokens
            continue
        noisy = row["R"] == "4"
        assert row["draws"] == ("2" if noisy else "1")
        assert (float(row["draw_std"]) > 0) if noisy else (row["draw_std"] == "")
    content = json.loads((workplace / "grid/position_loss.json").read_text())
    assert len(content["rows"]) == 5 * 8
    found = {(row["run"], row["R"], row["part"]): row for row in rows}
    curve = content["curves"][3]
    assert (curve["run"], curve["R"]) == ("copy.ckpt", "exact")
    assert curve["position"][-1] > 3 * 64
    assert len(curve["loss"]) == len(curve["position"]) == len(curve["num_targets"])
    table = (workplace / "grid/position_loss.tex").read_text()
    row = found["copy.ckpt", "4", "trained"]
    mean, low, high, deviation = (float(row[k]) for k in ("mean", "low", "high", "draw_std"))
    assert table.count("\n") == 6 + len(rows)
    cells = ["copy.ckpt", "4", "trained", row["n"], interval(mean, low, high), f"{deviation:.3f}"]
    assert f"{' & '.join(cells)} " in table

    checkpoint = torch.load(copy)
    checkpoint["musicgen"]["config"]["loader"]["test_fraction"] = 0.3
    torch.save(checkpoint, copy)
    refused = here(workplace, "evaluate.py", "metrics=position_loss", *arguments)
    assert_one_line(refused, "copy.ckpt", "another vocabulary, corpus or split")


def test_predictions_averaged_over_keys(here, workplace):
    (run,) = workplace.glob("outputs/tiny/*")
    arguments = ["metrics=position_loss", f"checkpoint={run}", "split=train", "max_pieces=1"]
    arguments += [
        "metric.position_loss.transpositions=1",
        "metric.position_loss.num_draws=2",
        "metric.position_loss.max_factor=1",
        "out=keys",
    ]
    done = succeed(here(workplace, "evaluate.py", *arguments))
    assert "each in 3 keys" in done.stderr
    model = load(run)
    data = open_training_data(model)
    piece = data.split("train")[0]
    tokens = data.cache[piece][:65].astype(np.int64)
    noise = NoiseKey((0, RandomStream.EVALUATION, piece))
    p = 0
    for shift in (-1, 0, 1):
        moved = model.tokenizer.transpose(tokens, shift)
        assert len(moved) == len(tokens)
        p = p + np.exp(-position_losses(model.model, moved, noise, num_draws=2)) / 3
    rows = list(csv.DictReader((workplace / "keys/position_loss.csv").open()))
    (row,) = [row for row in rows if (row["run"], row["part"]) == ("model", "trained")]
    assert float(row["mean"]) == pytest.approx(-np.log(p).mean(), rel=1e-5)
    # Of the units: the losses of tokens in bars that are new, and in those that return.
    bars = np.cumsum(tokens == tokens[0])[1:] - 1  # REMI begins with Bar
    score = bar_notes(model.tokenizer.decode(tokens))[:, :3]
    new, returning = new_and_returning_bars(bar_similarities(score, int(bars.max()) + 1))
    for unit, flags in (("new", new[bars]), ("returning", returning[bars])):
        (row,) = [
            r for r in rows if (r["run"], r["part"]) == ("model", f"nats per token of {unit} bars")
        ]
        expected = -np.log(p).mean(0)[flags].mean() if flags.any() else np.nan
        assert float(row["mean"] or "nan") == pytest.approx(expected, rel=1e-5, nan_ok=True)
    training = [data.cache[i] for i in data.split("train")]
    trigram = InterpolatedTrigram(len(model.tokenizer.vocabulary), training)
    moved = [model.tokenizer.transpose(tokens, shift) for shift in (-1, 0, 1)]
    p = np.mean([np.exp(-trigram.losses(piece)[1:]) for piece in moved], axis=0)
    (row,) = [row for row in rows if (row["run"], row["part"]) == ("trigram", "trained")]
    assert float(row["mean"]) == pytest.approx(-np.log(p).mean(), rel=1e-5)


def test_runs_that_differ_in_their_seeds_are_one_row(here, workplace, monkeypatch):
    (run,) = workplace.glob("outputs/tiny/*")
    checkpoint = torch.load(run / "checkpoints/last.ckpt")
    config = checkpoint["musicgen"]["config"]
    names = []

    def store(name, *overrides):
        folder = workplace / name
        for part in ("checkpoints", ".hydra"):
            (folder / part).mkdir(parents=True)
        torch.save(checkpoint, folder / "checkpoints/last.ckpt")
        (folder / ".hydra/overrides.yaml").write_text(json.dumps(["run_name=x", *overrides]))
        names.append(name)

    for seed in (1, 2):
        config["seed"] = config["loader"]["seed"] = seed
        config["loader"]["cache_dir"] += str(seed)
        checkpoint["state_dict"]["model.head.weight"][seed] *= 9
        store(f"seed {seed}", "position=sine_spe", f"seed={seed}")
    position = {"_target_": "musicgen.position.NoPosition", "_partial_": True}
    checkpoint["musicgen"]["model"]["position"] = position
    config["model"]["position"] = position
    for name in [name for name in checkpoint["state_dict"] if "position." in name]:
        del checkpoint["state_dict"][name]
    feature_map = {"_target_": "musicgen.attention.ReLU", "_partial_": True}
    for each in (checkpoint["musicgen"]["model"], config["model"]):
        each["attention"]["feature_map"] = feature_map
    for name in [name for name in checkpoint["state_dict"] if "feature_map" in name]:
        del checkpoint["state_dict"][name]
    checkpoint["musicgen"]["identity"] = run_identity(config)
    store("none", "position=none", "seed=2")

    monkeypatch.setenv("COLUMNS", "80")
    arguments = [
        f"runs=[{','.join(names)}]",
        "metric.position_loss.num_draws=2",
        "metric.position_loss.max_factor=4",
        "split=train",
        "out=seeds",
    ]
    done = succeed(here(workplace, "evaluate.py", "metrics=position_loss", *arguments))
    table = done.stdout.partition("n: pieces")[0]
    assert max(map(len, table.splitlines())) <= 80
    header = next(line for line in table.splitlines() if "mean" in line)
    assert [cell.strip() for cell in header.split("┃")[1:-1]] == [
        *("run", "R", "part", "n", "mean", "draw_std", "seed_std")
    ]
    rows = {
        (row["run"], row["part"]): row
        for row in csv.DictReader((workplace / "seeds/position_loss.csv").open())
    }
    assert len(rows) == 3 * 8  # two groups and the trigram model; ranges and units
    pooled = rows["position=sine_spe", "extrapolated 4x"]
    assert (pooled["seeds"], pooled["draws"]) == ("2", "2")
    content = json.loads((workplace / "seeds/position_loss.json").read_text())
    single = [
        next(row for row in run["rows"] if row["part"] == "extrapolated 4x")
        for run in content["runs"]
        if run["run"] == "position=sine_spe"
    ]
    assert [run["seed"] for run in content["runs"]] == [1, 2, 2]
    means = [row["mean"] for row in single]
    assert means[0] != means[1]
    assert float(pooled["mean"]) == pytest.approx(np.mean(means))
    assert float(pooled["seed_std"]) == pytest.approx(np.std(means, ddof=1))
    deviation = np.sqrt(np.mean([row["draw_std"] ** 2 for row in single]))
    assert float(pooled["draw_std"]) == pytest.approx(deviation)
    groups = ["position=sine_spe", "position=none", "trigram"]
    assert [each["run"] for each in content["curves"]] == groups
    curves = [run["loss"] for run in content["runs"][:2]]
    np.testing.assert_allclose(content["curves"][0]["loss"], np.mean(curves, 0))
    latex = (workplace / "seeds/position_loss.tex").read_text()
    assert latex.count("\nposition=sine\\_spe") == 8
    assert f" & {deviation:.3f} & {np.std(means, ddof=1):.3f} \\\\" in latex

    twice = [*arguments[1:-1], "out=twice", "runs=[seed 1,seed 1]"]
    refused = here(workplace, "evaluate.py", "metrics=position_loss", *twice)
    assert_one_line(refused, "seed 1 is given twice")
