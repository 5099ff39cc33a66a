"""A look at music, and the plan that follows from it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from musicgen.cli import plan
from musicgen.cli.plan import SIZES, TOKENIZERS, Plan, Probe, probe, size, tokenizer
from musicgen.data.corpora import MidiFolder
from musicgen.data.preparation import Limits
from musicgen.errors import UserError
from musicgen.evaluation.look import look_at
from musicgen.midi import Score, TimeSignature, Track, notes_from, write
from musicgen.tokenization import frozen_tokenizers
from musicgen.training.tasks import Task

NOTES = 64


def track(rng, program=0, is_drum=False, low=48, high=84, every=120):
    pitches = rng.integers(low, high, NOTES)
    rows = [(every * i, every, int(pitch), 80) for i, pitch in enumerate(pitches)]
    return Track("", program, is_drum, notes_from(rows))


def piano(rng):
    return [track(rng)]


def band(rng):
    return [track(rng, 33, low=30, high=45), track(rng, 27), track(rng, is_drum=True)]


def chorale(rng):
    ranges = ((60, 80), (55, 72), (48, 66), (40, 60))
    return [track(rng, low=low, high=high) for low, high in ranges]


def folder_of(path, make, count=3, metre=None):
    path.mkdir()
    for i in range(count):
        signatures = [TimeSignature(0, *metre)] if metre else []
        tracks = make(np.random.default_rng(i))
        write(Score(480, tracks, time_signatures=signatures), path / f"{i}.mid")
    return path


def look(folder):
    frozen = frozen_tokenizers()
    tokenizers = {name: frozen[name] for name in TOKENIZERS}
    limits = Limits(max_megabytes=1, max_seconds=60, max_gigabytes=4, max_tokens=9999, min_notes=1)
    return look_at(MidiFolder(folder, group=None, exclude=None), tokenizers, limits)


@pytest.mark.parametrize(
    ("make", "metre", "expected"),
    [
        (piano, None, "remi"),
        (piano, (3, 4), "remi_metres"),
        (band, None, "groove2groove"),
        (lambda rng: [*band(rng), track(rng, 56)], None, "groove2groove_band"),  # a trumpet
        (chorale, None, "chorale"),
    ],
)
def test_the_tokenizer_that_keeps_instruments_and_metre_is_taken(tmp_path, make, metre, expected):
    found = look(folder_of(tmp_path / "music", make, metre=metre))
    assert tokenizer(Plan([]), found) == TOKENIZERS[expected]


def test_a_resumed_plan_computes_with_its_threads(tmp_path, monkeypatch):
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    assert Plan.of_run(tmp_path) is None
    plan = Plan(["seed=1"], ["a look"])
    plan.compute_with(3)
    plan.say(f"the plan: {plan.command()}")
    plan.write(tmp_path)
    found = Plan.of_run(tmp_path)
    assert found is not None
    assert found.command().startswith("OMP_NUM_THREADS=3 ")
    assert (found.reasons, used) == (plan.reasons, [3, 3])


def test_a_look_names_what_cannot_be_used(tmp_path):
    folder = folder_of(tmp_path / "music", piano, 2)
    (folder / "broken.mid").write_bytes(b"MThd")
    found = look(folder)
    text = "\n".join(found.lines())
    assert (len(found.pieces), len(found.failures)) == (2, 1)
    assert "2 pieces, 0 minutes, 8 bars" in text
    assert found.pieces[0].minutes == pytest.approx(16 / 120)  # 64 sixteenths at 120 bpm
    assert "metres: 4/4 (2)" in text
    assert "broken.mid" in text
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/broken.mid").write_bytes(b"MThd")
    with pytest.raises(UserError, match=r"none of 1 files can be read as music; .*MIDI"):
        look(tmp_path / "empty")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])  # of one group of weights, and of two
def test_a_probe_has_a_pace_if_its_time_is_up_after_one_step(
    config, tmp_path, monkeypatch, optimizer
):
    loss = Task.loss
    settings = (
        *("data=midi_folder", f"data.root={folder_of(tmp_path / 'music', piano, 6)}"),
        *("model.dim=16", "model.num_layers=1", "model.num_heads=2", "model.ff_dim=16"),
        *("loader.length=32", f"loader.cache_dir={tmp_path}", f"paths.output_dir={tmp_path}"),
    )
    losses = []  # a second a step
    monkeypatch.setattr(Task, "loss", lambda *args: losses.append(loss(*args)) or losses[-1])
    monkeypatch.setattr(plan, "time", SimpleNamespace(monotonic=lambda: float(len(losses))))
    planned = SimpleNamespace(config=lambda: config("train", f"optimizer={optimizer}", *settings))
    found = probe(planned, 1e-6)
    assert (found.steps, found.seconds_per_step) == (1, 1)


def test_the_size_follows_from_time_and_music():
    """20 tokens a weight: 128² · 12 · 4 · 20 = 15.7 M tokens are needed for the smallest size."""

    def chosen(seconds, tokens):
        probe = Probe(
            1, 10, 1.0, 1.0, 1, 10**6, 2048, 1
        )  # a million weights: 2,048 tokens a second
        music = SimpleNamespace(tokens=lambda name: tokens)
        found = size(Plan([]), music, seconds, [probe])
        values = (found.overrides[name] for name in ("model.dim", "model.num_layers"))
        return tuple(int(value.partition("=")[2]) for value in values)

    assert chosen(600, 10**9) == SIZES[0]
    # 192² · 12 · 6 = 2.65 M weights see 2,048 / 2.65 tokens a second, and need 53 M.
    assert chosen(55e6 / (2048 / 2.65), 10**9) == SIZES[1]
    assert chosen(1e9, 10**9) == SIZES[-1]
    assert chosen(1e9, 10**5) == SIZES[0]
