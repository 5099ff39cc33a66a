"""`experiment=my_music`: a folder of MIDI files becomes a model within some minutes."""

from __future__ import annotations

import os
import shlex
import signal
from dataclasses import dataclass
from typing import Any

import pytest
from omegaconf import OmegaConf

from musicgen.midi import write
from tests.data.listed import melody
from tests.end_to_end.deaths import train
from tests.training.conftest import assert_equal, saved

SETTINGS = (
    *("model.dim=16", "model.num_layers=1", "model.num_heads=2", "model.ff_dim=16"),
    *("loader.length=16", "trainer.log_every_n_steps=1"),
)


@dataclass(frozen=True)
class Interrupt:
    """Ctrl-C as the first checkpoint is written."""

    def arm(self) -> None:
        from musicgen.training.save_last import SaveLast

        save = SaveLast._save

        def save_and_interrupt(callback: Any, trainer: Any) -> None:
            save(callback, trainer)
            os.kill(os.getpid(), signal.SIGINT)

        SaveLast._save = save_and_interrupt  # type: ignore[method-assign]


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_plan_gives_the_weights_of_its_run_again(tmp_path, interrupted):
    (tmp_path / "my music").mkdir()
    for seed in range(5):
        write(melody(seed, 32), tmp_path / f"my music/{seed}.mid")
    root = f"data.root={tmp_path / 'my music'}"
    plan = ("experiment=my_music", root, "minutes=0.06", *SETTINGS, "hydra.run.dir=run")
    assert train(tmp_path, *plan, death=Interrupt() if interrupted else None) == 130 * interrupted
    assert (tmp_path / "run/evaluation/index.html").exists() != interrupted
    if interrupted:
        assert train(tmp_path, "resume=run") == 0
        assert "from step" not in (tmp_path / "stderr").read_text()  # with other settings
    lines = (tmp_path / "run/plan.txt").read_text().splitlines()
    assert any(line.startswith("task=pop_piano: it keeps 100%") for line in lines)
    assert any(line.startswith("init=null: nats a note of 1 piece") for line in lines)
    assert lines[0] in (tmp_path / "stderr").read_text()
    assert "Has it learned the music?" in (tmp_path / "run/evaluation/index.html").read_text()
    (again,) = (line for line in lines if line.startswith("the same model again: "))
    arguments = shlex.split(again.partition(".py ")[2])
    assert "data=midi_folder" in arguments
    assert not any(word.startswith(("experiment=", "minutes=")) for word in arguments)
    assert train(tmp_path, *arguments, "hydra.run.dir=again") == 0
    assert_equal(saved(tmp_path / "again"), saved(tmp_path / "run"))
    stored = OmegaConf.load(tmp_path / "run/.hydra/overrides.yaml")
    assert set(arguments) - {x.replace("'", "") for x in stored} == set()
