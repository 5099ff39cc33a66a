"""`experiment=my_music`: a folder of MIDI files becomes a model within some minutes."""

from __future__ import annotations

import shlex

from omegaconf import OmegaConf

from musicgen.midi import write
from tests.data.listed import melody
from tests.end_to_end.command_line import succeed
from tests.training.conftest import assert_equal, saved


def test_a_plan_gives_the_weights_of_its_run_again(tmp_path, here):
    (tmp_path / "my music").mkdir()
    for seed in range(5):
        write(melody(seed, 32), tmp_path / f"my music/{seed}.mid")
    settings = (
        *("model.dim=16", "model.num_layers=1", "model.num_heads=2", "model.ff_dim=16"),
        *("loader.length=16", "trainer.log_every_n_steps=1"),
    )
    plan = ("experiment=my_music", f"data.root={tmp_path / 'my music'}", "minutes=0.06")
    done = succeed(here(tmp_path, "train.py", *plan, *settings, "hydra.run.dir=run"))
    lines = (tmp_path / "run/plan.txt").read_text().splitlines()
    assert any(line.startswith("task=pop_piano: it keeps 100%") for line in lines)
    assert any(line.startswith("init=null: nats a note of 1 piece") for line in lines)
    assert lines[0] in done.stderr
    assert "Has it learned the music?" in (tmp_path / "run/evaluation/index.html").read_text()
    (again,) = (line for line in lines if line.startswith("the same model again: "))
    arguments = shlex.split(again.partition(".py ")[2])
    assert "data=midi_folder" in arguments
    assert not any(word.startswith(("experiment=", "minutes=")) for word in arguments)
    succeed(here(tmp_path, "train.py", *arguments, "hydra.run.dir=again"))
    assert_equal(saved(tmp_path / "again"), saved(tmp_path / "run"))
    stored = OmegaConf.load(tmp_path / "run/.hydra/overrides.yaml")
    assert set(arguments) - {x.replace("'", "") for x in stored} == set()
