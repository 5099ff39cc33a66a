"""evaluate.py RUN: the page and the verdict on a model that knows its training pieces by heart."""

import csv
import json
import shutil
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from musicgen import load
from musicgen.evaluation.runs import open_training_data
from musicgen.generation.model import MusicModel
from musicgen.midi import Score, Track, notes_from, write
from tests.end_to_end.command_line import succeed

SMALL = (
    *("model.dim=64", "model.num_layers=2", "model.num_heads=2", "model.ff_dim=128"),
    *("loader.length=256", "loader.batch_size=2", "loader.val_fraction=.2"),
    *("loader.test_fraction=.2", "trainer.max_steps=2", "trainer.val_check_interval=1"),
)
FEW = ("metric.evaluation.num_prompts=3", "metric.evaluation.bars=8")


def melody(seed: int) -> Score:
    """Twelve bars of quarter notes of C major, by chance."""
    pitches = np.random.default_rng(seed).choice([60, 62, 64, 65, 67, 69, 71, 72], 48)
    notes = [(480 * i, 480, int(pitch), 64) for i, pitch in enumerate(pitches)]
    return Score(480, [Track(notes=notes_from(notes))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("by heart")
    for seed in range(9):
        write(melody(seed), path / f"midi/song {seed}.mid")
    return path


def learn_by_heart(model: MusicModel, pieces: list[np.ndarray], steps: int) -> None:
    """Train a model on whole pieces, until it knows them."""
    optimizer = torch.optim.Adam(model.model.parameters(), lr=6e-3)
    rows = [torch.from_numpy(piece.astype(np.int64)) for piece in pieces]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    inputs = tokens[:, :-1].clamp(min=0)
    for _ in range(steps):
        loss = F.cross_entropy(model.model(inputs).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_model_that_knows_its_pieces_by_heart(here, folder):
    root = f"data.root={folder}/midi"
    succeed(here(folder, "train.py", *SMALL, "data=midi_folder", root, "hydra.run.dir=run"))
    model = load(folder / "run")
    data = open_training_data(model)
    torch.manual_seed(0)
    learn_by_heart(model, [data.cache[i] for i in data.split("train")], 60)
    model.save_pretrained(folder / "by heart", dtype="float32")
    baseline = "metric.evaluation.baseline=songs-small"
    done = succeed(here(folder, "evaluate.py", "by heart", root, "out=page", baseline, *FEW))
    assert "Has it overfitted? worse: higher than the training pieces" in done.stderr
    assert "Does it stay in key? about the same as the originals" in done.stderr
    assert done.stderr.splitlines()[-2].startswith("open ")
    page = (folder / "page/index.html").read_text()
    assert "<strong>worse: higher than the training pieces.</strong>" in page
    sides = ("continuation 1 (this run)", "continuation 1 (songs-small)", "the original")
    assert [page.count(f", {side}</h2>") for side in sides] == [3, 3, 3]
    rows = list(csv.DictReader((folder / "page/evaluation.csv").open()))
    by_name = {(row["measure"], row["baseline"]): row for row in rows}
    trained = float(by_name["nats per note", "training pieces"]["baseline_mean"])
    held_out = float(by_name["nats per note", "training pieces"]["mean"])
    assert trained < 1 < held_out
    # The continuations are those of generate.py, whose measures read the folder.
    manifest = json.loads((folder / "page/continuations/generation.json").read_text())
    known = [row["longest match with the training set (notes)"] for row in manifest["pieces"]]
    mean = float(by_name["longest match with the training set (notes)", "held-out pieces"]["mean"])
    assert mean == pytest.approx(np.mean(known))
    for row in manifest["pieces"]:
        assert f"continuations/{quote(row['file'])}" in page

    done = succeed(here(folder, "evaluate.py", "run", "by heart", root, "out=both", *FEW))
    assert "evaluation" in done.stdout
    rows = list(csv.DictReader((folder / "both/evaluation.csv").open()))
    (nats,) = (row for row in rows if row["measure"] == "nats per note")
    pieces = [*csv.DictReader((folder / "both/evaluation_pieces.csv").open())]
    for side in ("first", "second"):
        run, kind = nats[side], "longest match with the training set (notes)"
        of_run = [row for row in pieces if row["run"] == run]
        values = [float(row["value"]) for row in of_run if row["measure"] == "nats per note"]
        assert np.mean(values) == pytest.approx(float(nats[f"{side}_mean"]))
        assert len([row for row in of_run if row["measure"] == kind]) == 3
    curves = json.loads((folder / "both/position_loss.json").read_text())["curves"]
    assert [curve["run"] for curve in curves] == ["run", "trigram model", "by heart"]
    assert (nats["first"], nats["second"]) == ("run", "by heart")
    assert float(nats["second_mean"]) == pytest.approx(held_out)
    low, mean, high = (float(nats[name]) for name in ("low", "difference", "high"))
    assert low < mean < high
    assert mean == pytest.approx(held_out - float(nats["first_mean"]))
    assert (folder / "both/continuations_2/generation.json").exists()

    check_that_lengths_compare(here, folder, root)


def check_that_lengths_compare(here, folder, root):
    """The same weights, as if trained at half the length: the same tokens are compared."""
    shutil.copytree(folder / "by heart", folder / "shorter")
    config = json.loads((folder / "shorter/config.json").read_text())
    config["config"]["loader"]["length"] //= 2
    (folder / "shorter/config.json").write_text(json.dumps(config))
    succeed(here(folder, "evaluate.py", "by heart", "shorter", root, "out=lengths", *FEW))
    rows = list(csv.DictReader((folder / "lengths/evaluation.csv").open()))
    losses = [row for row in rows if row["measure"].startswith("nats")]
    assert len(losses) == 3
    assert all(float(row["difference"]) == 0 for row in losses)
