"""The race: which runs there are, and their table."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from benchmarks.race import table

CONF = Path(__file__).parents[2] / "conf"


def test_the_race_has_every_encoding_that_an_attention_accepts():
    entries = list(table.legal_entries())
    assert len(entries) == len(set(entries))
    by_attention = {}
    for attention, position in entries:
        by_attention.setdefault(attention, set()).add(position)
    of_logits = {"alibi", "siren", "transformer_xl"}
    every = {path.stem for path in (CONF / "position").glob("*.yaml")}
    assert by_attention == {
        "favor": every - of_logits,
        "favor, learned decay": every - of_logits,
        "softmax": every - {"permute"},  # whose decay softmax does not apply
    }


@pytest.mark.parametrize("name", ["favor", "softmax"])
def test_the_multirun_takes_all_encodings_at_one_size(config, name):
    cfg = config("train", f"experiment=race/{name}")
    sizes = cfg.model.dim, cfg.model.num_layers, cfg.data.length, cfg.trainer.max_steps
    assert sizes == (128, 2, 256, 500)
    assert ("num_features: 64" in OmegaConf.to_yaml(cfg.model.attention)) == (name == "favor")


def test_the_multirun_sweeps_positions_decay_and_seeds():
    swept = {}
    for name in ("favor", "softmax"):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("train", [f"experiment=race/{name}"], return_hydra_config=True).hydra
        assert cfg.sweep.dir == "outputs/race"  # the same in each call, so that runs are found
        folder = OmegaConf.to_container(cfg.sweep)["subdir"]
        assert folder == f"{name}_${{hydra.job.override_dirname}}"
        swept[name] = cfg.sweeper.params
    assert swept["favor"] == {
        "position": "glob(*)",
        "model.attention.decay": "none,learned",
        "seed": "1,2,3",
    }
    assert swept["softmax"] == {"position": "glob(*)"}


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


def summary(name, mean, seed_std=None):
    return {"measure": name, "mean": mean, "low": mean - 1, "high": mean + 1, "seed_std": seed_std}


def test_the_table_pools_finished_runs_and_names_the_missing(config, tmp_path, monkeypatch, capsys):
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
            summary(f"{group}, {name}", 3 + i, deviation)
            for group, deviation in names.items()
            for i, name in enumerate(table.LOSSES.values())
        ],
        "curves": dict.fromkeys(names, curve),
        "runs": [
            {"run": str(tmp_path / "runs" / run), "group": group}
            for run, group in (("a1", "A"), ("a2", "A"), ("b", "B, with comma"))
        ],
    }
    monkeypatch.setattr(table, "position_losses", lambda runs: measured)
    monkeypatch.setattr("sys.argv", ["table", str(tmp_path / "runs"), f"--out={tmp_path}/out"])
    table.main()
    out = tmp_path / "out/composer"
    with (out / "race.csv").open() as file:
        rope, alibi = csv.DictReader(file)
    assert (rope["attention"], rope["position"], rope["seeds"]) == ("favor", "rope", "2")
    assert [float(rope[x]) for x in ("trained", "2×", "4×", "nats a note")] == [3, 4, 5, 6]
    assert [float(rope[f"2× {x}"]) for x in ("low", "high", "seed_std")] == [3, 5, 0.125]
    assert float(rope["steps/s"]) == 2  # of 8 × 256 tokens
    assert (float(rope["steps/CPU s"]), float(rope["GB"])) == (2, 1)
    assert (alibi["attention"], alibi["position"], alibi["seeds"]) == ("softmax", "alibi", "1")
    text = (out / "race.md").read_text()
    assert "| favor | rope | 2 | 3.000 [2.000, 4.000] ± 0.125 | 4.000" in text
    assert "| softmax | alibi | 1 | 3.000 [2.000, 4.000] | 4.000" in text
    assert json.loads((out / "race.json").read_text())["curves"]["softmax: alibi"] == curve
    assert (
        "| attention | position | composer: trained |" in (tmp_path / "out/corpora.md").read_text()
    )
    assert (out / "race.png").stat().st_size > 10_000
    missing = [line for line in capsys.readouterr().out.splitlines() if "not run" in line]
    assert "not run: softmax, position=rope" in missing  # 10 of its 11 steps
    assert "not run: favor, position=rope" not in missing


def test_neighbouring_buckets_are_averaged_by_their_targets():
    curve = {"position": [1, 3, 5], "loss": [2.0, 5.0, 7.0], "num_targets": [2, 1, 4]}
    assert table.smoothed(curve, 2) == ([2, 5], [3, 7])


def test_corpora_stand_beside_each_other():
    def row(position, loss):
        return {"attention": "favor", "position": position, **dict.fromkeys(table.LOSSES, loss)}

    lines = table.beside(
        {"composer": [row("rope", "2.0"), row("none", "2.5")], "pop909": [row("rope", "3.0")]}
    )
    assert [line["composer: 4×"] for line in lines] == ["2.0", "2.5"]
    assert [line["pop909: 4×"] for line in lines] == ["3.0", ""]
