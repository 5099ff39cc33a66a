"""The races: which runs there are, and their table."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from benchmarks import race

CONF = Path(__file__).parents[2] / "conf"


ALL = {"position": "glob(*)"}
SEEDS = {"seed": "1,2,3"}
DECAYS = {"model.attention.decay": "none,head"}


@pytest.mark.parametrize(
    ("name", "sizes", "swept"),
    [
        ("favor", (2, 256, 500), ALL | DECAYS | SEEDS),
        ("softmax", (2, 256, 500), ALL),
        ("decay", (4, 512, 800), ALL | DECAYS | SEEDS),
        ("coordinates", (4, 256, 600), {"position": "rope"}),
        ("jsb", (4, 1024, 300), ALL | SEEDS),
    ],
)
def test_a_multirun_takes_all_entries_at_one_size(name, sizes, swept):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", [f"experiment=race/{name}"], return_hydra_config=True)
    assert (cfg.model.num_layers, cfg.loader.length, cfg.trainer.max_steps) == sizes
    assert cfg.hydra.sweeper.params == swept
    # The same folder in each call, so that finished runs are found.
    assert cfg.hydra.sweep.dir.startswith("outputs/race")
    assert "${hydra.job.override_dirname}" in OmegaConf.to_container(cfg.hydra.sweep)["subdir"]


def test_entries_are_named_by_what_varies():
    given = {"experiment": "race/decay", "position": "rope", "seed": "1", "data.root": "/my"}
    assert race.name(given) == "rope"
    given |= {"model.attention.decay": "head", "model.position.coordinates": "[index,beat]"}
    assert race.name(given) == "rope, coordinates=[index,beat]"


def make_run(folder, config, experiment, position, seed, steps, **rates):
    overrides = [f"experiment={experiment}", f"position={position}", f"seed={seed}"]
    cfg = config("train", *overrides, f"trainer.max_steps={steps}", "paths.output_dir=x")
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra/overrides.yaml").write_text(OmegaConf.to_yaml(overrides))
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg))
    columns = ["step", *(f"train/{name}" for name in rates)]
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip((4, 9), *rates.values(), strict=True))


def summary(run, part, mean, seed_std=None):
    interval = {"low": mean - 1, "high": mean + 1}
    return {"run": run, "part": part, "mean": mean, **interval, "seed_std": seed_std}


def test_the_table_pools_finished_runs_and_names_the_others(config, tmp_path, monkeypatch, capsys):
    rates = {"tokens_per_second": (2048, 6144), "tokens_per_cpu_second": (4096, 4096)}
    for seed in (1, 2):
        folder = tmp_path / f"runs/a{seed}"
        gigabytes = (0.25, 0.5 * seed)
        make_run(folder, config, "race/favor", "rope", seed, 10, **rates, gigabytes=gigabytes)
    make_run(tmp_path / "runs/b", config, "race/softmax", "alibi", 1, 10, **rates, gigabytes=(1, 2))
    make_run(tmp_path / "runs/c", config, "race/softmax", "rope", 1, 11, **rates, gigabytes=(1, 2))
    (tmp_path / "runs/d/.hydra").mkdir(parents=True)  # has just begun
    (tmp_path / "runs/d/.hydra/overrides.yaml").write_text("- position=rope")
    curve = {"position": [8, 24], "loss": [2.0, 1.0], "num_targets": [16, 16]}
    names = {"A": 0.125, "B, with comma": None}
    measured = {
        "rows": [
            summary(group, name, 3 + i, deviation)
            for group, deviation in names.items()
            for i, name in enumerate(race.LOSSES.values())
        ],
        "curves": [{"run": name, **curve} for name in names],
        "runs": [
            {"checkpoint": str(tmp_path / "runs" / run), "run": group}
            for run, group in (("a1", "A"), ("a2", "A"), ("b", "B, with comma"))
        ],
    }
    monkeypatch.setattr(race, "position_losses", lambda runs, split: measured)
    monkeypatch.setattr("sys.argv", ["table", str(tmp_path / "runs"), f"--out={tmp_path}/out"])
    race.main()
    out = tmp_path / "out/composer"
    with (out / "race.csv").open() as file:
        rope, alibi = csv.DictReader(file)
    assert (rope["attention"], rope["entry"], rope["seeds"]) == ("favor", "rope", "2")
    assert [float(rope[x]) for x in ("trained", "2×", "4×", "nats a note")] == [3, 4, 5, 6]
    assert [float(rope[f"2× {x}"]) for x in ("low", "high", "seed_std")] == [3, 5, 0.125]
    assert float(rope["steps/s"]) == 2  # of 8 × 256 tokens
    assert (float(rope["steps/CPU s"]), float(rope["GB"])) == (2, 1)
    assert (alibi["attention"], alibi["entry"], alibi["seeds"]) == ("softmax", "alibi", "1")
    text = (out / "race.md").read_text()
    assert "| favor | rope | 2 | 3.000 [2.000, 4.000] ± 0.125 | 4.000" in text
    assert "| softmax | alibi | 1 | 3.000 [2.000, 4.000] | 4.000" in text
    assert "| attention | entry | composer: trained |" in (tmp_path / "out/corpora.md").read_text()
    assert (out / "race.png").stat().st_size > 10_000
    assert f"not finished: {tmp_path}/runs/c\n" in capsys.readouterr().out  # 10 of its 11 steps


def test_neighbouring_buckets_are_averaged_by_their_targets():
    curve = {"position": [1, 3, 5], "loss": [2.0, 5.0, 7.0], "num_targets": [2, 1, 4]}
    assert race.smoothed(curve, 2) == ([2, 5], [3, 7])


def test_corpora_stand_beside_each_other():
    def row(position, loss):
        return {"attention": "favor", "entry": position, **dict.fromkeys(race.LOSSES, loss)}

    lines = race.beside(
        {"composer": [row("rope", "2.0"), row("none", "2.5")], "pop909": [row("rope", "3.0")]}
    )
    assert [line["composer: 4×"] for line in lines] == ["2.0", "2.5"]
    assert [line["pop909: 4×"] for line in lines] == ["3.0", ""]
