"""`experiment=my_music`: a trained model goes on with a folder of MIDI files, until a time is over."""

import csv

from musicgen import load
from musicgen.midi import write
from tests.data.builders import melody
from tests.end_to_end.command_line import assert_one_line, succeed


def test_a_model_goes_on_with_a_folder_until_the_time_is_over(here, workplace):
    for seed in range(5):
        write(melody(seed, 32), workplace / f"my music/{seed}.mid")
    (base,) = (workplace / "outputs/tiny").iterdir()
    mine = ("experiment=my_music", f"init={base}", "minutes=0.06", "hydra.run.dir=mine")
    assert_one_line(here(workplace, "train.py", *mine), "data.root is missing; give data.root=")
    every = (
        "trainer.val_check_interval=2",
        "trainer.log_every_n_steps=1",
        "scheduler.warmup_steps=2",
    )
    done = succeed(here(workplace, "train.py", *mine, "data.root=my music", *every))
    assert f"to evaluate it: python evaluate.py {workplace}/mine" in done.stderr
    before, after = load(base).content, load(workplace / "mine").content
    assert (after.model, after.tokenizer) == (before.model, before.tokenizer)
    assert after.config["sampling"] == before.config["sampling"]
    assert after.config["loader"]["length"] == before.config["loader"]["length"]
    rows = list(csv.DictReader((workplace / "mine/metrics.csv").open()))
    rates = [float(row["lr-AdamW"]) for row in rows if row["lr-AdamW"]]
    assert rates[-1] < max(rates) == 1e-4  # it falls to 0 after the last step
    assert len(rates) < 10_000
